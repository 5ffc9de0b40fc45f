"""A neighbour on the GPU: a program that :mod:`pinscope.lab.child_processes` starts.

It makes one kind of driver call again and again, and says on an order how long the longest took since the last order.
The kind ``control`` makes none: it sleeps as long as the others pause, and says how late it woke.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack

from pinscope.lab.child_processes import Reply, serve_requests

PAUSE_SECONDS = 2e-4
"""Between two calls: a neighbour that never rests would take a processor from those who touch memory."""
SMALL_BYTES = 2**20


class Neighbour:
    """What it can do: ``start`` and ``longest`` are orders.

    Args:
        kind: of call.
        bus_id: PCI bus id of the GPU.
    """

    pause_seconds = PAUSE_SECONDS

    def __init__(self, kind: str, bus_id: str) -> None:
        self._kind, self._bus_id = kind, bus_id
        self._open = ExitStack()
        self._wait: Callable[[], float] | None = None
        self._longest = 0.0

    def start(self) -> Reply:
        """Get ready: the first call is not counted."""
        wait = _wait(self._kind, self._bus_id, self._open)
        wait()
        self._wait = wait
        return {}

    def longest(self) -> Reply:
        """The longest wait since the last such order."""
        seconds, self._longest = self._longest, 0.0
        return {"seconds": seconds}

    def meanwhile(self) -> None:
        """One call."""
        if self._wait is not None:
            self._longest = max(self._longest, self._wait())


def timed(call: Callable[[], object]) -> Callable[[], float]:
    """The call; it gives the seconds that it took."""

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


if __name__ == "__main__":
    sys.exit(serve_requests(Neighbour))
