"""A stored or recorded run, for a program of the user's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from pinscope.analysis.cells import frame
from pinscope.analysis.rows import Row
from pinscope.experiments.registry import cells_of, read_run
from pinscope.records.finding import Reading
from pinscope.records.run import Run
from pinscope.store.store import Store

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class OpenedRun:
    """A run and what follows from it, made when it is asked for.

    Attributes:
        run: its record: environment, parameters, status.
        observations: its rows as stored, in the order measured.
    """

    run: Run
    observations: Sequence[Row]

    @cached_property
    def rows(self) -> pd.DataFrame:
        """Every observation, warm-ups too, a column a field."""
        import pandas as pd  # noqa: PLC0415 - it takes a third of a second to import

        return pd.DataFrame.from_records(list(self.observations))

    @cached_property
    def cells(self) -> pd.DataFrame:
        """All counted observations of one combination of labels in a row: see :func:`~pinscope.analysis.cells.frame`.

        Raises:
            BadInput: the run is a timeline or a trace, or its rows make no sense.
        """
        return frame(cells_of(self.run, self.observations))

    @cached_property
    def reading(self) -> Reading:
        """Verdict, headline, tables and findings."""
        return read_run(self.run, self.observations)


def open_run(run_id: str) -> OpenedRun:
    """The run of that id: see :func:`pinscope.open_run`."""
    with Store() as store:
        run = store.run(run_id)
        return OpenedRun(run, list(store.observations(run.id)))
