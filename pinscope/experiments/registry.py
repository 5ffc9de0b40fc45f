"""The list of experiments, and of what else is kept as runs. A new one is one line here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.resources import files
from itertools import chain, islice
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, cast

from pinscope.analysis.columns import Columns, Stored, parsed
from pinscope.analysis.comparison import Comparison, Measured, verdict
from pinscope.analysis.figures import figures_of
from pinscope.analysis.models import link_error_findings
from pinscope.analysis.read_rows import NOTHING_ATTACHED, Attached, Kind, ReadRows, Row
from pinscope.analysis.statistics import OTHER_HOSTS, PLUS_MINUS
from pinscope.analysis.texts import NOTHING_WRONG, Texts, dearest_first, on_lab
from pinscope.charts.lazy import LazyCharts
from pinscope.errors import BadInput, PinScopeError, UnknownName
from pinscope.experiments.contract import AnyExperiment
from pinscope.records.run import ExperimentRun, Finding, Reading, Run, RunFigures, TimelineRun, TraceRun
from pinscope.text import quoted

if TYPE_CHECKING:
    from pinscope.charts.marks import Chart


@dataclass(frozen=True)
class Reader:
    """How runs of one kind are read.

    The code is imported when it is first asked for: a command needs one of them, and drawing needs Plotly, which takes
    a fifth of a second to import.
    """

    name: str
    run: type[Run]
    package: str
    most_figures: ClassVar[int | None] = None
    """That stand in a headline."""

    @property
    def kind(self) -> Kind:
        """What they are, and what is concluded from their rows."""
        return cast("Kind", self._module("reading").KIND)

    @property
    def texts(self) -> Texts:
        """The texts of the findings that its runs may have."""
        return cast("Texts", self._module("findings").TEXTS)

    def measured(self, run: Run, rows: Sequence[Row]) -> Any:
        """All that a run measured, as one object that the functions of the kind's files ask; ``None``: nothing yet."""
        return self._module("reading").of(run, rows)

    def read(self, run: Run, rows: Sequence[Row]) -> Reading:
        """What is concluded from the rows of a run, put together from the kind's ``reading`` and ``findings``."""
        measured = self.measured(run, rows)
        if measured is None:
            return Reading(headline=(), tables=(), findings=())
        reading = self._module("reading")
        concluded = self.findings(measured)
        return Reading(
            verdict=self.verdict(run, measured, concluded),
            headline=tuple(islice(reading.headline(measured), self.most_figures)),
            tables=tuple(table for table in reading.tables(measured) if table.rows),
            findings=concluded,
        )

    def verdict(self, run: Run, measured: Any, concluded: Sequence[Finding]) -> str | None:
        """The answer in one sentence. One that repeats what a finding says stands beside the findings."""
        findings = self._module("findings")
        if hasattr(findings, "verdict"):
            return cast("str | None", findings.verdict(measured, concluded))
        return cast("str | None", self._module("reading").verdict(measured))

    def findings(self, measured: Any) -> tuple[Finding, ...]:
        """The findings of what a run measured."""
        return () if measured is None else tuple(self._module("findings").findings(measured))

    def charts(self, run: Run, rows: Sequence[Row], attached: Attached = NOTHING_ATTACHED) -> Iterable[Chart]:
        """The figures of a run, from its rows, then from its attachments; of some kinds each is drawn when it is
        taken."""
        module = self._module("charts")
        with _figures_that_make_sense(run):
            measured = self.measured(run, rows)
            if measured is not None:
                yield from module.draw(run, measured)
            if attached.rows and hasattr(module, "draw_attached"):
                yield from module.draw_attached(rows, attached)

    def cells(self, measured: Any) -> Sequence[Any]:
        """What of a run is compared with others: objects whose class declares labels and values."""
        return list(self._module("comparison").cells_of(measured))

    def compared(self, comparison: Comparison) -> str:
        """The verdict over such runs."""
        return cast("str", self._module("comparison").verdict(comparison))

    def _module(self, name: str) -> ModuleType:
        return import_module(f"{self.package}.{name}")


class Entry(Reader):
    """An experiment: its runs are read, and it can be run."""

    most_figures: ClassVar[int | None] = 6

    def verdict(self, run: Run, measured: Any, concluded: Sequence[Finding]) -> str | None:
        """That of wrong data, which no other answer stands beside; else as of all kinds, on the host model named so."""
        wrong = getattr(measured, "wrong", NOTHING_WRONG)
        sentence = wrong.verdict or super().verdict(run, measured, concluded)
        return sentence and on_lab(cast("ExperimentRun", run).lab, sentence)

    def findings(self, measured: Any) -> tuple[Finding, ...]:
        """What the rules of the experiment find, the gravest and dearest first."""
        if measured is None:
            return ()
        wrong = getattr(measured, "wrong", NOTHING_WRONG)
        return dearest_first(chain(wrong.findings(), *(rule(measured) for rule in self._module("findings").RULES)))

    def cells(self, measured: Any) -> Sequence[Any]:
        return getattr(measured, "cells", ())

    def compared(self, comparison: Comparison) -> str:
        return verdict(comparison)

    @property
    def kind(self) -> Kind:
        return self.experiment

    @property
    def experiment(self) -> AnyExperiment:
        """What can be run."""
        return cast("AnyExperiment", self._module("experiment").EXPERIMENT)


_FOLDERS = (
    "bandwidth",
    "overlap",
    "page_tables",
    "registration",
    "topology",
    "allocation",
    "staging",
    "pinning_strategy",
    "while_serving",
    "access",
    "pressure",
    "dataloader",
    "scatter",
)
EXPERIMENTS: tuple[Entry, ...] = tuple(Entry(name, ExperimentRun, f"{__package__}.{name}") for name in _FOLDERS)
"""In the order in which they are shown."""


KEPT: tuple[Reader, ...] = (
    Reader("timeline", TimelineRun, "pinscope.live.timeline"),
    Reader("trace", TraceRun, "pinscope.tracing.trace"),
)
"""What is not an experiment and cannot be run, but is kept as runs and read like them."""


GONE = {"brim": "brim is part of pressure now: pinscope run pressure --set group=limited"}
"""Kinds of which runs may be stored, but that are no more → what to tell of them. Their runs are kept as they are."""


def readers() -> tuple[Reader, ...]:
    """Of everything that a stored run can be."""
    return (*EXPERIMENTS, *KEPT)


def find(name: str) -> Entry:
    """The experiment of that name.

    Raises:
        UnknownName: there is none; the message lists those there are.
    """
    for entry in EXPERIMENTS:
        if entry.name == name:
            return entry
    _refuse_gone(name)
    known = ", ".join(entry.name for entry in EXPERIMENTS)
    if name in [reader.name for reader in KEPT]:
        maker = {"timeline": "record", "trace": "trace"}[name]
        raise UnknownName(f"{name} is no experiment that can be run: `pinscope {maker}` keeps one; there are: {known}")
    raise UnknownName(f"no experiment {quoted(name)}; there are: {known}")


def _refuse_gone(name: str) -> None:
    if name in GONE:
        raise UnknownName(GONE[name])


PLACED = (
    "Host buffers and the threads that copy are on the NUMA node near the GPU, unless node or the method says "
    "otherwise; each row names the node on which the buffers lay (host_node)."
)
"""How all experiments are measured."""


def split_page(page: str) -> tuple[str, str]:
    """The text of an experiment's page in docs/: what stands under "Method" in one line, and all the rest."""
    method, _, rest = page.removeprefix(_METHOD).partition("\n## ") if page.startswith(_METHOD) else ("", "", page)
    return " ".join(method.split()), f"## {rest}" if method and rest else rest


_METHOD = "## Method\n"


def method(kind: Kind) -> str:
    """How the answer is measured, from docs/experiments/NAME.md, with what is the same for all experiments."""
    page = files("pinscope.manual") / "pages" / "experiments" / f"{kind.name}.md"
    own = split_page(page.read_text("utf-8"))[0] if page.is_file() else ""
    return (
        own if kind.name in [reader.name for reader in KEPT] else f"{own} {PLACED} {PLUS_MINUS} {OTHER_HOSTS}".strip()
    )


def find_reader(name: str) -> Reader:
    """How a stored run of that name is read.

    Raises:
        UnknownName: this version does not know such runs.
    """
    for reader in readers():
        if reader.name == name:
            return reader
    _refuse_gone(name)
    known = ", ".join(reader.name for reader in readers())
    raise UnknownName(f"no experiment {quoted(name)}; there are: {known}")


def _reader_of(run: Run) -> Reader:
    """How it is read. One from elsewhere may carry the name of another kind."""
    reader = find_reader(run.experiment)
    if not isinstance(run, reader.run):
        raise BadInput(f"run {run.id} is kept as a run of kind {run.kind}, which {run.experiment} is not")
    return reader


def read_run(run: Run, rows: Sequence[Row]) -> Reading:
    """Headline, tables and findings of a run, from its rows or from those that :func:`checked_rows` made of them.

    Raises:
        UnknownName: this version does not know the run's experiment.
        BadInput: the rows are not observations of that experiment, or the run is of another kind.
    """
    checked = checked_rows(run.experiment, rows)
    with _figures_that_make_sense(run):
        reading = _reader_of(run).read(run, checked)
    changes: dict[str, Any] = {"findings": (*reading.findings, *link_error_findings(run.environment))}
    if run.status not in ("running", "done") and run.verdict is None:  # part of the rows answers part of the question
        changes["verdict"] = None
    return reading.model_copy(update=changes)


def measured_run(run: Run, rows: Iterable[Row]) -> Measured:
    """A run as it is compared with others; errors as for :func:`read_run`."""
    reader, checked = _reader_of(run), checked_rows(run.experiment, rows)
    with _figures_that_make_sense(run):
        measured = reader.measured(run, checked)
        findings = (*reader.findings(measured), *link_error_findings(run.environment))
        return Measured(run, reader.cells(measured), findings)


def verdict_of(comparison: Comparison) -> str:
    """What a comparison tells, in one sentence, as its kind of run says it."""
    return find_reader(comparison.experiment).compared(comparison)


def answer_at_end(run: Run, rows: Sequence[Row]) -> dict[str, Any]:
    """The ``verdict``, the first ``figure`` and all ``figures`` of a run that has just been measured, as far as it has
    them.

    Raises nothing: what was measured is kept though it cannot be read; opening the run says why.
    """
    answer = dict[str, Any]()
    with suppress(Exception):
        checked = checked_rows(run.experiment, rows)
        reading = read_run(run, checked)
        answer = {"verdict": reading.verdict, "figure": next(iter(reading.headline), None)}
        answer["figures"] = run_figures(run, checked)
    return answer


def run_figures(run: Run, rows: Sequence[Row]) -> RunFigures | None:
    """The figures of an experiment's run, for a fleet; ``None`` where it cannot be read: opening it says why."""
    with suppress(PinScopeError):
        if isinstance(run, ExperimentRun):
            checked = checked_rows(run.experiment, rows)
            return figures_of(measured_run(run, checked), checked)
    return None


def draw_run(run: Run, rows: Sequence[Row], attached: Attached = NOTHING_ATTACHED) -> LazyCharts:
    """The charts of a run, each drawn when it is looked at; so late come errors that :func:`read_run` has at once.

    Args:
        attached: its attachments; without them the charts that need them are left out.
    """
    return LazyCharts(_reader_of(run).charts(run, checked_rows(run.experiment, rows), attached))


def checked_rows(name: str, rows: Iterable[Row]) -> ReadRows | Columns:
    """Rows as the experiment's observations write them, as many as a reading may rest on; those of a file or a
    database as columns. Errors as above."""
    if isinstance(rows, ReadRows | Columns):
        return rows
    kind = find_reader(name).kind
    if isinstance(rows, Stored) and (columns := parsed(kind.Observation, rows)):
        return columns
    checked = ReadRows(kind.Observation)
    try:
        checked.add(rows)
    except BadInput as error:
        raise BadInput(f"these are not observations of {kind.name}: {error}") from None
    return checked


@contextmanager
def _figures_that_make_sense(run: Run) -> Iterator[None]:
    """Rows that fit one by one may still give no figure together. Any other error is a fault of the reading."""
    try:
        yield
    except ArithmeticError as error:
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        raise BadInput(f"the observations of run {run.id} make no sense as {run.experiment} ({what})") from error
