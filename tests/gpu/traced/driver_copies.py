"""Copies by the driver's own functions: only Python's library is needed, of any version from 3.9 on."""

import ctypes

SIZE, COUNT = 4 << 20, 20
cuda = ctypes.CDLL("libcuda.so.1")


def check(result):
    assert result == 0, result


device, context = ctypes.c_int(), ctypes.c_void_p()
on_gpu, pinned = ctypes.c_uint64(), ctypes.c_void_p()
pageable = (ctypes.c_char * SIZE)()
check(cuda.cuInit(0))
check(cuda.cuDeviceGet(ctypes.byref(device), 0))
check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
check(cuda.cuCtxSetCurrent(context))
check(cuda.cuMemAlloc_v2(ctypes.byref(on_gpu), ctypes.c_size_t(SIZE)))
check(cuda.cuMemHostAlloc(ctypes.byref(pinned), ctypes.c_size_t(SIZE), 0))
for _ in range(COUNT):
    check(cuda.cuMemcpyHtoD_v2(on_gpu, pageable, ctypes.c_size_t(SIZE)))  # pageable up
    check(cuda.cuMemcpyHtoD_v2(on_gpu, pinned, ctypes.c_size_t(SIZE)))  # pinned up
    check(cuda.cuMemcpyDtoH_v2(pageable, on_gpu, ctypes.c_size_t(SIZE)))  # pageable down
check(cuda.cuCtxSynchronize())
