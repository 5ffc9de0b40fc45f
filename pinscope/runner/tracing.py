"""Traces a program, and keeps what was recorded."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pinscope.errors import BadInput, NotPossible, PinScopeError
from pinscope.experiments.bandwidth.reading import Copies
from pinscope.experiments.registry import checked_rows
from pinscope.experiments.scatter.reading import Scatter
from pinscope.planning.prices import nearest_runs
from pinscope.probes.process import current_process
from pinscope.records.environment import Environment
from pinscope.records.labels import NO_LABELS
from pinscope.records.run import ExperimentRun, Run, TraceRun
from pinscope.runner.jobs import new_id
from pinscope.runner.program import Program
from pinscope.runner.traced_program import (
    AS_IT_IS,
    ProgramSignals,
    Variant,
    ask_cupti,
    opened_folder,
    remove_spool,
    run_program,
)
from pinscope.runner.worker import Outcome, Reporter
from pinscope.store.bundle import write_bundle
from pinscope.store.documents import StoredRow
from pinscope.store.safe_writer import SafeWriter
from pinscope.store.store import Store
from pinscope.tracing.process_merge import MOST_RECORDS, Ended, ProcessFiles, attachments
from pinscope.tracing.spool import Scope, Spool
from pinscope.tracing.trace.reading import TraceParams


def pinned_rates(store: Store, environment: Environment) -> dict[str, Any]:
    """Parameters of a trace: bytes per second of large pinned copies to and from the GPU, of pageable ones to it, and
    of pieces that one thread gathers in a pinned buffer and copies together; and where these come from.

    The newest run of this machine counts; else the recording of the same model of GPU, else the newest recording.

    Raises:
        StoreFailed: the database cannot be read.
    """
    known: dict[str, Any] = {}
    sources = ("bandwidth", _copying, "pinned_from"), ("scatter", _gathering, "gathered_from")
    for experiment, rates_of, origin in sources:
        for run in nearest_runs(store, experiment, environment):
            try:
                rates = rates_of(run, store.observations(run.id))
            except (BadInput, ArithmeticError):  # an imported run may hold anything
                continue
            if rates:
                gpu = run.gpu.name if run.gpu else "an unknown GPU"
                known |= {**rates, origin: f"recording on {gpu}" if run.recording else f"run {run.id} on this machine"}
                break
    return known


def _copying(run: ExperimentRun, rows: Sequence[StoredRow]) -> dict[str, Any]:
    copies = Copies(run, checked_rows(run.experiment, rows))
    rates = {
        f"{memory}_{direction}": curve[-1].bytes_per_second
        for memory, direction in (("pinned", "h2d"), ("pinned", "d2h"), ("pageable", "h2d"))
        if (curve := copies.engine(memory, direction))
    }
    return rates if rates.keys() - {"pageable_h2d"} else {}


def _gathering(run: ExperimentRun, rows: Sequence[StoredRow]) -> dict[str, Any]:
    by_cpu = [row for row in rows if row.get("way") == "cpu" and row.get("threads") == 1]
    rates: dict[str, dict[int, float]] = {"h2d": {}, "d2h": {}}
    for cell in Scatter.of(checked_rows(run.experiment, by_cpu)).cells:
        if cell.layout == "scattered" and cell.direction in rates:
            rates[cell.direction][cell.bytes] = cell.bytes_per_second
    sizes = sorted(rates["h2d"].keys() & rates["d2h"].keys())
    given = {f"gathered_{direction}": [known[size] for size in sizes] for direction, known in rates.items()}
    return {"gathered_bytes": sizes, **given} if sizes else {}


@dataclass(frozen=True)
class Traced:
    """A trace that has ended.

    Attributes:
        run: as it stands in the store.
        rows: its observations.
        exit_code: of the program; below 0 the signal that killed it; ``None`` where it was a part of one.
        saved: the file that holds the rows because the database failed; ``None`` if the database has them.
        gap: why not all of the program was recorded; ``None`` if it was.
    """

    run: Run
    rows: Sequence[StoredRow]
    exit_code: int | None
    saved: Path | None
    gap: str | None


def trace_program(
    store: Store,
    program: Program,
    environment: Environment,
    scope: Scope,
    variant: Variant = AS_IT_IS,
    labels: Mapping[str, Any] = NO_LABELS,
) -> Traced:
    """Run the program to its end and store the trace.

    Args:
        store: where it is kept.
        program: what is run.
        environment: this machine.
        scope: what of it is recorded.
        variant: how it is run.
        labels: what the run is called.

    Raises:
        NotPossible: nothing can be recorded here; the program was not started.
        StoreFailed: the run could not be stored; the program was not started.
    """
    setup = ask_cupti(environment.cuda_driver, path=program.path)
    params = TraceParams(
        program=program.typed,
        python=program.python,
        cupti=f"{setup['library']}, of the {setup['owner']}" if program.path else None,
        **asdict(scope),
        **pinned_rates(store, environment),
        **variant.params,
    )
    scratches = tempfile.TemporaryDirectory(prefix="pinscope-trace-", ignore_cleanup_errors=True)
    with ProgramSignals() as signals, scratches as scratch, opened_folder(scratch) as folder:
        spool, kept = folder / "spool", folder / "kept"
        spool.mkdir(0o700)
        kept.mkdir()
        tracing = Tracing(store, new_run(params, environment, labels), kept, scope, variant.at_end)

        def run(look: Callable[[Spool], None]) -> Ended:
            path = Path(scratch, spool.name)
            return run_program(spool, path, setup, program.command, signals, scope=scope, look=look, variant=variant)

        try:
            return tracing.follow(run)
        finally:
            remove_spool(spool)


def write_traces(path: Path, traces: Iterable[Traced], store: Store) -> None:
    """A bundle of the traces that are in the store.

    Raises:
        PinScopeError: the file could not be written; the runs are in the database.
    """
    stored = [(traced.run, traced.rows) for traced in traces if traced.saved is None]
    try:
        if stored:
            write_bundle(path, stored, store.parts)
    except PinScopeError as error:
        names = " ".join(run.id for run, _ in stored)
        raise PinScopeError(f"{error}; what was recorded is kept: pinscope export {names} -o FILE") from None


def new_run(params: TraceParams, environment: Environment, labels: Mapping[str, Any] = NO_LABELS) -> Run:
    """A run that begins now."""
    return TraceRun(
        id=new_id(),
        status="running",
        params={name: value for name, value in params.model_dump(mode="json").items() if value is not None},
        environment=environment,
        created_at=datetime.now(UTC),
        process=current_process(),
        **labels,
    )


class Tracing:
    """One trace, from the program's start to the stored run.

    Args:
        store: where it is kept.
        run: as it begins.
        kept: an empty folder, for the records.
        scope: what is recorded.
        at_end: called with the spool's folder once the program has ended.
    """

    def __init__(
        self, store: Store, run: Run, kept: Path, scope: Scope, at_end: Callable[[Path], object] = lambda _: None
    ) -> None:
        self._store = store
        self._run = store.add(run)
        self._kept = kept
        self._scope = scope
        self._at_end = at_end
        self._files: ProcessFiles | None = None
        self._writer = SafeWriter(store, self._run)
        self._exit_code: int | None = None
        self._lost: str | None = None
        """Why records could not be kept, while the program ran."""
        self._gap: str | None = None

    def follow(self, run: Callable[[Callable[[Spool], None]], Ended]) -> Traced:
        """Run the program; whatever happens to it, what was recorded is stored.

        Args:
            run: runs it to its end; calls what it is given with the spool now and then, and at its end.

        Raises:
            NotPossible: nothing can be recorded here.
        """
        refusal: list[NotPossible] = []

        def work() -> Any:
            try:
                with Reporter(self._writer, self._run) as reporter:
                    ended = run(lambda spool: self._look(spool, reporter))
                    self._exit_code = ended.exit_code
                    self._keep(ended, reporter)
            except NotPossible as error:
                refusal.append(error)
                raise
            return "cancelled" if self._writer.cancelled else "done"

        outcome = Outcome.of(work)
        saved = outcome.keep(self._writer, has_answer=not outcome.error)
        if refusal:  # nothing was recorded, and nothing was run
            if saved is None:
                self._store.delete(self._run.id)
            raise refusal[0]
        stored = self._writer.run if saved is not None else self._store.run(self._run.id)
        return Traced(stored, self._writer.rows, self._exit_code, saved, self._gap)

    def _look(self, spool: Spool, reporter: Reporter) -> None:
        """Empty the spool while the program runs. Where that fails, the recording ends; the program goes on."""
        if self._lost is not None:
            return
        try:
            self._files = self._files or ProcessFiles(spool, self._kept)
            self._files.take()
            reporter.progress(0.0, f"{self._files.records:,} events recorded")
        except Exception as error:  # noqa: BLE001 - whatever it was, the program must not end for it
            self._lost = _reason(error)
            spool.stop()

    def _keep(self, ended: Ended, reporter: Reporter) -> None:
        """Store rows and events once the program has ended."""
        files = self._files
        if files is None:
            raise PinScopeError(f"nothing was recorded: {self._lost}")
        faults = list(files.said("fault"))  # before the buffers are taken away from processes that outlive the program
        try:
            files.take(ended=True)
        except Exception as error:  # noqa: BLE001 - what was kept until then is read
            self._lost = self._lost or _reason(error)
        early = [f"one trace holds at most {MOST_RECORDS:,} records"] if files.is_full else []
        for note in ended.notes:
            reporter.note(note)
        for reason in (early := [*early, *faults]):
            reporter.note(f"The recording ended before the program did: {reason}")
        has_exited = ended.exit_code is not None and ended.exit_code >= 0
        is_over = ended.has_become_another or files.spool.document("ended.json") is not None
        if not early and has_exited and not is_over:
            if files.spool.document("started.json") is None:
                raise PinScopeError(
                    "nothing was recorded: the program's Python did not import PinScope's sitecustomize"
                )
            early = ["it became another user, or ended or became another program by a way that Python does not see"]
            reporter.note(f"What the program did last may be missing: {early[0]}.")
        self._gap = early[-1] if early else None
        if self._lost is not None:
            self._gap = self._lost
            reporter.note(f"Not all was recorded: {self._lost}.")
        for which in files.said("full"):
            reporter.note(f"Not all lines are named: {which}.")
        refused = tuple(files.refused())
        others = tuple(row for row in ended.unrecorded if row.process not in {other.process for other in refused})
        ended = replace(ended, unrecorded=(*refused, *others))
        merged = files.join(ended, self._scope.is_part)
        self._writer.append([row.model_dump(mode="json", exclude_none=True) for row in merged.rows()])
        self._at_end(files.spool.folder)
        try:
            for name, schema, batches in attachments(merged):
                with self._store.attach(self._run.id, name, schema) as table:
                    for batch in batches:
                        table.write(batch)
        except PinScopeError as error:
            reporter.note(f"The single events could not be stored: {error}")


def _reason(error: Exception) -> str:
    """Why records could not be kept, one line."""
    why = error.strerror if isinstance(error, OSError) and error.strerror else f"{type(error).__name__}: {error}"
    return " ".join(f"the records could not be kept ({why})".split())
