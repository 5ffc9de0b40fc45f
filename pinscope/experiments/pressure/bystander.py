"""The ordinary process beside an experiment, from the experiment's side: what it feels."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Self

from pinscope.lab.child_processes import Child, ChildProcesses

START_SECONDS = 30.0
"""To write its file: 512 MiB at 17 MB/s."""
GRACE_SECONDS = 10.0
"""How much longer than it was given it may take to answer before it is taken for hung."""


@dataclass(frozen=True)
class Feeling:
    """What an ordinary process felt in one round.

    Attributes:
        fault_pages: pages of fresh memory touched.
        fault_median_seconds, fault_longest_seconds: for one of them.
        file_cached_bytes: how much of its file was in the page cache before it read it; ``None`` without a file.
        read_bytes, read_seconds: reading the file again; likewise.
    """

    fault_pages: int
    fault_median_seconds: float
    fault_longest_seconds: float
    file_cached_bytes: int | None
    read_bytes: int | None
    read_seconds: float | None


class Bystander:
    """An ordinary process, started on entering and gone on leaving, whatever happens between.

    Args:
        folder: where its file is to be; ``None`` for no file.
        file_bytes: how long the file is.
        sample_bytes: how much fresh memory it touches each round.
        seconds: how long one round may take.
        check: called while waiting; raises to stop.
        grace: how much longer it may take before it is taken for hung.
    """

    def __init__(
        self,
        folder: str | None,
        file_bytes: int,
        sample_bytes: int,
        seconds: float,
        check: Callable[[], None],
        *,
        grace: float = GRACE_SECONDS,
    ) -> None:
        configuration = {"folder": folder, "file_bytes": file_bytes, "sample_bytes": sample_bytes}
        self._seconds = seconds
        module = "pinscope.experiments.pressure.ordinary_process"
        child = Child("the ordinary process beside the run", module, configuration)
        self._process = ChildProcesses({0: child}, seconds + grace, check)
        self._open = ExitStack()

    def __enter__(self) -> Self:
        """Start it, and wait until its file is there.

        Raises:
            MeasurementFailed: it does not start, or cannot make its file.
        """
        with ExitStack() as opening:
            opening.enter_context(self._process)
            self._process.ask("making its file", {0: {"do": "start"}}, limit=START_SECONDS)
            self._open = opening.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._open.__exit__(*exception)  # type: ignore[arg-type]

    def feel(self) -> Feeling:
        """One round.

        Raises:
            MeasurementFailed: it died, hung or broke off.
        """
        order = {"do": "feel", "seconds": self._seconds}
        step = "touching memory and reading its file"
        ((_, reply),) = self._process.ask(step, {0: order}).values()
        return Feeling(**reply)
