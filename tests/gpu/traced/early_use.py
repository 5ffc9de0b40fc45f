"""Data of asynchronous copies that is used too early: ``early_use.py torch|cupy read|overwrite [waits]``.

With ``waits`` the missing synchronisation stands where it belongs. Twenty rounds, each of which names what it got.
"""

import sys

import pinscope

LIBRARY, KIND, *REST = sys.argv[1:]
WAITS, COUNT = "waits" in REST, 4 << 20


def read_torch():
    import torch

    value, host = torch.empty(COUNT, device="cuda"), torch.empty(COUNT, pin_memory=True)
    for number in range(20):
        value.fill_(number + 1)
        torch.cuda._sleep(60_000_000)  # some 30 ms of other work
        host.copy_(value, non_blocking=True)  # mark: copy
        if WAITS:
            torch.cuda.current_stream().synchronize()
        pinscope.check(f"round {number}", host[-1:].clone())  # mark: read
        torch.cuda.synchronize()


def overwrite_torch():
    import torch

    value, host = torch.empty(COUNT, device="cuda"), torch.empty(COUNT, pin_memory=True)
    for number in range(20):
        host.fill_(number + 1)
        torch.cuda._sleep(60_000_000)
        value.copy_(host, non_blocking=True)  # mark: copy
        if WAITS:
            torch.cuda.current_stream().synchronize()
        host.fill_(-1.0)
        pinscope.check(f"round {number}", value[-1:])


def sleep_cupy():
    import cupy

    code = "extern C __global__ void spin(long long t) { long long b = clock64(); while (clock64() - b < t); }"
    kernel = cupy.RawKernel(code.replace("extern C", 'extern "C"'), "spin")
    kernel((1,), (1,), (1,))
    cupy.cuda.Device().synchronize()
    return lambda: kernel((1,), (1,), (60_000_000,))


def read_cupy():
    import cupy
    import cupyx

    sleep, value, host = sleep_cupy(), cupy.empty(COUNT, cupy.float32), cupyx.empty_pinned(COUNT, "float32")
    for number in range(20):
        value.fill(number + 1)
        sleep()
        value.get(out=host, blocking=False)  # mark: copy
        if WAITS:
            cupy.cuda.get_current_stream().synchronize()
        pinscope.check(f"round {number}", host[-1:])  # mark: read
        cupy.cuda.Device().synchronize()


def overwrite_cupy():
    import cupy
    import cupyx

    sleep, value, host = sleep_cupy(), cupy.empty(COUNT, cupy.float32), cupyx.empty_pinned(COUNT, "float32")
    for number in range(20):
        host[:] = number + 1
        sleep()
        value.set(host)  # mark: copy
        if WAITS:
            cupy.cuda.get_current_stream().synchronize()
        host[:] = -1
        pinscope.check(f"round {number}", value[-1:])


globals()[f"{KIND}_{LIBRARY}"]()
print("end")
