"""A neighbour on the GPU: ``python -m pinscope.experiments.pinning_strategy.cuda_neighbour KIND BUS_ID``.

A process of its own that makes one kind of driver call again and again, and tells on request how long the longest
took since the last request. The kind ``control`` makes none: it sleeps as long as the others pause, and tells how late
it woke. It ends when its standard input does.
"""

from __future__ import annotations

import json
import select
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TextIO

PAUSE_SECONDS = 2e-4
"""Between two calls: a neighbour that never rests would take a processor from those who touch memory."""
SMALL_BYTES = 2**20


def serve(wait: Callable[[], float], orders: TextIO, answers: TextIO) -> None:
    """Wait again and again until ``orders`` ends.

    Args:
        wait: makes one call, and gives the seconds that it had to wait.
        orders: each line is answered with the longest wait since the last line.
        answers: takes the answers, as JSON.
    """
    longest, calls = 0.0, 0
    while True:
        if select.select([orders], [], [], PAUSE_SECONDS)[0]:
            if not orders.readline():
                return
            print(json.dumps({"longest": longest, "calls": calls}), file=answers, flush=True)
            longest, calls = 0.0, 0
        longest = max(longest, wait())
        calls += 1


def timed(call: Callable[[], object]) -> Callable[[], float]:
    """The same call; it gives the seconds that it took."""

    def wait() -> float:
        begun = time.perf_counter()
        call()
        return time.perf_counter() - begun

    return wait


def lateness() -> float:
    """Sleep as long as a neighbour pauses; the seconds by which waking was late."""
    begun = time.perf_counter()
    time.sleep(PAUSE_SECONDS)
    return time.perf_counter() - begun - PAUSE_SECONDS


def _nvml(bus_id: str, stack: ExitStack) -> Callable[[], object]:
    from pinscope.probes.gpu import Nvml  # noqa: PLC0415 - only this kind needs it

    nvml = stack.enter_context(Nvml())
    for index in range(nvml.device_count().value or 0):
        # NVML writes the PCI domain with eight digits, CUDA with four.
        if (nvml.pci_bus_id(index).value or "").lower().endswith(bus_id.lower()):
            return lambda: nvml.memory(index)
    raise RuntimeError(f"NVML shows no GPU {bus_id}")


def _cuda(kind: str, bus_id: str) -> Callable[[], object]:
    import cupy  # noqa: PLC0415 - NVML needs none
    from cupy.cuda import runtime  # noqa: PLC0415

    runtime.setDevice(runtime.deviceGetByPCIBusId(bus_id))
    runtime.free(0)
    if kind == "info":
        return runtime.memGetInfo  # type: ignore[no-any-return]
    if kind == "allocation":
        return lambda: runtime.free(runtime.malloc(SMALL_BYTES))
    nothing = cupy.RawKernel('extern "C" __global__ void nothing() {}', "nothing")

    def launch() -> None:
        nothing((1,), (1,), ())
        runtime.deviceSynchronize()

    return launch


def _wait(kind: str, bus_id: str, stack: ExitStack) -> Callable[[], float]:
    if kind == "control":
        return lateness
    return timed(_nvml(bus_id, stack) if kind == "nvml" else _cuda(kind, bus_id))


def main(kind: str, bus_id: str) -> None:
    """Get ready, say so, serve."""
    with ExitStack() as stack:
        wait = _wait(kind, bus_id, stack)
        wait()
        print("ready", flush=True)  # noqa: T201 - tells the parent
        serve(wait, sys.stdin, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
