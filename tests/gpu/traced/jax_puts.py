"""JAX copies in threads of its own, once its call has returned."""

import jax
import numpy as np

ROUNDS = 12


def main():
    tables = [np.random.default_rng(number).random(1 << 20, np.float32) for number in range(4)]
    weights = {"one": np.random.default_rng(9).random(1 << 19, np.float32), "two": np.ones(1 << 18, np.float32)}
    total = jax.jit(lambda values: (values * 2).sum())
    seen = 0.0
    for number in range(ROUNDS):
        put = jax.device_put(tables[number % 4])  # a table
        seen += float(total(put))
    for _ in range(3):
        both = jax.device_put(weights)  # two arrays
        seen += float(total(both["one"])) + float(total(both["two"]))
    print(seen > 0)


main()
