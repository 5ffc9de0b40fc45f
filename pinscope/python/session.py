"""What a program of the user's own asks of PinScope: measure, open, find, compare, plan."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from subprocess import TimeoutExpired
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pinscope
from pinscope.analysis import comparison
from pinscope.analysis.comparison import ComparedCell, Side
from pinscope.errors import BadInput, MeasurementFailed, StoreFailed
from pinscope.experiments.registry import measured_run, verdict_of
from pinscope.planning import plan as planning
from pinscope.planning.reading import plan_as_stated
from pinscope.probes.environment import capture_environment
from pinscope.python.opened import PAGE, Answer, Run, Runs
from pinscope.records.run import ExperimentRun, LabKind, Origin, Reading, Status
from pinscope.report.comparison import Compared, render, write_comparison
from pinscope.runner.jobs import Job, Request, cancel, ended_run, prepare, reconcile, start
from pinscope.store.bundle import SUFFIX, open_bundle
from pinscope.store.choice import ORDERS, Wanted, fits
from pinscope.store.documents import checked_labels
from pinscope.store.store import Store

if TYPE_CHECKING:
    import pandas as pd

LOOK_SECONDS = 0.2
ProgressTaker = Callable[[float, str], object]
"""Is given how far a run is, 0 to 1, and what it does now."""


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
    labels = checked_labels(name=name, tags=tuple(tags))
    request = Request(experiment, lab, device, quick, params, labels)
    with Store() as store:
        reconcile(store)
        prepared = prepare(request, capture_environment())
        job = start(store, prepared)
        try:
            _follow(store, prepared, job, progress)
        except BaseException:
            with suppress(BadInput, StoreFailed):  # it has just ended
                cancel(store, prepared.id)
            job.child.wait()
            raise
        record, _, is_stored = ended_run(store, prepared.id)
    if record.status != "done" or not is_stored:
        raise MeasurementFailed(
            f"run {record.id} is {record.status}: {record.error or 'the database does not take it'}; "
            "pinscope.open(id) has what it measured"
        )
    return Run(record)


def _follow(store: Store, run: ExperimentRun, job: Job, progress: bool | ProgressTaker) -> None:
    """Say how far it is until its child ends."""
    is_line = progress is True and (sys.stderr.isatty() or not {"ipykernel", "marimo"}.isdisjoint(sys.modules))
    said = run.progress
    while job.child.poll() is None:
        with suppress(TimeoutExpired):
            job.child.wait(LOOK_SECONDS)
        with suppress(StoreFailed):  # the run goes on, and keeps what it measures
            known = store.run(run.id).progress
            if (known.fraction, known.message) != (said.fraction, said.message):
                if callable(progress):
                    progress(known.fraction, known.message)
                elif is_line:
                    _write_line(f"{run.experiment} {known.fraction:4.0%} {known.message[:60]}")
            said = known
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
    with Store() as store:
        reconcile(store)
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
        search: with all these words in id, name, tags, note, verdict, host or GPU.
        baseline: with a star, or without.
        recordings: also those that ship with PinScope.

    Raises:
        BadInput: the file is no bundle.
        StoreFailed: the database cannot be read.
    """
    wanted = Wanted(
        experiment=experiment,
        lab=lab,
        status=status,
        host=host,
        tags=(tag,) if isinstance(tag, str) else tag,
        search=search,
        baseline=baseline,
        recordings=recordings,
    )
    if file is not None:
        path = Path(file).absolute()
        with open_bundle(path) as bundle:
            fitting = [record for record in bundle.runs() if fits(record, wanted)]
        return Runs([Run(record, path) for record in sorted(fitting, key=ORDERS["newest"])])
    with Store() as store:
        reconcile(store)
        return Runs([Run(record) for record in store.each_run(**wanted)])


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
        self.came, self.went = made.came, made.went

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
        write_comparison(path, Compared([self.core], []))
        return path

    def __repr__(self) -> str:
        return self._repr_markdown_()

    def _repr_markdown_(self) -> str:
        return render(Compared([self.core], []), ".md").decode()

    def _repr_html_(self) -> str:
        page = render(Compared([self.core], []), ".html").decode()
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
        concluded: what follows.
    """

    plan: planning.Plan
    concluded: Reading

    @property
    def reading(self) -> Reading:
        """Verdict, headline, tables and findings."""
        return self.concluded

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
