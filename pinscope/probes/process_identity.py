"""Who a process is: its user, its command line, its container and when it started; and whose a thread is."""

from __future__ import annotations

import functools
import os
import pwd
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime

from pinscope.errors import NotPossible
from pinscope.probes.answer import Answer, all_of
from pinscope.probes.bounded import most_bytes
from pinscope.probes.proc import HERE, Proc, whole
from pinscope.probes.process_memory import ProcessStatus
from pinscope.records.masks import mask_words
from pinscope.records.run import Process

_ENDED = frozenset("ZXx")
"""States of a process that has ended: a zombie waits for its parent only."""
_STATE, _STARTED = 0, 19
"""Fields 3 and 22 of /proc/PID/stat, counted after the name."""
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
    path = f"/proc/{pid}/stat"
    return proc.read(path).then(_start_ticks, f"{path} shows no running process")


def _start_ticks(text: str) -> int | None:
    # The name, in parentheses, may itself hold blanks and parentheses: the last one ends it.
    fields = text.rpartition(")")[2].split()
    if len(fields) <= _STARTED or fields[_STATE] in _ENDED:
        return None
    return whole(fields[_STARTED])


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


MOST_COMMAND_CHARACTERS = 4096
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
    return proc.beginning(path, most_bytes(path)).then(lambda found: _words(*found), f"{path} is empty")


def _words(text: str, is_whole: bool) -> str | None:
    words = " ".join(mask_words(text.rstrip("\0").split("\0"))).strip()
    if is_whole and len(words) <= MOST_COMMAND_CHARACTERS:
        return words or None
    return f"{words[: MOST_COMMAND_CHARACTERS - 1]}…"


@dataclass(frozen=True, slots=True)
class Identity:
    """What stays as long as a process runs one program, or nearly so."""

    started: Answer[int]
    """Clock ticks since boot."""
    command: Answer[str]


def identify(pid: int, proc: Proc) -> Identity:
    """Read it anew."""
    return Identity(start_ticks(pid, proc), command_line(pid, proc))


def group_of(pid: int, memberships: Answer[str]) -> Answer[str]:
    """A process's control group, of the text of its ``cgroup``: of version 2, else the one that accounts memory."""
    return memberships.then(_group, f"/proc/{pid}/cgroup names no group that accounts memory")


def _group(text: str) -> str | None:
    found = {}
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, separator, path = rest.partition(":")
        if separator and path and (number == "0" or "memory" in controllers.split(",")):
            found["2" if number == "0" else "1"] = path
    # Where both versions are mounted, an unused version 2 has everything in its root.
    named = [path for path in (found.get("2"), found.get("1")) if path not in (None, "/")]
    return named[0] if named else found.get("2", found.get("1"))


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
    """When a process started, to a hundredth of a second after the boot's full second.

    Args:
        pid: of the process.
        ticks: between the boot and its start.
        booted: from :func:`boot_time`.
    """
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
    """The processes of this machine.

    Args:
        proc: where /proc is read.
    """

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
        return ProcessStatus(self._proc.read(f"/proc/{thread}/status").value or "").number("Tgid")
