"""One process: who it is, when it started, what memory it has mapped. Its open files: ``process_scan``."""

from __future__ import annotations

import ctypes
import functools
import os
import pwd
import re
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from pinscope.errors import NotPossible
from pinscope.probes.containers import memory_paths
from pinscope.probes.proc import HERE, Answer, Fields, Proc, all_of, whole
from pinscope.records.run import Process
from pinscope.text import mask_words

Extent = tuple[int, int]
"""First byte and the one after the last, within a mapped object."""
ObjectKey = tuple[str, int]
"""Device and inode of a mapped object."""

ZERO, UVM, _CONTROL, NVIDIA = "/dev/zero (deleted)", "/dev/nvidia-uvm", "/dev/nvidiactl", "/dev/nvidia"
"""The names of mappings that matter. The kernel gives shared anonymous memory, and so cudaHostAlloc's, the first.
CUDA opens the second when it starts, for managed memory; NVML alone and display servers do not. Driver memory has the
third (measured on H100 and H200 hosts)."""
_MAPPING = re.compile(
    # start, end, access, offset, device and inode of a shared mapping
    r"([0-9a-f]{1,16})-([0-9a-f]{1,16}) ([r-][w-])[x-]s ([0-9a-f]{1,16}) "
    r"([0-9a-f]{1,8}:[0-9a-f]{1,8}) ([0-9]{1,20}) +/",
    re.ASCII,
)
_ALLOCATORS = {"PyTorch": "/libc10_cuda.so", "CuPy": "/cupy/cuda/pinned_memory."}
"""Library with an allocator that keeps pinned memory → a file of it that is mapped where it is loaded."""
PYTHON = re.compile(r"/(?:lib)?python(\d)\.(\d+)[a-z]*(?:\.so[.\d]*)?(?: \(deleted\))?$", re.ASCII | re.MULTILINE)
"""An interpreter's file, or that of its library."""
_GPU_FILE = re.compile(rf"{NVIDIA}([0-9]{{1,4}})", re.ASCII)
_RESERVED = re.compile(r"[0-9a-f]{1,16}-([0-9a-f]{1,16}) ---p ", re.ASCII)
"""Address space that was set aside: its end."""
CUDA_STEP_BYTES = 2 * 2**20
"""CUDA takes and reserves address space for host memory in multiples of this."""
_LARGE_STEP_BYTES = 256 * 2**20
"""Pieces that have nothing reserved behind them, those of 256 MiB and more, began at a multiple of this (driver 580).
Of ordinary memory that lies at a multiple of 2 MiB, one in 128 does."""


class ProcessStatus(Fields):
    """The lines of /proc/PID/status. The kernel escapes line ends in the name, so no process can fake a line."""

    @classmethod
    def of(cls, pid: int, proc: Proc) -> ProcessStatus:
        """That of a process; empty if it has ended."""
        path = f"/proc/{pid}/status"
        return cls(path, proc.read(path))

    def number(self, key: str) -> Answer[int]:
        """The first number beside ``key``."""
        return self.text(key).then(lambda text: whole(text.split()[0]) if text else None, f"{key} is no number")

    @property
    def has_memory(self) -> bool:
        """False for kernel threads and for processes that have ended."""
        return "\nVmSize:" in self._text

    @property
    def has_locked(self) -> bool:
        """True if it has memory that is locked (VmLck) or that the kernel counts as pinned by it (VmPin)."""
        return bool(self.amount("VmLck").value or self.amount("VmPin").value)

    @property
    def may_share(self) -> bool:
        """False if no page of shared memory is resident (RssShmem); true where that is not known."""
        return self.amount("RssShmem").value != 0

    @property
    def size(self) -> str:
        """Peak and present size of the address space as the kernel writes them: changes when something is mapped."""
        start = self._text.find("\nVmPeak:")
        end = self._text.find("\nVmLck:", start)
        return self._text[start:end] if 0 <= start < end else ""


@dataclass(frozen=True)
class MemoryMaps:
    """The mappings of one process that matter for pinned memory."""

    shared_zero: Mapping[ObjectKey, Sequence[Extent]]
    """Shared anonymous memory by object, in no order, that lies as cudaHostAlloc memory does: one object for each
    piece. What lies otherwise is ordinary shared memory, and is left out."""
    managed_bytes: int = 0
    """Address space of managed (unified) memory."""
    driver: frozenset[Extent] = frozenset()
    """Addresses of driver memory, its mappings one by one: what the program asked for, and the driver's own."""
    gpus: frozenset[int] = frozenset()
    """Minor numbers of the GPUs on which there is a context: their device files are mapped to be read and written."""
    aligned: frozenset[ObjectKey] = frozenset()
    """Shared anonymous memory that only begins and ends at a multiple of CUDA's step. The rest lies in address space
    that CUDA has reserved, or as CUDA's largest pieces do."""
    allocators: tuple[str, ...] = ()
    """Libraries with an allocator that keeps pinned memory, of those that the process has loaded."""
    is_python: bool = False
    """A Python interpreter runs in it."""

    @cached_property
    def driver_sizes(self) -> Sequence[int]:
        """Bytes of each mapping of driver memory."""
        return [last - first for first, last in self.driver]

    @cached_property
    def sizes(self) -> Mapping[ObjectKey, int]:
        """Bytes of each object that are mapped."""
        return {
            key: extents[0][1] - extents[0][0] if len(extents) == 1 else covered_bytes(extents)
            for key, extents in self.shared_zero.items()
        }


def parse_maps(text: str) -> MemoryMaps:
    """The shared anonymous mappings that may be cudaHostAlloc memory, and the driver's, in a /proc/PID/maps."""
    mappings = _Mappings()
    lines = text.split("\n")
    for place in range(len(lines) - 1, -1, -1):  # from the highest address down: what follows a mapping is known
        line = lines[place]
        # A Python process has a thousand lines of libraries: the name is looked at first, as that is quick.
        if (line.endswith(ZERO) or NVIDIA in line) and (match := _MAPPING.match(line)) is not None:
            mappings.add(match, line[match.end() - 1 :], lines[place + 1] if place + 1 < len(lines) else "")
    allocators = tuple(name for name, library in _ALLOCATORS.items() if library in text)
    return mappings.maps(allocators, is_python="python" in text and PYTHON.search(text) is not None)


class _Mappings:
    """Puts together what the lines say."""

    def __init__(self) -> None:
        self._shared: dict[ObjectKey, list[Extent]] = {}
        self._ordinary: set[ObjectKey] = set()
        self._aligned: set[ObjectKey] = set()
        self._managed = 0
        self._driver: set[Extent] = set()
        self._gpus: set[int] = set()
        self._next = ""
        """Where the mapping above begins, if it is one of these."""
        self._reserved = False
        """The mappings above end where reserved address space begins, which ends at a multiple of CUDA's step."""

    def add(self, match: re.Match[str], name: str, above: str) -> None:
        """One mapping, and the line of the next one."""
        begin, end, access, offset, device, inode = match.groups()
        first, last = int(begin, 16), int(end, 16)
        if last <= first:
            return
        if end != self._next:
            rest = _RESERVED.match(above) if above.startswith(f"{end}-") else None
            self._reserved = rest is not None and int(rest[1], 16) % CUDA_STEP_BYTES == 0
        self._next = begin
        if name == ZERO:  # in place, as there may be thousands
            start = int(offset, 16)
            key = (device, int(inode))
            if key in self._shared:
                self._shared[key].append((start, start + last - first))  # a part of what lies above it
                return
            self._shared[key] = [(start, start + last - first)]
            if (first - start) % CUDA_STEP_BYTES or (last % CUDA_STEP_BYTES and not self._reserved):
                self._ordinary.add(key)
            elif not self._reserved and last - first > CUDA_STEP_BYTES and first % _LARGE_STEP_BYTES:
                self._aligned.add(key)
        elif name == UVM:
            self._managed += last - first
        elif name == _CONTROL and access == "rw":
            self._driver.add((first, last))
        elif access == "rw" and (gpu := _GPU_FILE.fullmatch(name)):
            self._gpus.add(int(gpu[1]))

    def maps(self, allocators: tuple[str, ...], is_python: bool) -> MemoryMaps:
        """All of it."""
        # One piece of each context lies where the kernel put it.
        small = [key for key in self._ordinary if covered_bytes(self._shared[key]) == CUDA_STEP_BYTES]
        for key in self._ordinary - set(sorted(small)[: len(self._gpus)]):
            del self._shared[key]
        return MemoryMaps(
            self._shared,
            self._managed,
            frozenset(self._driver),
            frozenset(self._gpus),
            frozenset(self._aligned),
            allocators,
            is_python,
        )


def covered_bytes(extents: Sequence[Extent]) -> int:
    """Bytes that lie in at least one of the extents: a piece mapped twice counts once."""
    covered, reached = 0, -1
    for start, end in sorted(extents):
        covered += max(0, end - max(start, reached))
        reached = max(reached, end)
    return covered


PARENT, STARTED, STACK = 1, 19, 25
"""Fields 4, 22 and 28 of /proc/PID/stat, counted after the name. The first is the state: Z is a zombie, which waits for
its parent only."""
_UNKNOWN_BOOT = "unknown"


def current_process(proc: Proc = HERE) -> Process:
    """This process.

    Raises:
        NotPossible: /proc does not show it.
    """
    process = process_of(os.getpid(), proc)
    if process is None:
        raise NotPossible("/proc does not show this process; PinScope needs Linux with /proc mounted")
    return process


def process_of(pid: int, proc: Proc = HERE) -> Process | None:
    """The process that has this pid now; ``None`` if there is none or it has ended."""
    if pid <= 0:
        return None
    started = start_ticks(pid, proc).value
    if started is None:
        return None
    return Process(pid=pid, started=float(started), boot_id=_boot(proc), namespace=_namespace(proc))


def start_ticks(pid: int, proc: Proc = HERE) -> Answer[int]:
    """Clock ticks from the boot to the start of a process; missing if it has ended."""
    fields = stat_fields(pid, proc)
    return fields.then(lambda fields: whole(fields[STARTED]), f"/proc/{pid}/stat gives no start")


def stat_fields(pid: int, proc: Proc) -> Answer[list[str]]:
    """What stands behind the name in /proc/PID/stat; missing if the process has ended."""
    path = f"/proc/{pid}/stat"
    return proc.read(path).then(_stat_fields, f"{path} shows no running process")


def _stat_fields(text: str) -> list[str] | None:
    # The name, in parentheses, may itself hold blanks and parentheses: the last one ends it.
    fields = text.rpartition(")")[2].split()
    return None if len(fields) <= STARTED or fields[0] in "ZXx" else fields


def is_alive(process: Process, proc: Proc = HERE) -> bool:
    """True while that very process runs: same pid, same start, same boot, and not a zombie."""
    now = process_of(process.pid, proc)
    return now is not None and (now.started, now.boot_id) == (process.started, process.boot_id)


def on_this_boot(process: Process, proc: Proc = HERE) -> bool:
    """True if it ran under the kernel that runs now, in whatever container."""
    return process.boot_id == _boot(proc) != _UNKNOWN_BOOT


def is_in_sight(process: Process, proc: Proc = HERE) -> bool:
    """True if :func:`is_alive` can tell: pids of other containers mean other processes here, or none."""
    namespace = _namespace(proc)
    return process.namespace is None or namespace is None or process.namespace == namespace


def _boot(proc: Proc) -> str:
    return proc.line("/proc/sys/kernel/random/boot_id").value or _UNKNOWN_BOOT


def _namespace(proc: Proc) -> str | None:
    return proc.link("/proc/self/ns/pid").value


MOST_COMMAND_BYTES, MOST_COMMAND_CHARACTERS = 2**14, 4096
"""A command line may be gigabytes long, as its process decides."""

_ENGINES = (
    # What container engines call their groups: systemd's scopes first, then plain folders.
    ("docker", re.compile(r"docker[-/](?P<id>[0-9a-f]{12,64})(?:\.scope)?$")),
    ("podman", re.compile(r"libpod-(?P<id>[0-9a-f]{12,64})(?:\.scope)?(?:/container)?$")),
    ("containerd", re.compile(r"cri-containerd[-:](?P<id>[0-9a-f]{12,64})(?:\.scope)?$")),
    ("cri-o", re.compile(r"crio-(?P<id>[0-9a-f]{12,64})(?:\.scope)?$")),
    ("kubernetes", re.compile(r"kubepods[^:]*/(?P<id>[0-9a-f]{64})$")),
    ("lxc", re.compile(r"lxc(?:\.payload[./]|/)(?P<id>[^/]+)")),
    ("nspawn", re.compile(r"machine\.slice/(?:systemd-nspawn@|machine-)(?P<id>[^/]+?)\.(?:service|scope)")),
)
_SHORT_ID = 12
_HEXADECIMAL = re.compile(r"[0-9a-f]+")


@functools.lru_cache(maxsize=4096)
def user_name(user_id: int) -> str:
    """Login name as this process sees it; the number where there is none (a container's own users)."""
    try:
        return pwd.getpwuid(user_id).pw_name
    except (KeyError, OverflowError):
        return str(user_id)


def command_line(pid: int, proc: Proc) -> Answer[str]:
    """The command line with blanks between the words, and secrets in it masked; one that is very long is cut, and ends
    in "…"."""
    path = f"/proc/{pid}/cmdline"
    return proc.beginning(path, MOST_COMMAND_BYTES).then(lambda text: _words(*text), f"{path} is empty")


def _words(text: str, is_whole: bool) -> str | None:
    words = " ".join(mask_words(text.rstrip("\0").split("\0"))).strip()
    if is_whole and len(words) <= MOST_COMMAND_CHARACTERS:
        return words or None
    return f"{words[: MOST_COMMAND_CHARACTERS - 1]}…"


def group_of(pid: int, proc: Proc) -> Answer[str]:
    """A process's control group: of version 2, else the one that accounts memory."""
    return proc.read(f"/proc/{pid}/cgroup").then(_group, f"/proc/{pid}/cgroup names no group that accounts memory")


def _group(text: str) -> str | None:
    known = memory_paths(text)
    groups = [known[version] for version in ("cgroup2", "cgroup") if version in known]
    # Where both versions are mounted, an unused version 2 has everything in its root.
    return next((path for path in groups if path != "/"), groups[0] if groups else None)


def container(group: str) -> str | None:
    """Engine and short id of the container that a control group belongs to; ``None`` if it tells of none.

    A container that sees its own group as the root cannot be recognized this way.
    """
    for engine, pattern in _ENGINES:
        match = pattern.search(group)
        if match is not None:
            name = match["id"]
            return f"{engine} {name[:_SHORT_ID] if _HEXADECIMAL.fullmatch(name) else name}"
    return None


def boot_time(proc: Proc) -> Answer[int]:
    """When this machine started: seconds since 1970."""
    return proc.fields("/proc/stat").amount("btime")


def start_time(pid: int, ticks: Answer[int], booted: Answer[int]) -> Answer[datetime]:
    """When a process started, so many clock ticks after :func:`boot_time`, which is known to the second."""
    return all_of(ticks, booted).then(_moment, f"/proc/{pid}/stat gives no time")


def _moment(ticks_and_boot: tuple[int, ...]) -> datetime | None:
    ticks, booted = ticks_and_boot
    try:
        return datetime.fromtimestamp(booted + ticks / os.sysconf("SC_CLK_TCK"), UTC)
    except (OverflowError, ValueError, OSError):
        return None


@dataclass(frozen=True)
class Caller:
    """A process that called a probed function. Equal ones are the same process, whatever it calls itself."""

    pid: int
    started: float
    """Seconds since boot."""
    name: str = field(compare=False)


class LiveCallers:
    """The processes of this machine."""

    def __init__(self, proc: Proc = HERE) -> None:
        self._proc = proc
        self._ticks_per_second = os.sysconf("SC_CLK_TCK")

    def of(self, pid: int) -> Caller | None:
        """The process that has this pid now; ``None`` if there is none or it has ended."""
        ticks = start_ticks(pid, self._proc).value
        if ticks is None:
            return None
        return Caller(pid, ticks / self._ticks_per_second, self._proc.line(f"/proc/{pid}/comm").value or "")

    def owner(self, thread: int) -> int | None:
        """The pid of a thread's process; ``None`` if the thread has ended."""
        return ProcessStatus.of(thread, self._proc).number("Tgid").value


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""By which somebody asks a program to end in order."""
_PR_SET_PDEATHSIG = 1
_PRCTL = ctypes.CDLL(None, use_errno=True).prctl


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent, that process id, ends; end at once if it has ended already."""
    _PRCTL(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def ending_with_this() -> Callable[[], None]:
    """For ``preexec_fn``: what a child does between fork and exec, so that it ends with this process."""
    parent = os.getpid()
    return lambda: die_with_parent(parent)


def start_child(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start a process that ends with this one.

    SIGINT, SIGTERM and SIGHUP are held back from it until it calls :func:`install_handler`, so that none of them meets
    a program that cannot end in order yet. One that never calls it is ended by its starter alone. ``options`` are those
    of :class:`subprocess.Popen`.

    Raises:
        OSError: it cannot be started.
    """
    with _held_back():
        # Between fork and exec there is one system call, looked up before: no lock of another thread is needed for it.
        return subprocess.Popen(command, preexec_fn=ending_with_this(), **options)  # noqa: PLW1509


def install_handler(handler: Callable[[int, Any], None]) -> None:
    """Handle SIGINT, SIGTERM and SIGHUP from now on, and those that have been held back since the start."""
    for number in STOP_SIGNALS:
        signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


@contextmanager
def _held_back() -> Iterator[None]:
    """Children that are started meanwhile inherit that these signals wait."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
