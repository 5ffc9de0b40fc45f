"""What a program of the user's own asks of PinScope: measure, open, find, plan."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import TimeoutExpired
from tempfile import TemporaryDirectory
from typing import Any

import pinscope
from pinscope.errors import BadInput, MeasurementFailed, StoreFailed
from pinscope.planning import plan as planning
from pinscope.planning.reading import plan_as_stated
from pinscope.probes.environment import capture_environment
from pinscope.python.opened import Answer, Run, Runs
from pinscope.records.run import ExperimentRun, LabKind, Origin, Reading, Status
from pinscope.runner.jobs import Job, Request, cancel, ended_run, prepare, reconcile, start
from pinscope.store.bundle import SUFFIX, open_bundle
from pinscope.store.choice import ORDERS, Wanted, fits
from pinscope.store.documents import checked_labels
from pinscope.store.store import Store

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
    is_seen = sys.stderr.isatty() or not {"ipykernel", "marimo"}.isdisjoint(sys.modules)
    show = progress if callable(progress) else _line(run.experiment) if progress and is_seen else None
    last = run.progress
    while job.child.poll() is None:
        with suppress(TimeoutExpired):
            job.child.wait(LOOK_SECONDS)
        with suppress(StoreFailed):  # the run goes on, and keeps what it measures
            known = store.run(run.id).progress
            if show is not None and (known.fraction, known.message) != (last.fraction, last.message):
                show(known.fraction, known.message)
            last = known
    if show is not None and not callable(progress):
        sys.stderr.write("\r\x1b[K")


def _line(experiment: str) -> ProgressTaker:
    """One line on stderr, written again and again, as terminals and notebooks show it."""

    def show(fraction: float, message: str) -> None:
        sys.stderr.write(f"\r\x1b[K{experiment} {fraction:4.0%} {message[:60]}")
        sys.stderr.flush()

    return show


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
