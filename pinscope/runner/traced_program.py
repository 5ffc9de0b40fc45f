"""A program of the user's own as a child process with the recorder in it: its start, its end, its signals."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePath
from types import FrameType
from typing import Any, Self

from pinscope.errors import NoDevice, NotPossible
from pinscope.isolation import bare_command, command
from pinscope.probes.environment import Extra, install_command
from pinscope.probes.gpu import Nvml
from pinscope.probes.proc import HERE, Proc
from pinscope.probes.process import UVM, ending_with_this
from pinscope.records.trace_row import ChildKind, TraceRow
from pinscope.store.recordings import recorded_answer
from pinscope.tracing.descendants import NOT_STARTED, variables
from pinscope.tracing.line_totals import unnumbered
from pinscope.tracing.places import library_folders
from pinscope.tracing.process_merge import Ended
from pinscope.tracing.spool import Scope, Spool
from pinscope.tracing.spool_folder import CHILDREN, FAILED, SHELL, STACK, STARTED, SpoolFolder

_OF_A_TERMINAL = frozenset({signal.SIGINT, signal.SIGQUIT})
_OURS = frozenset(
    {
        signal.SIGKILL,
        signal.SIGSTOP,
        signal.SIGTSTP,
        signal.SIGTTIN,
        signal.SIGTTOU,
        signal.SIGCONT,
        signal.SIGCHLD,
        signal.SIGPIPE,
        signal.SIGURG,
        signal.SIGWINCH,
        signal.SIGABRT,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGILL,
        signal.SIGSEGV,
        signal.SIGSYS,
        signal.SIGTRAP,
        signal.SIGXFSZ,
    }
)
"""Signals that cannot be caught, that end nothing, or that say something of the process that gets them."""
LOOK_SECONDS = 0.25
"""How often the spool is emptied."""
SETUP_SECONDS = 60.0
"""CUPTI's answer takes half a second; a hanging driver must not hang us."""
_ANOTHER_PROFILER = 39
"""CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED."""
_NO_RIGHTS = 35
"""CUPTI_ERROR_INSUFFICIENT_PRIVILEGES."""
_INJECTION = ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID")
"""Set by Nsight Systems and other profilers that load themselves into CUDA programs."""
_WATCH = """\
import os, shutil, signal, sys
program, over = sys.stdin.readline().strip(), sys.stdin.readline()
if not over:
    if program:
        os.kill(int(program), signal.SIGKILL)
    shutil.rmtree(sys.argv[1], ignore_errors=True)
"""
_OTHER_PROFILER = "one profiler at a time can follow a CUDA program: end the other one, or run without it"


@dataclass(frozen=True)
class Variant:
    """How a program is run, where that is not as the user would.

    Attributes:
        stdin, stdout, stderr: descriptors that it gets; ``None``: ours.
        redirect: what is copied from pinned memory instead, for :mod:`pinscope.tracing.redirect`.
        waits: lines behind whose asynchronous copies it waits, for :mod:`pinscope.tracing.waits`.
        checks: keep the sums of the arrays that it saves or names, for :mod:`pinscope.tracing.checks`.
        params: further parameters of the trace.
        at_end: called with its spool's folder, once the program has ended.
    """

    stdin: int | None = None
    stdout: int | None = None
    stderr: int | None = None
    redirect: Mapping[str, Any] | None = None
    waits: Sequence[tuple[str, int]] | None = None
    checks: bool = False
    params: Mapping[str, Any] = field(default_factory=dict)
    at_end: Callable[[Path], object] = lambda _: None


AS_IT_IS = Variant()


def ask_cupti(cuda: str | None, library: str | None = None, path: Sequence[str] = ()) -> Mapping[str, Any]:
    """What the recorder must know of CUPTI here.

    Args:
        cuda: version of CUDA that the driver supports, for the advice; ``None`` where it does not say.
        library: CUPTI's, if a program has loaded it already; else it is looked for.
        path: folders that the program imports from, if it runs in another environment than PinScope.

    Raises:
        NoDevice: no driver.
        NotPossible: no library fits or works, or another profiler is attached; the first of these.
    """
    if not path and (sys.flags.ignore_environment or sys.flags.no_site):
        raise NotPossible("under -E, -I or -S Python lets no recorder into a program: start PinScope without it")
    # A profiler would load itself into this process, too.
    alone = {name: value for name, value in os.environ.items() if name not in _INJECTION}
    with tempfile.TemporaryFile() as file:  # stdout may have what the user's sitecustomize prints
        question = json.dumps({"library": library, "path": list(path)})
        setup = command("pinscope.tracing.recorder_setup", str(file.fileno()), question)
        try:
            answer = subprocess.run(
                setup,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=SETUP_SECONDS,
                check=False,
                env=alone,
                pass_fds=[file.fileno()],
                preexec_fn=ending_with_this(),
            )
        except subprocess.TimeoutExpired:
            raise NotPossible(f"CUPTI did not answer within {SETUP_SECONDS:g} s") from None
        file.seek(0)
        written = file.read()
    try:
        answered: dict[str, Any] = json.loads(written)
    except ValueError:
        reason = next(iter(reversed(answer.stderr.strip().splitlines())), f"exit code {answer.returncode}")
        raise NotPossible(f"CUPTI does not work here: {reason[:200]}") from None
    if problem := answered.get("problem"):
        raise _explained(problem, " ".join(str(answered["reason"]).split())[:300], cuda)
    injected = {name: os.environ.get(name) for name in _INJECTION}
    attached = next((name for name, value in injected.items() if value and "libcupti" not in value), None)
    if attached:
        raise NotPossible(f"another profiler is attached ({attached} is set); {_OTHER_PROFILER}")
    return answered


def _explained(problem: str, reason: str, cuda: str | None) -> NotPossible:
    if problem == "no driver":
        return NoDevice(f"there is no NVIDIA driver here, and a trace needs a GPU{recorded_answer('trace')}")
    extra: Extra = "trace12" if cuda and cuda.startswith("12.") else "trace13"
    install, other = install_command(extra), "trace13" if extra == "trace12" else "trace12"
    by_version = f"it must fit the driver's CUDA version: {install}, or {other}"
    if problem == "missing":
        return NotPossible(f"a trace needs CUPTI's library ({reason}){f': {install}' if cuda else f'; {by_version}'}")
    return NotPossible(f"CUPTI does not work here ({reason}); {by_version}")


class ProgramSignals:
    """While it is entered, signals are the program's: those that a terminal sends reach it anyway, others are handed
    on. Nothing ends us before the trace is stored. Signals that are ignored stay so, here and in the program."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._came_early: list[int] = []
        self._before: dict[int, Any] = {}

    def send_to(self, child: subprocess.Popen[bytes]) -> None:
        """Hand signals on to this process, also those that came before it was started."""
        self._child = child
        while self._came_early:
            child.send_signal(self._came_early.pop(0))

    def __enter__(self) -> Self:
        for number in signal.valid_signals() - _OURS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._hand_on)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _hand_on(self, number: int, frame: FrameType | None) -> None:
        del frame
        if number in _OF_A_TERMINAL:
            return
        if self._child is None:
            self._came_early.append(number)
        else:
            self._child.send_signal(number)


def _inherited_files() -> list[int]:
    """Descriptors that we were given to hand on, such as those of ``<(…)`` and ``3<FILE`` in a shell. Python's own and
    those of well-kept libraries are not inherited; the NVIDIA driver's are ours, whatever they are."""
    inherited = []
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the one by which the folder was listed
            number, is_driver = int(path.name), str(path.readlink()).startswith("/dev/nvidia")
            if number > 2 and os.get_inheritable(number) and not is_driver:
                inherited.append(number)
    return inherited


def run_program(
    folder: Path,
    path: Path,
    setup: Mapping[str, Any],
    command: Sequence[str],
    signals: ProgramSignals,
    *,
    scope: Scope,
    look: Callable[[Spool], None],
    variant: Variant = AS_IT_IS,
) -> Ended:
    """Run it to its end, with our working folder, environment and (but for its variant) standard streams.

    Args:
        folder: an empty one that this user alone may enter, which becomes the spool.
        path: by which the program finds it.
        setup: of :func:`ask_cupti`.
        command: what starts it.
        signals: which it gets.
        scope: what of it is recorded.
        look: called now and then while it runs, so that the spool does not grow, and at its end.
        variant: how it is run.

    Raises:
        NotPossible: another profiler is attached, or CUPTI refuses; the program was not started.
    """
    begun = time.time_ns()
    spool = make_spool(folder, setup, scope, begun, variant)
    handover = SpoolFolder.of(folder.stat(), str(path)).handover
    closed = [number for number, stream in enumerate((sys.__stdin__, sys.__stdout__, sys.__stderr__)) if stream is None]
    with ended_with_this(path.parent) as watched:
        child = subprocess.Popen(
            command,
            stdin=variant.stdin,
            stdout=variant.stdout,
            stderr=variant.stderr,
            env={**os.environ, **variables(handover, setup["library"])},
            pass_fds=_inherited_files(),
            preexec_fn=partial(_close, closed),  # noqa: PLW1509 - also none: posix_spawn would have signals ignored
        )
        watched(child.pid)
        signals.send_to(child)
        children = Children(child.pid, handover, folder)
        emptied = time.monotonic()
        while child.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                child.wait(children.pause_seconds if scope.children else LOOK_SECONDS)
                break
            if time.monotonic() - emptied >= LOOK_SECONDS:
                look(spool)
                emptied = time.monotonic()
            if scope.children:
                children.look()
    ended = time.time_ns()
    started = spool.document("started.json")
    if child.returncode == NOT_STARTED and started is None:
        raise refusal(spool.document("refused.json") or {"code": None, "reason": "the recorder could not begin"})
    spool.stop()  # processes that outlive the program write no more
    look(spool)
    return Ended(
        int(started["ns"]) if started else begun,
        ended,
        child.returncode,
        tuple(children.unrecorded()),
        children.unseen() if scope.children else None,
        children.has_become_another(child.pid),
    )


def _close(descriptors: Iterable[int]) -> None:
    """In the program, before it begins: what was closed when we began, and SQLite has opened for itself."""
    for descriptor in descriptors:
        with suppress(OSError):
            os.close(descriptor)


@contextmanager
def ended_with_this(folder: Path) -> Iterator[Callable[[int | None], None]]:
    """While it is entered, the process whose number it is given, if any, is killed as soon as this one is gone, and the
    folder removed. The kernel could kill it, too, but the program would see that (PR_GET_PDEATHSIG)."""
    with subprocess.Popen(
        bare_command(_WATCH, str(folder)),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as watcher:
        assert watcher.stdin is not None  # noqa: S101 - it is a pipe
        pipe = watcher.stdin.fileno()

        def say(number: int | None) -> None:
            with suppress(OSError):  # somebody has killed it
                os.write(pipe, f"{'' if number is None else number}\n".encode())

        try:
            yield say
        finally:
            say(0)


def make_spool(
    folder: Path, setup: Mapping[str, Any], scope: Scope, begun_ns: int, variant: Variant = AS_IT_IS
) -> Spool:
    """A spool with all that a recorder must know.

    Args:
        folder: an empty one.
        setup: of :func:`ask_cupti`.
        scope: what is recorded.
        begun_ns: from when on the scope counts its seconds.
        variant: how the program is run.
    """
    changes = {"redirect": variant.redirect, "waits": variant.waits, "checks": variant.checks}
    config = {**setup, "libraries": library_folders(), **changes, **scope.config(begun_ns)}
    del config["library"]  # code is loaded from no path that a file names
    (folder / "config.part").write_text(json.dumps(config), "ascii")
    (folder / "config.part").rename(folder / "config.json")  # a short part may be over before anything else is done
    return Spool(folder, known=config)


@contextmanager
def opened_folder(path: str) -> Iterator[Path]:
    """A path of a folder of this user that leads to it whatever becomes of its name: it may lie where other users
    write, too.

    Raises:
        NotPossible: another one has its name already.
    """
    descriptor = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise NotPossible(f"another user changes {Path(path).parent}: set TMPDIR to a folder of your own")
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def remove_spool(folder: Path) -> None:
    """Remove it, with all that is in it. Processes that still record do not find it under its name any more, so they
    can make nothing in it while it goes."""
    with suppress(OSError):
        folder = folder.rename(folder.with_name(f"{folder.name}.gone"))
    shutil.rmtree(folder, ignore_errors=True)


def refusal(document: Mapping[str, Any]) -> NotPossible:
    """Why CUPTI let nothing be recorded, of the recorder's ``refused.json``."""
    code = document["code"]
    if code == _ANOTHER_PROFILER:
        return NotPossible(f"another profiler is attached; {_OTHER_PROFILER}")
    if code == _NO_RIGHTS:
        return NotPossible(
            "the driver lets only root profile here; set NVreg_RestrictProfilingToAdminUsers=0, or run as root"
        )
    reason = f"error {code}" if code is not None else document["reason"]
    return NotPossible(f"CUPTI refuses to record here ({reason}); 'pinscope doctor' checks the driver")


LIBRARY = "libcuda.so"
SCAN_SECONDS = 0.1
"""Between two looks: CUDA alone takes longer to start and to end."""
MOST_OF_A_CORE = 0.1
"""Spent on looking."""
_ASKS_THE_DRIVER = "nvidia-smi"
"""A program that starts CUDA to ask, and copies nothing: Hugging Face's Trainer runs it."""
_STATE, _PARENT = 0, 1
"""Places in ``stat``, behind the name."""

Image = tuple[int, int]
"""A process, and where its stack begins: a fork does not change that, another program in its place does."""


def pids_on_gpus() -> Collection[int]:
    """The processes that NVML names."""
    with Nvml() as nvml:
        indices = range(nvml.device_count().value or 0)
        return {process.pid for index in indices for process in nvml.processes(index).value or ()}


class Children:
    """Those of one program. A process used CUDA that had :data:`UVM` open and :data:`LIBRARY` mapped at any look, or,
    where another user's files cannot be seen, that NVML names. A child by fork of a process that has used CUDA has both
    from there, and CUDA refuses it: it counts only if it was seen without the file before.

    Args:
        program: its process.
        handover: of the spool's folder, as the variables of the program's processes name it.
        spool: that folder.
        proc: where /proc is read.
        on_gpus: the processes that NVML names.
    """

    def __init__(
        self,
        program: int,
        handover: str,
        spool: Path,
        proc: Proc = HERE,
        on_gpus: Callable[[], Collection[int]] = pids_on_gpus,
    ) -> None:
        self._handover, self._spool, self._proc, self._on_gpus = handover, spool, proc, on_gpus
        self._ours, self._others, self._without = {program}, set[int](), set[int]()
        self._users: dict[Image, tuple[ChildKind, str]] = {}
        """With the name of its program's file."""
        self._seen: set[Image] = set()
        self._looks: list[int] = []
        self.pause_seconds = SCAN_SECONDS
        """Until the next look: on a host with many processes one takes longer."""

    def look(self) -> None:
        """See who is there now."""
        begun = time.monotonic_ns()
        pids = set(self._proc.pids().value or ())
        self._ours, self._others = self._ours & pids, self._others & pids
        for pid in sorted(pids - self._ours - self._others):
            variables = self._proc.beginning(f"/proc/{pid}/environ", 2**20).value or ("", True)
            is_ours = self._status(pid).parent in self._ours or self._handover in variables[0]
            (self._ours if is_ours else self._others).add(pid)
        there = {pid: status for pid in self._ours if (status := self._status(pid)).is_alive}
        self._seen |= {(pid, status.stack) for pid, status in there.items()}
        users = self._users_of(there)
        self._without = (set(there) - users) | (self._ours & self._without)
        for pid in users:
            image, parent = (pid, there[pid].stack), there[pid].parent
            is_fork = parent in there and there[parent].stack == there[pid].stack
            is_own = pid in self._without or parent not in users or not is_fork
            if is_own and image not in self._users and self._has_library(pid):
                described = self._described(pid, is_fork)
                if described[1] != _ASKS_THE_DRIVER:
                    self._users[image] = described
        self._looks.append(begun)
        self.pause_seconds = max(SCAN_SECONDS, (time.monotonic_ns() - begun) / 1e9 / MOST_OF_A_CORE)

    def _users_of(self, there: Collection[int]) -> set[int]:
        files = {pid: self._proc.links(f"/proc/{pid}/fd").value for pid in there}
        hidden = {pid for pid, links in files.items() if links is None and self._proc.exists(f"/proc/{pid}/fd")}
        named = hidden & set(self._on_gpus()) if hidden else set[int]()
        return named | {pid for pid, links in files.items() if links and UVM in links.values()}

    def _has_library(self, pid: int) -> bool:
        return LIBRARY in (self._proc.read(f"/proc/{pid}/maps").value or LIBRARY)

    def _described(self, pid: int, is_fork: bool) -> tuple[ChildKind, str]:
        name = PurePath(self._proc.link(f"/proc/{pid}/exe").value or "").name
        return "fork" if is_fork else "python" if name.startswith("python") else "native", name

    def _status(self, pid: int) -> _Status:
        fields = (self._proc.read(f"/proc/{pid}/stat").value or "").rpartition(")")[2].split()
        return _Status(int(fields[_PARENT]), int(fields[STACK]), fields[_STATE]) if len(fields) > STACK else _Status()

    # At the end

    def unrecorded(self) -> Iterator[TraceRow]:
        """A row for each that used CUDA and was not recorded."""
        said = self._said()
        recorded = set(self._recorded())
        known = recorded | said.joined
        for image, (kind, name) in self._users.items():
            if image not in recorded:
                child = _kind_beside(known, image) or kind
                yield unnumbered(kind="unrecorded", process=image[0], child=child, executable=name)

    def unseen(self) -> int:
        """How many lived too briefly to be looked at, of those that recorded processes say that they started."""
        said = self._said()
        known = said.joined | set(self._recorded())
        stacks = {stack for _, stack in known}  # a child may have been seen while it still was its parent's fork
        looked_at = known | {(pid, stack) for pid, stack in self._seen if stack not in stacks}
        brief = [
            pid
            for pid, left in said.started.items()
            if not any(pid == looked_pid and stack not in left for looked_pid, stack in looked_at)
        ]
        return len(brief) + sum(not self._looked_between(begun, ended) for begun, ended in said.shells)

    def has_become_another(self, pid: int) -> bool:
        """Whether a process said that it would become another program, and did."""
        return any(self._said().started.get(pid, ()))

    def _looked_between(self, begun: int, ended: int) -> bool:
        place = bisect_left(self._looks, begun)
        return place < len(self._looks) and self._looks[place] <= ended

    def _recorded(self) -> Iterator[Image]:
        for path in (self._spool / "started.json", *self._spool.glob("process.*/started.json")):
            if path.exists():
                started = json.loads(path.read_bytes())
                yield started["pid"], started["stack"]

    def _said(self) -> _Said:
        said, path = _Said(), self._spool / CHILDREN
        for line in path.read_text("ascii").splitlines() if path.exists() else ():
            first, second, word = line.split()
            said.add(int(first), int(second), word)
        return said


def _kind_beside(known: Collection[Image], image: Image) -> ChildKind | None:
    """What a process is beside those that recorders know, if that says it: its parent may be gone, or another program
    have stood in its place."""
    if any(stack == image[1] and pid != image[0] for pid, stack in known):
        return "fork"
    return "exec" if any(pid == image[0] and stack != image[1] for pid, stack in known) else None


@dataclass(frozen=True)
class _Status:
    parent: int = 0
    stack: int = 0
    state: str = ""

    @property
    def is_alive(self) -> bool:
        """Neither gone nor a zombie."""
        return self.state not in {"", "Z", "X"}


@dataclass
class _Said:
    """What recorded processes said of their children."""

    joined: set[Image] = field(default_factory=set)
    started: dict[int, set[int]] = field(default_factory=dict)
    """Process → the stacks of its images that became another program; none where it was started as one."""
    shells: list[tuple[int, int]] = field(default_factory=list)

    def add(self, first: int, second: int, word: str) -> None:
        if word == SHELL:
            self.shells.append((first, second))
        elif word == STARTED:
            self.started.setdefault(first, set()).update({second} - {0})
        elif word == FAILED:
            left = self.started.get(first, set())
            left.discard(second)
            if not left:
                self.started.pop(first, None)
        else:
            self.joined.add((first, second))
