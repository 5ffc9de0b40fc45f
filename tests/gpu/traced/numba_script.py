"""A Numba program: it calls the CUDA driver, without the runtime."""

import numpy as np
from numba import cuda


@cuda.jit
def double(values):
    place = cuda.grid(1)
    if place < values.size:
        values[place] *= 2


def main():
    pageable = np.ones(1 << 20, np.float32)
    pinned = cuda.pinned_array(1 << 20, np.float32)
    pinned[:] = 1
    for _ in range(5):
        device = cuda.to_device(pageable)  # pageable up
        double[(1 << 20) // 256, 256](device)
        device.copy_to_host(pageable)  # pageable down
        other = cuda.to_device(pinned)  # pinned up
        double[(1 << 20) // 256, 256](other)
        cuda.synchronize()
    print(pageable[0])


main()
