"""Traces programs that run already: the recorder comes into them, records, and leaves them as they were."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path, PurePath
from threading import Event
from typing import Any

from pinscope.errors import BadInput, Cancelled
from pinscope.live.source import open_source
from pinscope.probes.attachable import Attachable, descendants_of, read_attachable, uses_cuda
from pinscope.probes.proc import HERE
from pinscope.records.environment import Environment
from pinscope.records.labels import NO_LABELS
from pinscope.records.snapshot import Snapshot
from pinscope.records.trace_row import TraceRow
from pinscope.runner.injection import check_machine, hand_over
from pinscope.runner.traced_program import (
    LOOK_SECONDS,
    ask_cupti,
    ended_with_this,
    make_spool,
    opened_folder,
    refusal,
    remove_spool,
)
from pinscope.runner.tracing import Traced, Tracing, new_run, pinned_rates
from pinscope.store.store import Store
from pinscope.tracing.attached import LEFT, PROBLEM, start_code
from pinscope.tracing.line_totals import unnumbered
from pinscope.tracing.process_merge import Ended
from pinscope.tracing.spool import Scope, Spool
from pinscope.tracing.spool_folder import SpoolFolder
from pinscope.tracing.trace.reading import TraceParams

START_SECONDS = 20.0
"""So long a program may take to come to the code that begins the recording."""
LEAVE_SECONDS = 20.0
"""So long the recorder may take to leave: it waits for calls that have begun."""
_PAUSE_SECONDS = 0.02


@dataclass(frozen=True)
class Targets:
    """What is attached to.

    Attributes:
        processes: the first stands for the program.
        left_out: processes among them that use CUDA and are no Python.
        is_all: none of those that they have started is left out.
    """

    processes: Sequence[Attachable]
    left_out: Sequence[int] = ()
    is_all: bool = True


def targets_of(pids: Iterable[int], with_children: bool) -> Targets:
    """The processes to attach to.

    Args:
        pids: those that are named.
        with_children: also those that they have started and that use CUDA.

    Raises:
        BadInput: one cannot be attached to, with the reason; nothing has happened.
    """
    named = list(dict.fromkeys(pids))
    below = [child for pid in named for child in descendants_of(pid)]
    chosen, left_out = [_attachable(pid) for pid in named], []
    if with_children:
        children = {pid: read_attachable(pid).value for pid in below if uses_cuda(pid)}
        left_out = [pid for pid, child in children.items() if child is None]
        chosen += [child for child in children.values() if child is not None and child.pid not in named]
        users = [process for process in chosen if process.uses_cuda]
        chosen = users or chosen  # a launcher only waits for those that it has started
    for process in chosen:
        check_machine(process)
    if len({process.cupti for process in chosen} - {None}) > 1:
        raise BadInput("these processes have loaded different libraries of CUPTI: attach to them one after the other")
    return Targets(chosen, left_out, with_children or not set(below) - set(named))


def _attachable(pid: int) -> Attachable:
    answer = read_attachable(pid)
    if answer.value is None or pid == os.getpid():
        raise BadInput(f"process {pid}: {answer.reason or 'that is this PinScope itself'}")
    return answer.value


def trace_attached(
    store: Store,
    targets: Targets,
    environment: Environment,
    scope: Scope,
    announce: Callable[[str], object],
    labels: Mapping[str, Any] = NO_LABELS,
) -> Traced:
    """Record the processes together, and store the trace.

    Args:
        store: where it is kept.
        targets: the processes.
        environment: this machine.
        scope: what is recorded of them.
        announce: gets a line once all of them are recorded.
        labels: what the run is called.

    Raises:
        BadInput: the recorder cannot run in one of them; all are as they were.
        NotPossible: nothing can be recorded here.
        StoreFailed: the run could not be stored.
        Cancelled: somebody ended it before it began.
    """
    first = targets.processes[0]
    setup = ask_cupti(
        environment.cuda_driver, next(filter(None, (process.cupti for process in targets.processes)), None)
    )
    params = TraceParams(
        program=first.command[1:],
        attached=tuple(process.pid for process in targets.processes),
        **asdict(scope),
        **pinned_rates(store, environment),
    )
    scratches = tempfile.TemporaryDirectory(prefix="pinscope-trace-", ignore_cleanup_errors=True)
    with scratches as scratch, opened_folder(scratch) as folder, _interruptible() as interrupted:
        path = folder / "spool"
        path.mkdir(0o700)
        (folder / "kept").mkdir()
        # Should PinScope die, recorders end without its files, and should nobody remove these, a minute later.
        spool = make_spool(path, setup, scope, time.time_ns() + 60 * 10**9)
        recording = _Recording(spool, Path(scratch), str(setup["library"]), targets, interrupted)
        with ended_with_this(Path(scratch)) as watched:
            watched(None)
            try:
                recording.begin()
                announce(f"recording for {scope.for_seconds:g} s; Ctrl-C ends it, and the program goes on")
                tracing = Tracing(store, new_run(params, environment, labels), folder / "kept", scope)
                return tracing.follow(lambda look: recording.follow(look, scope.for_seconds or 0.0))
            finally:
                recording.end()
                remove_spool(path)


@contextmanager
def _interruptible() -> Iterator[Event]:
    """What is set once somebody wants the recording to end: it is kept, and the programs are left in order."""
    event = Event()
    before = {number: signal.signal(number, lambda *_: event.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Recording:
    """Of several processes, in one spool.

    Args:
        spool: of the first; the others have folders in it.
        scratch: the folder that it lies in.
        library: CUPTI's.
        targets: the processes.
        interrupted: set when it is to end.
    """

    def __init__(self, spool: Spool, scratch: Path, library: str, targets: Targets, interrupted: Event) -> None:
        self._spool, self._scratch, self._library, self._targets = spool, scratch, library, targets
        self._interrupted = interrupted
        self._handed_over: list[Attachable] = []
        self._before_bytes: int | None = None

    def begin(self) -> None:
        """Until all of them are recorded.

        Raises:
            BadInput: one of them cannot be.
            NotPossible: CUPTI refuses.
        """
        with open_source(gpus=False) as source:
            self._before_bytes = pinned_of(source.take(), [target.pid for target in self._targets.processes])
        with ThreadPoolExecutor(len(self._targets.processes)) as pool:
            for _ in pool.map(self._hand_over, self._targets.processes):
                pass
        latest = time.monotonic() + START_SECONDS
        for target in self._targets.processes:
            while not self._has_started(target):
                if self._interrupted.is_set():
                    raise Cancelled("ended before the recording began; nothing was recorded")
                if time.monotonic() > latest:
                    raise BadInput(
                        f"process {target.pid}: its main thread ran no Python code within {START_SECONDS:g} s: it "
                        "waits in a call; nothing was recorded"
                    )
                time.sleep(_PAUSE_SECONDS)

    def _hand_over(self, target: Attachable) -> None:
        if not target.is_there():
            raise BadInput(f"process {target.pid}: it has ended, or become another program")
        handover = SpoolFolder.of(self._spool.folder.stat(), str(self._scratch / "spool")).handover
        given = {
            "folder": handover,
            "library": self._library,
            "started": target.started,
            "is_first": target is self._targets.processes[0],
        }
        hand_over(target, self._scratch / "kept", lambda memory: start_code({**given, "memory": memory}))
        self._handed_over.append(target)

    def _folder(self, target: Attachable) -> Path:
        is_first = target is self._targets.processes[0]
        return self._spool.folder if is_first else self._spool.folder / f"process.{target.pid}.0"

    def _has_started(self, target: Attachable) -> bool:
        if self._said(PROBLEM, target):
            raise BadInput(f"process {target.pid}: {self._file(PROBLEM, target).read_text('utf-8', 'replace')}")
        process = Spool(self._folder(target), known=self._spool.config)
        if refused := process.document("refused.json"):
            raise refusal(refused)
        if process.document("started.json") is not None:
            return True
        if not target.is_there():
            raise BadInput(f"process {target.pid}: it ended, or became another program, before it was recorded")
        return False

    def follow(self, look: Callable[[Spool], None], seconds: float) -> Ended:
        """Look at the spool now and then until the time is over, or all processes are.

        Args:
            look: what empties it.
            seconds: how long to record.
        """
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and any(map(self._goes_on, self._targets.processes)):
            if self._interrupted.wait(min(left, LOOK_SECONDS)):
                break
            look(self._spool)
        gone = [target for target in self._targets.processes if not target.is_there()]
        stuck = self.end()
        look(self._spool)
        begun, ended = (self._spool.document(f"{word}.json") for word in ("started", "ended"))
        return Ended(
            int(begun["ns"]) if begun else time.time_ns(),
            int(ended["ns"]) if ended else time.time_ns(),
            None,
            tuple(_left_out(self._targets.left_out)),
            before_bytes=self._before_bytes,
            notes=(
                *(f"Process {target.pid} ended, or became another program, while it was recorded." for target in gone),
                *(f"The recorder had not left process {target.pid} after {LEAVE_SECONDS:g} s." for target in stuck),
            ),
        )

    def _goes_on(self, target: Attachable) -> bool:
        return target.is_there() and not self._said(LEFT, target)

    def end(self) -> list[Attachable]:
        """Have the recorders leave, and wait for that; those that do not."""
        self._spool.stop()
        latest = time.monotonic() + LEAVE_SECONDS
        stuck = list(self._handed_over)
        while stuck and time.monotonic() < latest:
            stuck = [target for target in stuck if self._is_in(target)]
            time.sleep(_PAUSE_SECONDS if stuck else 0)
        return stuck

    def _is_in(self, target: Attachable) -> bool:
        has_come = self._folder(target).joinpath("started.json").exists()
        return has_come and self._goes_on(target) and not self._said(PROBLEM, target)

    def _file(self, name: str, target: Attachable) -> Path:
        return self._spool.folder / f"{name}.{target.pid}"

    def _said(self, name: str, target: Attachable) -> bool:
        return self._file(name, target).exists()


def pinned_of(snapshot: Snapshot, pids: Collection[int]) -> int | None:
    """Pinned memory of processes: of cudaHostAlloc, and what is known to be registered; ``None`` if that of one is not
    known."""
    holders = [holder for holder in snapshot.holders if holder.pid in pids]
    if any(holder.host_alloc_bytes is None for holder in holders):
        return None
    return sum((holder.host_alloc_bytes or 0) + (holder.registered_bytes or 0) for holder in holders)


def _left_out(pids: Iterable[int]) -> Iterator[TraceRow]:
    for pid in pids:
        name = PurePath(HERE.link(f"/proc/{pid}/exe").value or "").name
        yield unnumbered(kind="unrecorded", process=pid, child="native", executable=name)
