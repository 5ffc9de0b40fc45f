"""Processes beside the measurement that tell how long their calls to the GPU's driver had to wait.

One of them, the control, makes no call: it only sleeps and tells how late it woke. What it waits for is a processor,
so that waiting for a processor can be distinguished from waiting for the driver.
"""

from __future__ import annotations

import json
import select
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Literal, Self

from pinscope import isolation
from pinscope.errors import MeasurementFailed
from pinscope.probes.parent import start_child

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
START_SECONDS = 60.0
ANSWER_SECONDS = 60.0
END_SECONDS = 5.0


def cuda_neighbour(call: NeighbourCall, bus_id: str) -> list[str]:
    """The command of a neighbour that makes this call (``control``: none) on the GPU with this PCI bus id."""
    return isolation.command("pinscope.experiments.pinning_strategy.cuda_neighbour", call, bus_id)


class Neighbours:
    """One process for each kind of call, so that a call that waits hides no other kind's wait.

    Args:
        commands: kind of call → the command of the process that makes it.
    """

    def __init__(self, commands: Mapping[NeighbourCall, Sequence[str]]) -> None:
        self._commands = commands
        self._children: dict[NeighbourCall, subprocess.Popen[str]] = {}

    def __enter__(self) -> Self:
        """Start them side by side and wait until all make calls.

        Raises:
            MeasurementFailed: one does not start.
        """
        try:
            for call, command in self._commands.items():
                self._children[call] = start_child(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
                )
            for call in self._children:
                self._line(call, START_SECONDS)
        except BaseException:
            self.__exit__()
            raise
        return self

    def longest(self) -> dict[NeighbourCall, float]:
        """Seconds of the longest call of each kind since this was last asked (or since the start).

        Raises:
            MeasurementFailed: a neighbour has ended, or does not answer.
        """
        for child in self._children.values():
            with suppress(BrokenPipeError):  # it has ended: reading its answer says so
                _pipe(child.stdin).write("?\n")
                _pipe(child.stdin).flush()
        return {call: float(json.loads(self._line(call, ANSWER_SECONDS))["longest"]) for call in self._children}

    def _line(self, call: NeighbourCall, seconds: float) -> str:
        answers = _pipe(self._children[call].stdout)
        if not select.select([answers], [], [], seconds)[0]:
            raise MeasurementFailed(f"the neighbour process ({CALL_TITLES[call]}) has not answered for {seconds:.0f} s")
        line = answers.readline()
        if not line:
            raise MeasurementFailed(f"the neighbour process ({CALL_TITLES[call]}) ended before the measurement did")
        return line

    def __exit__(self, *exception: object) -> None:
        """End them: they stop when their input ends, and are killed if they do not."""
        for child in self._children.values():
            with suppress(BrokenPipeError):
                _pipe(child.stdin).close()
        for child in self._children.values():
            try:
                child.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            _pipe(child.stdout).close()
        self._children.clear()


def _pipe(pipe: IO[str] | None) -> IO[str]:
    if pipe is None:
        raise TypeError("this neighbour was started without pipes")
    return pipe
