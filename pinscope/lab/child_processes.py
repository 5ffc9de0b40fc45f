"""Processes that work beside a measurement: requests and replies, from both sides.

A request is one JSON object a line on the worker's standard input, its reply one line in answer. A worker ends with the
process that started it, or when its standard input ends. One that dies, hangs or breaks off ends all of them, and the
error names the process and the step.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import resource
import select
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import IO, TYPE_CHECKING, Any, Final, Generic, Self, TypeVar

from pinscope import isolation
from pinscope.errors import MeasurementFailed, NotEnoughMemory, PinScopeError
from pinscope.probes.containers import IN_MEMORY, file_system
from pinscope.probes.proc import HERE, Proc
from pinscope.probes.process import die_with_parent, start_child
from pinscope.units import format_bytes

if TYPE_CHECKING:
    from pinscope.lab.backing import OwnMemory

Key = TypeVar("Key")
Request = Mapping[str, Any]
Reply = dict[str, Any]
Clock = Callable[[], float]
POLL_SECONDS = 0.1
END_SECONDS = 10.0
"""How long processes that were asked to end may take to."""


@dataclass(frozen=True)
class Child:
    """One process.

    Attributes:
        name: how errors name it.
        module: what it runs: one that ends with :func:`pinscope.lab.child_processes.serve_requests`.
        configuration: the arguments of the class that serves there; goes through JSON.
        group: folder of the control group that it enters before it does anything else.
    """

    name: str
    module: str
    configuration: Mapping[str, Any]
    group: str | None = None


class ChildDied(MeasurementFailed):
    """A process ended unasked."""


class ChildProcesses(Generic[Key]):
    """Processes, each with a key of the starter's.

    Args:
        children: what to start.
        limit: seconds that a step may take.
        check: called while waiting; raises to stop.
        descriptors: open files that they inherit.
        ready_limit: seconds that they may take for the request ``start`` on entering; without it there is no such
            request.

    Attributes:
        ready: their replies to that.
    """

    def __init__(
        self,
        children: Mapping[Key, Child],
        limit: float,
        check: Callable[[], None] = lambda: None,
        descriptors: Sequence[int] = (),
        ready_limit: float | None = None,
    ) -> None:
        self._described = children
        self._limit = limit
        self._check = check
        self._descriptors, self._ready_limit = descriptors, ready_limit
        self.ready: dict[Key, Reply] = {}
        self._children: dict[Key, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        """Start them, and await their readiness. Raises as :meth:`ask`."""
        try:
            for key, child in self._described.items():
                self._children[key] = self._start(child)
            if self._ready_limit:
                orders = {key: {"do": "start"} for key in self._described}
                replies = self.ask("getting ready", orders, limit=self._ready_limit)
                self.ready = {key: reply for key, (_, reply) in replies.items()}
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        """Wait for their end if all went well; end them at once if not."""
        if kind is None:
            for child in self._children.values():
                _pipe(child.stdin).close()
            deadline = time.monotonic() + END_SECONDS
            for child in self._children.values():
                with suppress(subprocess.TimeoutExpired):
                    child.wait(max(deadline - time.monotonic(), 0.0))
        self._kill()

    def ask(
        self, step: str, requests: Mapping[Key, Request], clock: Clock = time.monotonic, limit: float | None = None
    ) -> dict[Key, tuple[float, Reply]]:
        """Send each its request at once; for each, the moment of its reply by ``clock``, and the reply.

        ``limit`` is another number of seconds for this step alone.

        Raises:
            NotEnoughMemory: a process found too little memory.
            ChildDied: a process ended.
            MeasurementFailed: a process hung or broke off.
        """
        self.tell(requests)
        return self.answers(step, requests, clock, limit)

    def tell(self, requests: Mapping[Key, Request]) -> None:
        """Send each its request and do not wait: :meth:`answers` does."""
        for key, request in requests.items():
            with suppress(BrokenPipeError):  # it has died: its missing reply says so
                _pipe(self._children[key].stdin).write(json.dumps(request).encode() + b"\n")

    def answers(
        self, step: str, keys: Iterable[Key], clock: Clock = time.monotonic, limit: float | None = None
    ) -> dict[Key, tuple[float, Reply]]:
        """The replies of those that have requests, as :meth:`ask` gives them."""
        texts = dict.fromkeys(keys, b"")
        replies: dict[Key, tuple[float, Reply]] = {}
        limit = limit or self._limit
        deadline = time.monotonic() + limit
        with selectors.DefaultSelector() as waiting:
            for key in texts:
                waiting.register(_pipe(self._children[key].stdout), selectors.EVENT_READ, key)
            while waiting.get_map():
                self._check()
                if time.monotonic() > deadline:
                    late = " and ".join(self._described[silent.data].name for silent in waiting.get_map().values())
                    raise MeasurementFailed(f"{late} did not answer within {limit:g} s while {step}")
                for ready, _ in waiting.select(POLL_SECONDS):
                    key = ready.data
                    piece = os.read(ready.fd, 65536)
                    if not piece:
                        raise self._death(key, step)
                    texts[key] += piece
                    if texts[key].endswith(b"\n"):
                        waiting.unregister(ready.fileobj)
                        replies[key] = clock(), self._reply(key, step, texts[key])
        return {key: replies[key] for key in texts}

    def lives(self, key: Key) -> bool:
        """Whether that process has not ended."""
        return self._children[key].poll() is None

    def _start(self, child: Child) -> subprocess.Popen[bytes]:
        configuration = {**child.configuration, "parent": os.getpid(), "group": child.group}
        return start_child(
            isolation.command(child.module, json.dumps(configuration)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            pass_fds=self._descriptors,
        )

    def _reply(self, key: Key, step: str, text: bytes) -> Reply:
        reply: Reply = json.loads(text)
        if "error" not in reply:
            return reply
        kind = NotEnoughMemory if reply["class"] == NotEnoughMemory.__name__ else MeasurementFailed
        raise kind(f"{self._described[key].name} broke off while {step}: {reply['error']}")

    def _death(self, key: Key, step: str) -> PinScopeError:
        name = self._described[key].name
        try:
            code = self._children[key].wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            return MeasurementFailed(f"{name} fell silent while {step}")
        how = f"ended with code {code}"
        if code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
            how += " (by somebody, or by the kernel for want of memory)" if code == -signal.SIGKILL else ""
        return ChildDied(f"{name} {how} while {step}")

    def _kill(self) -> None:
        for child in self._children.values():
            child.kill()
        for child in self._children.values():
            child.wait()
            for pipe in (child.stdin, child.stdout):
                _pipe(pipe).close()


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise TypeError("started without this pipe")
    return pipe


def serve_requests(make: Callable[..., object]) -> int:
    """Make the worker from this program's configuration, and serve until the requests end, or their sender does.

    A request names a method of the worker; the reply is what that returns, or its error, after which none is served.
    """
    configuration = json.loads(sys.argv[1])
    die_with_parent(configuration.pop("parent"))
    if group := configuration.pop("group", None):
        Path(group, "cgroup.procs").write_text(str(os.getpid()))  # what it takes from here on is the group's
    # What a library prints must not be taken for a reply.
    with os.fdopen(os.dup(1), "w") as replies:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        worker = make(**configuration)
        for line in _requests(worker):
            request: dict[str, Any] = json.loads(line)
            try:
                reply = getattr(worker, request.pop("do"))(**request)
            except PinScopeError as error:
                reply = {"error": str(error), "class": type(error).__name__}
            except Exception as error:  # noqa: BLE001 - the sender must learn of it, whatever it was
                reply = {"error": f"{type(error).__name__}: {error}".splitlines()[0], "class": ""}
            replies.write(json.dumps(reply) + "\n")
            replies.flush()
            if "error" in reply:
                break
    return 0


def _requests(worker: Any) -> Iterator[str]:
    """Lines; while none waits, a worker with ``pause_seconds`` does its ``meanwhile`` that often.

    A request is sent only once the last is answered: none can wait unseen in a buffer.
    """
    pause: float | None = getattr(worker, "pause_seconds", None)
    while True:
        if pause is None or select.select([sys.stdin], [], [], pause)[0]:
            if not (line := sys.stdin.readline()):
                return
            yield line
        if pause is not None:
            worker.meanwhile()


PIECE_BYTES = 2**20
"""Read at once."""
_LOWEST_BIT = bytes(number & 1 for number in range(256))
"""mincore's other bits mean nothing (mincore(2))."""
_LIBC = ctypes.CDLL(None, use_errno=True)


class CachedFile:
    """A file without a name, of random content (which no file system stores in less), written and synchronised.

    Args:
        folder: where it is to be.
        nbytes: how long it is.
    """

    def __init__(self, folder: str, nbytes: int) -> None:
        self._nbytes = nbytes
        self._file: Final = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - open as long as the process
        content = os.urandom(PIECE_BYTES)
        for begin in range(0, nbytes, PIECE_BYTES):
            self._file.write(content[: min(PIECE_BYTES, nbytes - begin)])
        os.fsync(self._file.fileno())
        self._piece = bytearray(PIECE_BYTES)
        self._mapping = mmap.mmap(self._file.fileno(), nbytes)  # never read through: mincore asks about it
        self._resident = (ctypes.c_ubyte * -(-nbytes // mmap.PAGESIZE))()

    def cached_bytes(self) -> int:
        """How much of it is in the page cache (mincore(2))."""
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._mapping))
        if _LIBC.mincore(ctypes.c_void_p(address), ctypes.c_size_t(self._nbytes), self._resident):
            raise MeasurementFailed(f"mincore does not answer: {os.strerror(ctypes.get_errno())}")
        pages = bytes(self._resident).translate(_LOWEST_BIT).count(1)
        return min(pages * mmap.PAGESIZE, self._nbytes)

    def read(self, seconds: float | None) -> tuple[int, float]:
        """Read it from its beginning, all of it or for that long; bytes and seconds."""
        begun = time.perf_counter()
        done, taken = 0, 0.0
        while done < self._nbytes and (seconds is None or taken < seconds):
            got = os.preadv(self._file.fileno(), [self._piece], done)
            if not got:
                raise MeasurementFailed("its file has become shorter")
            done += got
            taken = time.perf_counter() - begun
        return done, taken


def folder_for(nbytes: int, proc: Proc = HERE) -> tuple[str | None, str]:
    """Where a file of that length can be that the page cache may drop; else ``None``, and why.

    The temporary folder (TMPDIR) if it is on a disk and has twice the room, else /var/tmp.
    """
    reasons = []
    for folder in dict.fromkeys((tempfile.gettempdir(), "/var/tmp")):  # noqa: S108 - a file without a name
        kind, free = file_system(folder, proc), proc.free_bytes(folder)
        if kind.value in IN_MEMORY:
            reasons.append(f"{folder} is in memory itself ({kind.value})")
        elif free.value is None or free.value < 2 * nbytes:
            room = free.reason or f"{folder} has {format_bytes(free.value)} free"
            reasons.append(f"{room}, and the file takes twice {format_bytes(nbytes)}")
        else:
            return folder, ""
    return None, "; ".join(reasons)


MOST_ROUNDS = 200
FIRST_VICTIM = 1000
"""The kernel kills the process with the highest score first (proc_pid_oom_score_adj(5)); this is the highest."""


class Bystander:
    """An ordinary process, which pins nothing, and what it can do: each public method is a request.

    Args:
        folder: where its file is to be; ``None`` for no file.
        file_bytes: how long the file is.
        sample_bytes: how much fresh memory it touches each time.
        memory_bytes: how much memory of its own it works on.
        victim: whether the kernel is to choose it when there is no memory left.
    """

    def __init__(
        self, folder: str | None, file_bytes: int, sample_bytes: int = 0, memory_bytes: int = 0, victim: bool = False
    ) -> None:
        self._folder, self._file_bytes, self._sample_bytes = folder, file_bytes, sample_bytes
        self._memory = _own_memory(memory_bytes) if memory_bytes else None
        self._file: CachedFile | None = None
        if victim:
            Path("/proc/self/oom_score_adj").write_text(str(FIRST_VICTIM))

    def start(self) -> Reply:
        """Take all that it works on: its memory, and its file, written and read once: in the page cache, and clean."""
        self._touch()
        if self._folder is not None:
            self._file = CachedFile(self._folder, self._file_bytes)
            self._file.read(None)
        return {}

    def feel(self, seconds: float) -> Reply:
        """Touch fresh memory and read the file once, in about ``seconds`` at most; the share in the cache before."""
        cached = self._file.cached_bytes() if self._file else None
        faults = fault_nanoseconds(self._sample_bytes, seconds / 2)
        return {
            "fault_pages": len(faults),
            "fault_median_seconds": median(faults) / 1e9,
            "fault_longest_seconds": max(faults) / 1e9,
            "file_cached_bytes": cached,
            **self._read(seconds / 2),
        }

    def work(self, seconds: float, rounds: int) -> Reply:
        """Rounds until so many seconds are over, and at least so many; reading one file may take that long too."""
        begun = time.perf_counter()
        done: list[Reply] = []
        while len(done) < MOST_ROUNDS and (len(done) < rounds or time.perf_counter() - begun < seconds):
            done.append(self._round(seconds))
        return {"rounds": done}

    def _round(self, seconds: float) -> Reply:
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
        cached = self._file.cached_bytes() if self._file else None
        read = self._read(seconds)
        begun = time.perf_counter()
        self._touch()
        return {
            "file_cached_bytes": cached,
            **read,
            "write_seconds": time.perf_counter() - begun,
            "major_faults": resource.getrusage(resource.RUSAGE_SELF).ru_majflt - faults,
        }

    def _read(self, seconds: float) -> Reply:
        read = self._file.read(seconds) if self._file else (None, None)
        return {"read_bytes": read[0], "read_seconds": read[1]}

    def _touch(self) -> None:
        if self._memory:
            ctypes.memset(self._memory.address, 1, self._memory.nbytes)


def _own_memory(nbytes: int) -> OwnMemory:
    from pinscope.lab.backing import OwnMemory  # noqa: PLC0415 - large; not needed for fresh memory

    return OwnMemory(nbytes, "4k")


def fault_nanoseconds(nbytes: int, seconds: float, clock: Callable[[], int] = time.perf_counter_ns) -> array[int]:
    """How long writing to each page of fresh anonymous memory took; fewer pages if ``seconds`` are over before.

    Small pages: a huge one would be one fault instead of 512. Python and the clock are in it, about 0.1 µs.
    """
    page = mmap.PAGESIZE
    taken = array("q", bytes(8 * (nbytes // page)))  # written in place: growing it would fault too
    with mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        with suppress(OSError):  # a kernel without transparent huge pages does not know the advice
            memory.madvise(mmap.MADV_NOHUGEPAGE)
        end = clock() + int(seconds * 1e9)
        for number in range(len(taken)):
            begun = clock()
            memory[number * page] = 1
            ended = clock()
            taken[number] = ended - begun
            if ended > end:
                return taken[: number + 1]
    return taken


if __name__ == "__main__":
    sys.exit(serve_requests(Bystander))
