"""A Numba program: it calls the CUDA driver, without the runtime."""

import numpy as np
from numba import cuda


def main():
    pageable = np.ones(1 << 20, np.float32)
    pinned = cuda.pinned_array(1 << 20, np.float32)
    pinned[:] = 1
    for _ in range(5):
        device = cuda.to_device(pageable)  # pageable up
        device.copy_to_host(pageable)  # pageable down
        cuda.to_device(pinned)  # pinned up
        cuda.synchronize()
    print(pageable[0])


main()
