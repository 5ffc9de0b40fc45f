"""Traces a program, with --what-if once more with lines copied from pinned memory, and keeps what was recorded."""

from __future__ import annotations

import hashlib
import json
import linecache
import os
import subprocess
import sys
import tempfile
import termios
import threading
import tty
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

from pinscope.errors import BadInput, NotPossible, PinScopeError
from pinscope.experiments.bandwidth.reading import Copies
from pinscope.experiments.registry import answer_at_end, checked_rows
from pinscope.experiments.scatter.reading import Scatter
from pinscope.probes.process import current_process
from pinscope.records.environment import Environment
from pinscope.records.labels import NO_LABELS
from pinscope.records.run import ExperimentRun, Progress, Run, TraceRun
from pinscope.records.trace_row import LARGE_BYTES, TraceRow
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
from pinscope.store.safe_writer import SafeWriter
from pinscope.store.store import Store
from pinscope.store.tables import StoredRow
from pinscope.tracing.line_totals import numbered, unnumbered
from pinscope.tracing.places import library_folders
from pinscope.tracing.process_merge import MOST_RECORDS, Ended, ProcessFiles, attachments
from pinscope.tracing.redirect import ACCOUNT, Line
from pinscope.tracing.sites import Seen, Site, seen_in
from pinscope.tracing.spool import Scope, Spool
from pinscope.tracing.stacks import file_label
from pinscope.tracing.trace.reading import TraceParams
from pinscope.tracing.trace.what_if import TO_HOST


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
        for run in _nearest(store, environment, experiment):
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


def _nearest(store: Store, environment: Environment, experiment: str) -> list[ExperimentRun]:
    models = {device.name for device in environment.devices}
    runs = [
        run
        for run in store.each_run(experiment=experiment, lab="cuda")
        if isinstance(run, ExperimentRun) and run.observations
        if run.recording or run.environment.machine_id == environment.machine_id
    ]
    return sorted(runs, key=lambda run: (run.recording, run.recording and (not run.gpu or run.gpu.name not in models)))


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
        tracing = Tracing(store, new_run(params, environment, labels), kept, scope, variant.rows)

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
        more_rows: from the spool's folder, once the program has ended.
    """

    def __init__(
        self, store: Store, run: Run, kept: Path, scope: Scope, more_rows: Callable[[Path], Iterable[TraceRow]]
    ) -> None:
        self._store = store
        self._run = store.add(run)
        self._kept = kept
        self._scope = scope
        self._more_rows = more_rows
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
        answer = {} if outcome.error else answer_at_end(self._writer.run, self._writer.rows)
        saved = self._writer.close(
            status=outcome.status,
            error=outcome.error,
            finished_at=datetime.now(UTC),
            progress=Progress(fraction=1.0, message=outcome.status),
            **answer,
        )
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
        rows = (*merged.rows(), *numbered(self._more_rows(files.spool.folder)))
        self._writer.append([row.model_dump(mode="json", exclude_none=True) for row in rows])
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


MOST_PINNED_BYTES = 4 << 30
"""Of all buffers together; less where the host has not four times as much."""
PINNED_BATCHES = "the DataLoader that it iterates over pinned its batches"
LEFT_BATCHES = "the DataLoader that it iterates over left {:,} parts of its batches as they are: {}"
LINGER_SECONDS = 2.0
"""After the program's end its stdout is read for so long at most: a child of it may hold it open."""
_CHANGES = {"pin", "wait"}
_ALLOWED = "--what-if takes pin or wait, or with a line, such as pin:train.py:33"


Lines = Sequence[tuple[str, int]]
"""Files, without links, and lines in them."""


class Request(NamedTuple):
    """What --what-if asks for.

    Attributes:
        change: ``pin``, or ``wait`` behind asynchronous copies.
        lines: where. Empty: of ``pin`` every line that the first run shows to copy large pieces from pageable memory
            more than once; of ``wait`` every line that copies asynchronously.
    """

    change: str
    lines: Lines


def parse_request(texts: Sequence[str], script: str) -> Request | None:
    """What is to be changed; ``None``: nothing.

    Args:
        texts: of each option.
        script: beside which files are looked for, too.

    Raises:
        BadInput: no such form, file or line.
    """
    if not texts:
        return None
    change, *others = sorted({text.partition(":")[0] for text in texts})
    if others and {change, *others} <= _CHANGES:
        raise BadInput("--what-if takes either pin or wait: run the command once for each")
    lines = [_parse_line(text, script) for text in texts if text not in _CHANGES]
    if lines and len(lines) < len(texts):
        raise BadInput(f"{_ALLOWED}; {change} alone means every line")
    return Request(change, tuple(dict.fromkeys(lines)))


def _parse_line(text: str, script: str) -> tuple[str, int]:
    kind, _, place = text.partition(":")
    file, _, line = place.rpartition(":")
    if kind not in _CHANGES or not file or not line.isdecimal():
        raise BadInput(f"{_ALLOWED}; not {text!r}")
    folders = (Path(), Path(script).parent)
    path = next((folder / file for folder in folders if (folder / file).is_file()), None)
    if path is None:
        raise BadInput(f"--what-if: there is no file {file}")
    lines = linecache.getlines(str(path))
    if not 1 <= int(line) <= len(lines):
        count = f"{len(lines):,} {'line' if len(lines) == 1 else 'lines'}"
        raise BadInput(f"--what-if: {file} has {count}, and no line {int(line)}")
    return file_label(str(path.resolve())), int(line)


@dataclass(frozen=True)
class Compared:
    """Both runs.

    Attributes:
        before: the program as it is.
        after: with lines pinned; ``None`` where it was not run again.
        problem: why it was not, or what went wrong in it.
    """

    before: Traced
    after: Traced | None = None
    problem: str | None = None

    @property
    def second(self) -> Traced | None:
        """The run with lines pinned, if it went well: only then can the two be compared."""
        return None if self.problem or self.after is None or self.after.run.error else self.after


def run_twice(
    trace: Callable[[Variant], Traced], wanted: Lines, environment: Environment, announce: Callable[[str], object]
) -> Compared:
    """Run a program as it is, then with lines pinned; what it writes to stdout then is compared, not shown.

    Args:
        trace: traces the program, and keeps the trace.
        wanted: of :func:`parse_request`.
        environment: this machine.
        announce: gets a line before the second run.
    """
    with HeardStdout(pass_on=True) as stdout:
        before = trace(Variant(stdout=stdout.descriptor))
        written = stdout.finish()
    if before.exit_code or before.run.error:
        return Compared(before, None, "the program did not end well, so it was not run again")
    seen = seen_in(before.run, checked_rows(before.run.experiment, before.rows))
    chosen = list(dict.fromkeys(wanted or map(place_of_site, _chosen(seen))))
    sites = [site for site in seen.sites if site.row["direction"] == "h2d" and place_of_site(site) in chosen]
    named = {place_of_site(site): site.row["file"] for site in sites}
    lines = [(named.get(line, line[0]), line[1]) for line in chosen]
    if not lines:
        return Compared(before, None, "no line copies large pieces from pageable memory more than once: nothing to pin")
    places = ", ".join(f"{Path(file).name}:{line}" for file, line in lines)
    announce(f"the program runs again, copying from pinned memory at {places}")
    with HeardStdout(pass_on=False) as stdout, tempfile.TemporaryFile() as stderr:
        variant = Variant(
            stdin=subprocess.DEVNULL,  # the first run has read ours
            stdout=stdout.descriptor,
            stderr=stderr.fileno(),
            rows=lambda spool: _rows(seen, sites, spool, stdout.finish() == written),
            redirect=_plan(lines, not wanted, environment),
            params={"what_if": tuple(f"{file}:{line}" for file, line in lines), "what_if_of": before.run.id},
        )
        after = trace(variant)
        problem = f"with lines pinned {how_it_ended(after.exit_code, stderr)}" if after.exit_code else None
    return Compared(before, after, problem)


def place_of_site(site: Site) -> tuple[str, int]:
    """Its file, without links, and its line."""
    file = site.row["file"]
    return str(Path(file).resolve()) if file else "", site.row["line"]


def _chosen(seen: Seen) -> Iterator[Site]:
    """The first run's copies to the GPU that are to be pinned where no lines are asked for."""
    for site in seen.pageable:
        if site.row["direction"] == "h2d" and site.row["file"] and site.row["large_count"] > 1 and seen.is_worth(site):
            yield site


def _plan(lines: Sequence[tuple[str, int]], all_loaders: bool, environment: Environment) -> dict[str, Any]:
    return {
        "lines": lines,
        "libraries": library_folders(),
        "large_bytes": LARGE_BYTES,
        "all_loaders": all_loaders,
        "most_bytes": min(MOST_PINNED_BYTES, environment.limits.host_available_bytes // 4),
    }


def how_it_ended(code: int, stderr: IO[bytes]) -> str:
    """A program that failed, with the last line that it wrote."""
    stderr.seek(0)
    words = stderr.read().decode(errors="replace").strip().splitlines()
    how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return f"the program {how}{f': {words[-1][:200]}' if words else ''}"


class HeardStdout:
    """A descriptor for a program's stdout. What it writes is summed up, and passed on to our own if wanted.

    Where our own stdout is a terminal, the program gets one, too: programs write otherwise into a pipe.

    Args:
        pass_on: write everything to our own stdout.
    """

    def __init__(self, pass_on: bool) -> None:
        self._pass_on = pass_on
        self._sum = hashlib.sha256()
        self._read, self.descriptor = _terminal() if os.isatty(1) else os.pipe()
        self._thread = threading.Thread(target=self._hear, name="stdout of the program", daemon=True)
        self._finished = False

    def __enter__(self) -> Self:
        sys.stdout.flush()
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.finish()

    def finish(self) -> str:
        """The sum of all that was written, once the program has ended."""
        if not self._finished:
            self._finished = True
            os.close(self.descriptor)
            self._thread.join(LINGER_SECONDS)
        return self._sum.hexdigest()

    def _hear(self) -> None:
        with suppress(OSError):  # a terminal whose last writer is gone; or nobody takes it any more
            while piece := os.read(self._read, 1 << 16):
                self._sum.update(piece)
                while self._pass_on and piece:
                    piece = piece[os.write(1, piece) :]
        os.close(self._read)  # who still writes learns it from the kernel


def _terminal() -> tuple[int, int]:
    """Both ends of a terminal as large as ours; what is written arrives as it is."""
    ours, its = os.openpty()
    tty.setraw(its)
    termios.tcsetwinsize(its, termios.tcgetwinsize(1))
    return ours, its


def _rows(seen: Seen, sites: Sequence[Site], spool: Path, is_same: bool) -> Iterator[TraceRow]:
    """What the second run's trace says beside its own records: the first run, and the account of each line.

    Args:
        seen: the first run.
        sites: of it, the copies to the GPU that the chosen lines made, those from pinned memory among them: the second
            run's are counted likewise.
        spool: of the second run.
        is_same: both wrote the same to stdout.
    """
    program = seen.program or {}
    kept = {name: program[name] for name in ("seconds", "active_seconds", "copies", "kernels")}
    yield unnumbered(kind="before", same_output=is_same, **kept, **_together(sites))
    path = spool / ACCOUNT
    account = json.loads(path.read_bytes()) if path.exists() else {"lines": [], "loaders": []}
    lines: list[tuple[Any, str, str | None]] = [(line, "{:,} copies: {}", None) for line in account["lines"]]
    lines += [(Line(site.row["file"], site.row["line"]).document(), "", why) for site, why in _not_chosen(seen, sites)]
    loaders = [(loader, LEFT_BATCHES, PINNED_BATCHES) for loader in account["loaders"]]
    for redirected, left, otherwise in [*lines, *loaders]:
        yield unnumbered(
            kind="redirected",
            file=redirected["file"],
            line=redirected["line"],
            count=redirected["copies"],
            bytes=redirected["bytes"],
            gather_seconds=redirected["gather_ns"] / 1e9,
            wait_seconds=redirected["wait_ns"] / 1e9,
            pin_seconds=redirected["pin_ns"] / 1e9,
            pinned_bytes=redirected["pinned_bytes"],
            reason="; ".join(left.format(count, why) for why, (count, _) in redirected["left"].items()) or otherwise,
        )


def _not_chosen(seen: Seen, chosen: Sequence[Site]) -> Iterator[tuple[Site, str]]:
    """Large pageable copies that the second run leaves alone, and why."""
    for site in seen.pageable:
        if site.row["file"] and site not in chosen:
            few = "a single copy: pinning pays where it repeats" if site.row["large_count"] == 1 else "not chosen"
            yield site, TO_HOST if site.row["direction"] == "d2h" else few


def _together(sites: Sequence[Site]) -> dict[str, Any]:
    """Their copies, added up."""
    rows, saved = [site.row for site in sites], [site.saved_in_place for site in sites]
    idle = [row["idle_seconds"] for row in rows]
    return {
        "count": sum(row["count"] for row in rows),
        "bytes": sum(row["bytes"] for row in rows),
        "call_seconds": sum(row["call_seconds"] or 0.0 for row in rows),
        "copy_seconds": sum(row["copy_seconds"] or 0.0 for row in rows),
        "idle_seconds": None if None in idle else sum(idle),
        "first_seconds": min((row["first_seconds"] or 0.0 for row in rows), default=0.0),
        "estimated_seconds": None if None in saved else sum(seconds or 0.0 for seconds in saved),
    }
