"""What ``import pinscope`` offers a program of the user's own: runs with their figures and findings, frames of pandas,
charts and files; and the functions that measure, open, find, compare and plan."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

import pinscope
from pinscope.analysis import comparison
from pinscope.analysis.cells import cell_rows
from pinscope.analysis.comparison import ComparedCell, Side
from pinscope.errors import BadInput, MeasurementFailed
from pinscope.experiments.registry import checked_rows, measured_run, verdict_of
from pinscope.planning import plan as planning
from pinscope.planning.reading import plan_as_stated
from pinscope.probes.environment import capture_environment
from pinscope.records import run as records
from pinscope.records.run import ExperimentRun, Finding, LabKind, Origin, Quantity, Reading, Status, Table
from pinscope.report.comparison import Compared, write_comparison
from pinscope.report.comparison import render as render_comparison
from pinscope.report.facts import Document, by_severity, called, open_document, place
from pinscope.report.write import render, write_report
from pinscope.runner.jobs import Job, Request, ended_run, open_store, prepare, progress_of, running
from pinscope.store.attachments import attached_by
from pinscope.store.bundle import SUFFIX, BundleReader, open_bundle, write_bundle
from pinscope.store.choice import Wanted
from pinscope.store.documents import StoredRow, checked_labels
from pinscope.store.store import Store
from pinscope.text import one_line
from pinscope.tracing.limits import exceeded, parse_threshold
from pinscope.tracing.sites import seen_in

if TYPE_CHECKING:
    import pandas as pd

    from pinscope.charts.marks import Chart

ProgressTaker = Callable[[float, str], object]
"""Is given how far a run is, 0 to 1, and what it does now."""
PAGE = (
    '<iframe srcdoc="{page}" title="{title}" sandbox="allow-scripts allow-downloads" loading="lazy" '
    'style="width: 100%; height: 640px; border: 0"></iframe>'
)
"""A report in a notebook: its scripts reach neither the notebook nor, by the report's own policy, any network."""


class Answer:
    """What was concluded: of a run, or of a plan."""

    reading: Reading

    @property
    def verdict(self) -> str | None:
        """The answer in one sentence."""
        return self.reading.verdict

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What was concluded, with evidence and advice; the severest first."""
        return tuple(by_severity(self.reading.findings))

    @property
    def figures(self) -> Mapping[str, Quantity]:
        """Key → figure; a key, such as ``pinned.h2d.rate``, is the same in all runs of an experiment. ``float(figure)``
        is its value in SI units, ``figure.low`` and ``figure.high`` are the ends of its interval."""
        return {figure.key or figure.name: figure for figure in self.reading.headline}

    @property
    def tables(self) -> Mapping[str, pd.DataFrame]:
        """Title → table, as pages show it; a heading says its unit."""
        return {table.title: _frame(table.rows, list(_headings(table))) for table in self.reading.tables}


def _headings(table: Table) -> Iterator[str]:
    for heading, unit in zip(table.columns, table.units, strict=True):
        yield heading if unit in ("text", "count") else f"{heading} ({unit})"


def _frame(rows: Iterable[Any], columns: list[str] | None = None) -> pd.DataFrame:
    import pandas as pd  # noqa: PLC0415 - it takes a third of a second to import

    return pd.DataFrame.from_records(list(rows), columns=columns)


class Run(Answer):
    """A run, and what follows from it, made when it is asked for.

    Attributes:
        id: as every command takes it; ``name``: what its user calls it.
        record: what is kept of it beside its observations: environment, parameters, status.
        bundle: the file that it is read from each time, which must stay where it is; ``None``: the database.
    """

    def __init__(self, record: records.Run, bundle: Path | None = None) -> None:
        self.record = record
        self.bundle = bundle
        self.id, self.name = record.id, record.name

    def _parts(self, run: records.Run, attachment: records.Attachment) -> Iterator[bytes]:
        with _source(self.bundle) as source:
            yield from source.parts(run, attachment)

    @cached_property
    def observations(self) -> Sequence[StoredRow]:
        """Its observations as stored, in the order measured."""
        with _source(self.bundle) as source:
            return list(source.observations(self.id))

    @cached_property
    def rows(self) -> pd.DataFrame:
        """Every observation, warm-ups too, a column a field; names end in their unit."""
        return _frame(self.observations)

    @cached_property
    def cells(self) -> pd.DataFrame:
        """All counted observations of one combination of labels in a row, times and rates; names end in their unit. Of
        a median ``.low`` and ``.high`` are the ends of its interval, ``.repeats`` how many observations it has. Of a
        trace the program and its lines, of a timeline the host and those who held much.

        Raises:
            BadInput: its rows make no sense.
        """
        return _frame(cell_rows(measured_run(self.record, self.observations).cells))

    @cached_property
    def document(self) -> Document:
        """What its reports are made from."""
        return open_document(self.record, self.observations, attached_by(self.record, self._parts))

    @property
    def reading(self) -> Reading:  # type: ignore[override]  # made when it is asked for
        """Verdict, headline, tables and findings."""
        return self.document.reading

    @property
    def charts(self) -> Mapping[str, Chart]:
        """Key → chart; its ``figure`` is one of Plotly."""
        return {chart.key: chart for chart in self.document.charts}

    def exceeded(self, **limits: str | Literal[True]) -> list[str]:
        """A line for each limit that a trace exceeds: ``pageable="64KiB"``, ``idle="5%"``, ``held="0.5s"``,
        ``error=True``, as ``pinscope trace --fail-on`` takes them.

        Raises:
            BadInput: the run is no trace, or a limit makes no sense.
        """
        if not isinstance(self.record, records.TraceRun):
            raise BadInput(f"limits are those of a trace, and {self.id} is of kind {self.record.kind}")
        texts = (figure if most is True else f"{figure}={most}" for figure, most in limits.items())
        thresholds = list(map(parse_threshold, texts))
        seen = seen_in(self.record, checked_rows(self.record.experiment, self.observations))
        return [line.removeprefix("--fail-on").lstrip(" :") for line in exceeded(seen, thresholds)]

    def save(self, path: str | Path) -> Path:
        """Write a report, or with the suffix ``.pinscope`` a bundle, to a file that is not there yet; the file.

        Raises:
            BadInput: no such format, no such folder, or there is such a file.
        """
        path = Path(path)
        if path.suffix.lower() == SUFFIX:
            write_bundle(path, [(self.record, self.observations)], self._parts)
        else:
            write_report(path, [self.document])
        return path

    def edit(self, **labels: Any) -> Run:
        """The run with another ``name``, ``tags``, ``note`` or ``baseline``, as it is stored from now on.

        Raises:
            BadInput: a label that could not be written, a recording, or a run that is in no database.
        """
        changes = checked_labels(**labels)
        with Store() as store:
            return Run(store.update(self.id, **changes))

    def __repr__(self) -> str:
        words = (self.record.experiment, self.id, called(self.record), place(self.record), self.record.status)
        return f"<pinscope {', '.join(filter(None, words))}: {one_line(self.record.verdict or 'no verdict')}>"

    def _repr_html_(self) -> str:
        page = render([replace(self.document, rows=())], ".html").decode()  # observations to take out make it large
        return PAGE.format(page=escape(page), title=escape(self.document.title))

    def _repr_markdown_(self) -> str:
        return render([self.document], ".md").decode()


class Runs(tuple[Run, ...]):
    """Runs, the newest first."""

    @property
    def latest(self) -> Run:
        """The one that was started last.

        Raises:
            LookupError: there is none.
        """
        if not self:
            raise LookupError("there is no such run")
        return self[0]


# What is asked


def _source(bundle: Path | None) -> AbstractContextManager[Store | BundleReader]:
    """The bundle; without one the database."""
    return open_bundle(bundle) if bundle else open_store()


def run(
    experiment: str,
    *,
    lab: LabKind | None = None,
    device: int = 0,
    quick: bool = False,
    name: str | None = None,
    tags: Sequence[str] = (),
    progress: bool | ProgressTaker = True,
    **params: Any,
) -> Run:
    """Measure, in a process of its own, and store the run. Ctrl-C cancels it and keeps what was measured.

    Args:
        experiment: its name, such as ``bandwidth``.
        lab: ``cuda`` or ``host``; by default a GPU if one can be used here, else the host model.
        device: number of the GPU, as nvidia-smi counts them.
        quick: fewer sizes and repeats.
        name: what to call the run.
        tags: words to find it by.
        progress: write how far it is on stderr, where that is a terminal or a notebook; or a function that is given it.
        params: of the experiment, as text or as values: ``sizes="64KiB,1MiB"``, ``repeats=8``.

    Raises:
        BadInput: an unknown experiment or parameter, or a value out of range.
        NotPossible: this machine cannot do it, with what it has and what is needed.
        MeasurementFailed: it broke off; what it measured is kept.
    """
    request = Request(experiment, lab, device, quick, params, checked_labels(name=name, tags=tuple(tags)))
    with open_store() as store:
        prepared = prepare(request, capture_environment())
        with running(store, prepared) as job:  # an interrupt cancels it
            _follow(store, prepared, job, progress)
        record, _, is_stored = ended_run(store, prepared.id)
    if record.status != "done" or not is_stored:
        why = record.error or "the database does not take it"
        raise MeasurementFailed(f"run {record.id} is {record.status}: {why}; pinscope.open(id) has what it measured")
    return Run(record)


def _follow(store: Store, run: ExperimentRun, job: Job, progress: bool | ProgressTaker) -> None:
    """Say how far it is until its child ends."""
    is_line = progress is True and (sys.stderr.isatty() or not {"ipykernel", "marimo"}.isdisjoint(sys.modules))
    for seen in progress_of(store, job):
        if isinstance(seen, records.Progress) and callable(progress):
            progress(seen.fraction, seen.message)
        elif isinstance(seen, records.Progress) and is_line:
            _write_line(f"{run.experiment} {seen.fraction:4.0%} {seen.message[:60]}")
    if is_line:
        _write_line("")


def _write_line(text: str) -> None:
    """Write the line on stderr again, as terminals and notebooks show it."""
    sys.stderr.write(f"\r\x1b[K{text}")
    sys.stderr.flush()


def open(run: str | Path) -> Run:
    """A run: by its id or the beginning of it, its name, ``latest``, ``@-1`` and the like, or of a bundle.

    Args:
        run: what a command takes as ID; or a file that ends in ``.pinscope`` and holds one run.

    Raises:
        UnknownName: no such run, or several.
        BadInput: the file is no bundle, or holds several runs: ``runs(file=…)`` gives them all.
        StoreFailed: it cannot be read.
    """
    if isinstance(run, Path) or run.endswith(SUFFIX):
        there = runs(file=run)
        if len(there) != 1:
            raise BadInput(f"{run} holds {len(there)} runs; pinscope.runs(file=…) gives them all")
        return there[0]
    with open_store() as store:
        return Run(store.run(run))


def runs(
    experiment: str | None = None,
    *,
    file: str | Path | None = None,
    lab: Origin | None = None,
    status: Status | None = None,
    host: str | None = None,
    tag: str | Sequence[str] | None = None,
    search: str | None = None,
    baseline: bool | None = None,
    recordings: bool = False,
) -> Runs:
    """Runs that fit all that is given, the newest first; ``runs("bandwidth", tag="before").latest`` is one.

    Args:
        experiment: of this experiment; ``timeline`` and ``trace`` for what ``pinscope record`` and ``trace`` keep.
        file: those of a bundle; else those of the database.
        lab: measured on ``cuda`` or ``host``, or ``live`` or ``traced``.
        status: such as ``done``.
        host: name of the machine.
        tag: with this tag, or all of these.
        search: with all these words in id, name, tags, note, verdict, host or GPU; ``#tag``: with this tag.
        baseline: with a star, or without.
        recordings: also those that ship with PinScope.

    Raises:
        BadInput: the file is no bundle.
        StoreFailed: the database cannot be read.
    """
    wanted = Wanted(experiment=experiment, lab=lab, status=status, host=host, search=search, baseline=baseline)
    wanted |= {"tags": (tag,) if isinstance(tag, str) else tag, "recordings": recordings}
    bundle = None if file is None else Path(file).absolute()
    with _source(bundle) as source:
        return Runs(Run(record, bundle) for record in source.each_run(**wanted))


Taken = Run | str | Path
"""A run, or what :func:`open` takes."""


class Comparison:
    """The second side against the first; see ``pinscope compare``.

    Attributes:
        core: all of it, as :class:`pinscope.analysis.comparison.Comparison`.
        verdict: the answer in one sentence.
        machines: what differs in the machines and the software → on each side.
        came: findings that all runs of the second side have, and none of the first; ``went``: the other way round.
    """

    def __init__(self, made: comparison.Comparison) -> None:
        self.core, self.verdict = made, verdict_of(made)
        self.machines = {key.title: (key.a, key.b) for key in made.machines.different}
        self.came, self.went = made.findings["came"], made.findings["went"]

    def worse(self, than: float = 0.0) -> list[ComparedCell]:
        """Cells that are worse by more than this share, and by more than chance: their whole interval lies beyond it.
        The worst first."""
        return [cell for cell in self.core.shown if cell.verdict == "worse" and cell.least_change > than]

    def better(self, than: float = 0.0) -> list[ComparedCell]:
        """Likewise those that are better, the best first."""
        return [cell for cell in reversed(self.core.shown) if cell.verdict == "better" and cell.least_change > than]

    @cached_property
    def frame(self) -> pd.DataFrame:
        """A row for each figure of each cell that both sides have: its labels, both values in SI units, their ratio
        (second over first) with its interval, and ``better``, ``worse``, ``same`` or ``unknown``."""
        return _frame(
            {**cell.labels, "figure": cell.figure, "unit": cell.value.unit, "a": cell.a.value, "b": cell.b.value}
            | {"ratio": cell.ratio, "ratio.low": cell.low, "ratio.high": cell.high, "verdict": cell.verdict}
            for cell in self.core.cells
        )

    def save(self, path: str | Path) -> Path:
        """Write a report (.html, .md, .json) to a file that is not there yet; the file.

        Raises:
            BadInput: no such format, no such folder, or there is such a file.
        """
        write_comparison(Path(path), Compared([self.core], []))
        return Path(path)

    def _rendered(self, suffix: str) -> str:
        return render_comparison(Compared([self.core], []), suffix).decode()

    def __repr__(self) -> str:
        return self._rendered(".md")

    _repr_markdown_ = __repr__

    def _repr_html_(self) -> str:
        return PAGE.format(page=escape(self._rendered(".html")), title="Comparison")


def compare(a: Taken | Iterable[Taken], b: Taken | Iterable[Taken]) -> Comparison:
    """The second against the first: cells by their labels, lines of traces by their text, holders of timelines.

    Args:
        a: a run, or several that count together, which tell smaller differences.
        b: likewise, set against the first.

    Raises:
        BadInput: runs of several experiments, the host model against a GPU, or a side without runs.
    """
    return Comparison(comparison.compare(_side("A", a), _side("B", b)))


def _side(name: str, taken: Taken | Iterable[Taken]) -> Side:
    runs = [taken] if isinstance(taken, Run | str | Path) else list(taken)
    opened = (run if isinstance(run, Run) else open(run) for run in runs)
    return Side(name, [measured_run(run.record, run.observations) for run in opened])


@dataclass(frozen=True)
class Plan(Answer):
    """What pinned memory will take, and whether that is safe; nothing is pinned.

    Attributes:
        plan: its amounts and prices, as ``pinscope plan --json`` writes them.
        reading: verdict, headline, tables and findings.
    """

    plan: planning.Plan
    reading: Reading

    @property
    def safety(self) -> planning.Safety:
        """How safe it is."""
        return planning.safety_of(self.plan)

    def __repr__(self) -> str:
        return f"<pinscope plan: {self.verdict}>"


def plan(pinned: int | str | None = None, **stated: Any) -> Plan:
    """What it takes to pin an amount: page tables, contexts, time, and whether it is safe.

    Args:
        pinned: by each process, in bytes or as text such as ``87.5GiB``; or give ``pinned_total``.
        stated: the other options of ``pinscope plan``: ``processes``, ``shared``, ``gpus``, ``like``, ``host_memory`` …

    Raises:
        InvalidParameter: an option that makes no sense, or no amount.
        StoreFailed: the database cannot be read.
    """
    with Store(at_once=False) as store:
        return Plan(*plan_as_stated({"pinned": pinned, **stated}, store, capture_environment()))


def load_magic(shell: Any) -> None:
    """Give an IPython shell the magic ``%%pinscope``: a cell of a notebook, traced."""

    def traced(line: str, cell: str) -> Run | None:
        """Run the cell, and show which of its lines copy pageable memory. Beside the magic stands a name for it."""
        name = line.strip() or "cell"
        source = f"\n{shell.transform_cell(cell)}"  # the line of the magic is the cell's first
        with TemporaryDirectory(prefix="pinscope-cell-") as folder:  # from where its lines are read and named
            file = Path(folder, f"{re.sub(r'[^a-zA-Z0-9]+', '_', name)}.py")
            file.write_text(source, "utf-8")
            with pinscope.trace(name) as part:
                exec(compile(source, file, "exec", dont_inherit=True), shell.user_ns)  # noqa: S102 - as a cell is run
        return part.result

    shell.register_magic_function(traced, "cell", "pinscope")
