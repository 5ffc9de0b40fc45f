"""Runs set against other runs, for a program of the user's own: what is better, what is worse, and by how much."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from pinscope.analysis import comparison as core
from pinscope.analysis.comparison import ComparedCell, Side
from pinscope.experiments.registry import measured_run, verdict_of
from pinscope.python.opened import PAGE, Run
from pinscope.python.session import open
from pinscope.records.run import Finding
from pinscope.report.comparison import Compared, render, write_comparison

if TYPE_CHECKING:
    import pandas as pd

Taken = Run | str | Path
"""A run, or what :func:`pinscope.open` takes."""


class Comparison:
    """The second side against the first; see ``pinscope compare``.

    Attributes:
        core: all of it, as :class:`pinscope.analysis.comparison.Comparison`.
    """

    def __init__(self, made: core.Comparison) -> None:
        self.core = made

    @property
    def verdict(self) -> str:
        """The answer in one sentence."""
        return verdict_of(self.core)

    @property
    def machines(self) -> Mapping[str, tuple[str, str]]:
        """What differs in the machines and the software → on each side."""
        return {key.title: (key.a, key.b) for key in self.core.machines.different}

    @property
    def came(self) -> Sequence[Finding]:
        """Findings that all runs of the second side have, and none of the first."""
        return self.core.came

    @property
    def went(self) -> Sequence[Finding]:
        """Findings that all runs of the first side have, and none of the second."""
        return self.core.went

    def worse(self, than: float = 0.0) -> list[ComparedCell]:
        """Cells that are worse by more than this share, and by more than chance: their whole interval lies beyond it.
        The worst first."""
        return [cell for cell in self.core.shown if cell.verdict == "worse" and _beyond(cell, than)]

    def better(self, than: float = 0.0) -> list[ComparedCell]:
        """Likewise those that are better, the best first."""
        return [cell for cell in reversed(self.core.shown) if cell.verdict == "better" and _beyond(cell, than)]

    @cached_property
    def frame(self) -> pd.DataFrame:
        """A row for each figure of each cell that both sides have: its labels, both values in SI units, their ratio
        (second over first) with its interval, and ``better``, ``worse``, ``same`` or ``unknown``."""
        import pandas as pd  # noqa: PLC0415 - it takes a third of a second to import

        return pd.DataFrame.from_records(
            [
                {**cell.labels, "figure": cell.figure, "unit": cell.value.unit, "a": cell.a.value, "b": cell.b.value}
                | {"ratio": cell.ratio, "ratio.low": cell.low, "ratio.high": cell.high, "verdict": cell.verdict}
                for cell in self.core.cells
            ]
        )

    def save(self, path: str | Path) -> Path:
        """Write a report (.html, .md, .json) to a file that is not there yet; the file.

        Raises:
            BadInput: no such format, no such folder, or there is such a file.
        """
        path = Path(path)
        write_comparison(path, self._compared)
        return path

    @property
    def _compared(self) -> Compared:
        return Compared([self.core], [])

    def __repr__(self) -> str:
        return self._repr_markdown_()

    def _repr_markdown_(self) -> str:
        return render(self._compared, ".md").decode()

    def _repr_html_(self) -> str:
        page = render(self._compared, ".html").decode()
        return PAGE.format(page=escape(page), title="Comparison")


def _beyond(cell: ComparedCell, than: float) -> bool:
    """Whether the end of the interval that is nearest to 1 is farther from it than this; of what is exact, the ratio
    itself."""
    if cell.ratio is None:  # from nothing to something, or the other way
        return True
    low, high = (cell.ratio if end is None else end for end in (cell.low, cell.high))
    return low > 1 + than or high < 1 - than


def compare(a: Taken | Iterable[Taken], b: Taken | Iterable[Taken]) -> Comparison:
    """The second against the first: cells by their labels, lines of traces by their text, holders of timelines.

    Args:
        a: a run, or several that count together, which tell smaller differences.
        b: likewise, set against the first.

    Raises:
        BadInput: runs of several experiments, the host model against a GPU, or a side without runs.
    """
    return Comparison(core.compare(_side("A", a), _side("B", b)))


def _side(name: str, taken: Taken | Iterable[Taken]) -> Side:
    runs = [taken] if isinstance(taken, Run | str | Path) else list(taken)
    opened = (run if isinstance(run, Run) else open(run) for run in runs)
    return Side(name, [measured_run(run.record, run.observations) for run in opened])
