"""The list of experiments. A new one is one line here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, cast

from pydantic import ValidationError

from pinscope.errors import BadInput, UnknownName
from pinscope.experiments.access import Access
from pinscope.experiments.allocation import Allocation
from pinscope.experiments.bandwidth import Bandwidth
from pinscope.experiments.contract import AnyExperiment, Row
from pinscope.experiments.dataloader import Dataloader
from pinscope.experiments.overlap import Overlap
from pinscope.experiments.page_tables import PageTables
from pinscope.experiments.pinning_strategy import PinningStrategy
from pinscope.experiments.pressure import Pressure
from pinscope.experiments.registration import Registration
from pinscope.records.finding import Reading
from pinscope.records.run import Run

if TYPE_CHECKING:
    from pinscope.charts.chart import Chart


@dataclass(frozen=True)
class Entry:
    """An experiment and the module that draws it.

    Attributes:
        experiment: the procedure.
        chart_module: module with ``draw(run, rows) -> list[Chart]``; by name, because drawing needs Plotly,
            which takes a fifth of a second to import, and most commands draw nothing.
    """

    experiment: AnyExperiment
    chart_module: str

    def charts(self, run: Run, rows: Sequence[Row]) -> list[Chart]:
        """The figures of a run, from its rows."""
        return cast("list[Chart]", import_module(self.chart_module).draw(run, rows))


EXPERIMENTS: tuple[Entry, ...] = (
    Entry(Bandwidth(), "pinscope.charts.bandwidth"),
    Entry(Overlap(), "pinscope.charts.overlap"),
    Entry(PageTables(), "pinscope.charts.page_tables"),
    Entry(Registration(), "pinscope.charts.registration"),
    Entry(Allocation(), "pinscope.charts.allocation"),
    Entry(PinningStrategy(), "pinscope.charts.pinning_strategy"),
    Entry(Access(), "pinscope.charts.access"),
    Entry(Pressure(), "pinscope.charts.pressure"),
    Entry(Dataloader(), "pinscope.charts.dataloader"),
)


def find(name: str) -> Entry:
    """The experiment of that name.

    Raises:
        UnknownName: there is none; the message lists those there are.
    """
    for entry in EXPERIMENTS:
        if entry.experiment.name == name:
            return entry
    known = ", ".join(entry.experiment.name for entry in EXPERIMENTS)
    raise UnknownName(f"no experiment {name!r}; there are: {known}")


def read_run(run: Run, rows: Sequence[Row]) -> Reading:
    """Headline, tables and findings of a run.

    Raises:
        UnknownName: this version does not know the run's experiment.
        BadInput: the rows are not observations of that experiment.
    """
    checked = checked_rows(run.experiment, rows)
    with _figures_that_make_sense(run):
        return find(run.experiment).experiment.read(run, checked)


def draw_run(run: Run, rows: Sequence[Row]) -> list[Chart]:
    """The charts of a run; errors as for :func:`read_run`."""
    checked = checked_rows(run.experiment, rows)
    with _figures_that_make_sense(run):
        return find(run.experiment).charts(run, checked)


def checked_rows(name: str, rows: Sequence[Row]) -> list[Row]:
    """Rows as the experiment's observations write them; fields of a newer version are dropped. Errors as above."""
    experiment = find(name).experiment
    try:
        return [experiment.Observation.model_validate(row).model_dump() for row in rows]
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        what = f"field {field!r} does not fit" if field else first["msg"].removeprefix("Value error, ")
        raise BadInput(f"these are not observations of {experiment.name}: {what}") from None


@contextmanager
def _figures_that_make_sense(run: Run) -> Iterator[None]:
    """Rows from elsewhere may hold what nobody measured: a copy that took no time, an event without its value."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        raise BadInput(f"the observations of run {run.id} make no sense as {run.experiment} ({what})") from error
