"""Reading and drawing rows that a test made up, whatever the kind of the run that they are given with."""

from __future__ import annotations

from collections.abc import Sequence

from pinscope.analysis.read_rows import Row
from pinscope.charts.marks import Chart
from pinscope.experiments.registry import find_reader
from pinscope.records.run import Reading, Run


class As:
    """Rows taken as those of one kind.

    Args:
        kind: name of an experiment, or of another kind of run.
    """

    def __init__(self, kind: str) -> None:
        self._reader = find_reader(kind)

    def read(self, run: Run, rows: Sequence[Row]) -> Reading:
        """What is concluded from them."""
        return self._reader.read(run, rows)

    def draw(self, run: Run, rows: Sequence[Row]) -> list[Chart]:
        """Their charts."""
        return list(self._reader.charts(run, rows))
