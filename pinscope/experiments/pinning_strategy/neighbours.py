"""Processes beside the measurement that say how long their calls to the GPU's driver had to wait.

One of them, the control, makes no call: it only sleeps and says how late it woke. What it waits for is a processor, so
that waiting for a processor can be distinguished from waiting for the driver.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Literal, Self

from pinscope.lab.child_processes import Child, ChildProcesses, Order

NeighbourCall = Literal["info", "nvml", "kernel", "allocation", "control"]
CALLS: tuple[NeighbourCall, ...] = ("info", "nvml", "kernel", "allocation", "control")
WITH_CONTEXT: tuple[NeighbourCall, ...] = ("info", "kernel", "allocation")
"""Those that need a CUDA context each."""
CALL_TITLES: Mapping[NeighbourCall, str] = {
    "control": "no driver calls",
    "info": "cudaMemGetInfo",
    "nvml": "NVML memory query",
    "kernel": "kernel launch and wait",
    "allocation": "cudaMalloc and cudaFree of 1 MiB",
}
ANSWER_SECONDS = 60.0
_MODULE = "pinscope.experiments.pinning_strategy.cuda_neighbour"


class Neighbours:
    """One process for each kind of call, so that a call that waits hides no other kind's wait.

    Args:
        bus_id: PCI bus id of the GPU.
        calls: the kinds.
        module: what each runs.
    """

    def __init__(self, bus_id: str, calls: Sequence[NeighbourCall] = CALLS, module: str = _MODULE) -> None:
        self._processes = ChildProcesses(
            {
                call: Child(f"the neighbour process ({CALL_TITLES[call]})", module, {"kind": call, "bus_id": bus_id})
                for call in calls
            },
            ANSWER_SECONDS,
        )
        self._calls = calls
        self._open = ExitStack()

    def __enter__(self) -> Self:
        """Start them side by side and wait until all make calls.

        Raises:
            MeasurementFailed: one does not start.
        """
        with ExitStack() as opening:
            opening.enter_context(self._processes)
            self._processes.ask("getting ready", self._all("start"))
            self._open = opening.pop_all()
        return self

    def longest(self) -> dict[NeighbourCall, float]:
        """Seconds of the longest call of each kind since this was last asked (or since the start).

        Raises:
            MeasurementFailed: a neighbour has ended, or does not answer.
        """
        answers = self._processes.ask("making its calls", self._all("longest"))
        return {call: float(reply["seconds"]) for call, (_, reply) in answers.items()}

    def _all(self, order: str) -> dict[NeighbourCall, Order]:
        return {call: {"do": order} for call in self._calls}

    def __exit__(self, *exception: object) -> None:
        """End them."""
        self._open.__exit__(*exception)  # type: ignore[arg-type]
