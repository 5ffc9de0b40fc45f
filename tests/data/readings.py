"""Reading and drawing rows that a test made up, whatever the kind of the run that they are given with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pinscope.analysis.read_rows import Row
from pinscope.charts.marks import Chart
from pinscope.experiments.registry import find_reader
from pinscope.records.run import Finding, Reading, Run
from tests.data import synthetic


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


class Made:
    """Rows that a test made up, as those of a synthetic run of their kind.

    Args:
        kind: of the run.
        fields: of every run; ``changes`` replace more of one.
    """

    def __init__(self, kind: str, **fields: Any) -> None:
        self._kind, self._fields, self._as = kind, fields, As(kind)

    def _run(self, changes: Mapping[str, Any]) -> Run:
        return synthetic.run(self._kind, **self._fields | changes)

    def reading(self, rows: Sequence[Row], **changes: Any) -> Reading:
        """What is concluded from them."""
        return self._as.read(self._run(changes), rows)

    def findings(self, rows: Sequence[Row], **changes: Any) -> dict[str, Finding]:
        """Rule → the finding."""
        return {finding.rule: finding for finding in self.reading(rows, **changes).findings}

    def charts(self, rows: Sequence[Row], **changes: Any) -> dict[str, Chart]:
        """Key → the chart."""
        return {chart.key: chart for chart in self._as.draw(self._run(changes), rows)}
