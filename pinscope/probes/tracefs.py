"""The kernel's tracing files, used so that nobody else's tracing is disturbed: an instance and event groups of our own.

Names carry the process and its start, so that what a killed process left behind is known and can be removed.
Linux documentation: trace/ftrace ("Instances"), trace/uprobetracer.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from pinscope.errors import MeasurementFailed
from pinscope.probes.containers import has_own_pids, read_mounts
from pinscope.probes.proc import HERE, SYS_ADMIN, Answer, Proc, has_capability
from pinscope.probes.process import start_ticks
from pinscope.probes.uprobes import ARCHITECTURES, EXEC_EVENT

USUAL_FOLDER = "/sys/kernel/tracing"
MOUNT_COMMAND = f"mount -t tracefs tracefs {USUAL_FOLDER}"
MOST_BUFFER_BYTES = 64 * 2**20
"""For all processors together."""

_LEAST_KIB, _MOST_KIB = 128, 1024
"""Buffer of one processor: some thousand events at least."""
_CHUNK_BYTES = 2**16
_BUSY_SECONDS = 2.0
"""How long to try again while another process reads the instance."""
RETURN_PROBES_VARIABLE = "PINSCOPE_RETURN_PROBES"
"""Set to 1 where a kernel of a number below is known to have the fix."""
_DEADLY_KERNELS = ((6, 11), (6, 14))
"""From 6.11 on, x86-64 kernels come back from a probed function by a system call that nobody's seccomp filter knows
(uretprobe). Before 6.14 the filter may refuse it, and a probed program in a sandbox such as Docker's is killed (systemd
issue 34615, opensnitch issue 1205). Distributions carried the fix to older numbers, which their numbers do not tell."""
_RELEASE = re.compile(r"(\d+)\.(\d+)")
_OURS = re.compile(r"pinscope[-_](?P<pid>\d+)[-_](?P<ticks>\d+)(?:_\d+)?")
_DEFINED = re.compile(r"^[pr]\d*:(?P<group>\w+)/(?P<event>\w+) ", re.MULTILINE)
_NO_LINE_END = '!(filename ~ "*\n*")'
"""A program's path may hold line ends, and with them whole lines that look like other events."""


def tracing_folder(proc: Proc = HERE) -> Answer[Path]:
    """Where tracefs is mounted."""
    mounted = next((mount for mount in read_mounts(proc).value or () if mount.kind == "tracefs"), None)
    if mounted is not None:
        return Answer(Path(mounted.point))
    if proc.exists(USUAL_FOLDER):
        return Answer.missing(f"tracefs is not mounted: as root, run '{MOUNT_COMMAND}'")
    return Answer.missing("this kernel has no tracefs: it needs one built with CONFIG_FTRACE and CONFIG_UPROBE_EVENTS")


def tracing_access(
    proc: Proc = HERE, machine: str | None = None, variables: Mapping[str, str] = os.environ
) -> Answer[Path]:
    """Where tracefs is mounted, if probes can be set; else the first thing that stands in the way.

    Nothing is changed: to mount tracefs, for instance, is left to the host's administrator.
    """
    machine = machine or os.uname().machine
    if machine not in ARCHITECTURES:
        known = " and ".join(ARCHITECTURES)
        return Answer.missing(f"registered memory can be followed on {known}; this processor is {machine}")
    if has_own_pids(proc):
        return Answer.missing(
            "this container has process ids of its own, and the kernel traces by the host's: run PinScope on the host, "
            "or in a container started with --pid=host --privileged"
        )
    if not has_capability(SYS_ADMIN, proc):
        return Answer.missing("tracing registered memory needs root (CAP_SYS_ADMIN): run it with sudo")
    if "[confidentiality]" in (proc.read("/sys/kernel/security/lockdown").value or ""):
        return Answer.missing(
            "the kernel is locked down for confidentiality, which forbids tracing: start it with lockdown=integrity, "
            "or without Secure Boot"
        )
    if machine == "x86_64" and _may_kill(proc.line("/proc/sys/kernel/osrelease").value or "", variables):
        return Answer.missing(
            "on Linux 6.11 to 6.13 the probe may kill programs in a sandbox such as Docker's (seccomp refuses the "
            f"system call uretprobe): use Linux 6.14 or newer, or set {RETURN_PROBES_VARIABLE}=1 if yours has the "
            "fix"
        )
    return tracing_folder(proc).then(
        lambda folder: folder if (folder / "uprobe_events").exists() else None,
        "this kernel has no probes of user programs: it needs one built with CONFIG_UPROBE_EVENTS",
    )


def _may_kill(release: str, variables: Mapping[str, str]) -> bool:
    match = _RELEASE.match(release)
    first, fixed = _DEADLY_KERNELS
    is_deadly = match is not None and first <= (int(match[1]), int(match[2])) < fixed
    return is_deadly and variables.get(RETURN_PROBES_VARIABLE) != "1"


def remove_leftovers(folder: Path, proc: Proc = HERE) -> None:
    """Remove the instances and events of processes that ended without removing them."""
    groups = {match["group"] for match in _DEFINED.finditer(_read(folder / "uprobe_events"))}
    instances = {path.name for path in (folder / "instances").iterdir()}
    orphans = {name for name in groups | instances if _is_orphan(name, proc)}
    for name in sorted(orphans & instances):  # first: it keeps the events busy
        with suppress(OSError):  # somebody reads it; the next start removes it
            _put(folder / "instances" / name / "events/enable", "0")
            (folder / "instances" / name).rmdir()
    for group in sorted(orphans & groups):
        with suppress(OSError):
            _remove_group(folder, group)


def _is_orphan(name: str, proc: Proc) -> bool:
    match = _OURS.fullmatch(name)
    return match is not None and start_ticks(int(match["pid"]), proc).value != int(match["ticks"])


class TraceInstance:
    """An instance of the kernel's tracing with event groups of its own; ``folder`` is where tracefs is mounted."""

    def __init__(self, folder: Path, proc: Proc = HERE) -> None:
        own = (os.getpid(), start_ticks(os.getpid(), proc).value)
        self._folder = folder
        self._path = folder / "instances" / "pinscope-{}-{}".format(*own)
        self._group_stem = "pinscope_{}_{}_".format(*own)
        self._groups: set[str] = set()
        self._pipe: int | None = None
        self._rest = ""

    def open(self) -> None:
        """Make the instance; it counts time since boot and notes each event's process.

        Raises:
            FileExistsError: this process has one already.
            OSError: the kernel refuses.
        """
        self._path.mkdir()
        try:
            _put(self._path / "trace_clock", "boot")
            with suppress(OSError):  # kernels before 4.15 do not note it; /proc tells of threads that still run
                _put(self._path / "options/record-tgid", "1")
            _put(self._path / "buffer_size_kb", str(_buffer_kib()))
            _put(self._path / "events/sched" / EXEC_EVENT / "filter", _NO_LINE_END)
            _put(self._path / "events/sched" / EXEC_EVENT / "enable", "1")
            self._pipe = os.open(self._path / "trace_pipe", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except BaseException:
            self.close()
            raise

    def add_group(self, number: int, lines: Callable[[str], Iterable[str]]) -> str:
        """Define events in a group of an unused number and switch them on, all or none; gives the group's name.

        Raises:
            OSError: the kernel refuses them.
        """
        group = f"{self._group_stem}{number}"
        self._groups.add(group)
        try:
            for line in lines(group):
                # One each: a refused one is then known. Written at the end: without O_APPEND all others would go, and
                # Python's open(…, "a") seeks, which this file does not allow.
                _put(self._folder / "uprobe_events", line, append=True)
            _put(self._path / "events" / group / "enable", "1")
        except BaseException:
            self.remove_group(group)
            raise
        return group

    def remove_group(self, group: str) -> None:
        """Switch a group's events off and remove them. The kernel clears what is unread of all groups.

        Raises:
            OSError: the kernel refuses.
        """
        with suppress(FileNotFoundError):  # no event of it was defined
            _put(self._path / "events" / group / "enable", "0")
        _remove_group(self._folder, group)
        self._groups.discard(group)

    def read(self, limit_seconds: float = 1.0) -> str:
        """What was traced since the last call, in whole lines; as much of it as can be read within the limit.

        Raises:
            OSError: the instance is gone.
        """
        if self._pipe is None:
            return ""
        parts = [self._rest]
        deadline = time.monotonic() + limit_seconds
        with suppress(BlockingIOError):
            while time.monotonic() < deadline and (data := os.read(self._pipe, _CHUNK_BYTES)):
                parts.append(data.decode("utf-8", "replace"))
        text, end, self._rest = "".join(parts).rpartition("\n")
        return text + end

    def close(self) -> None:
        """Remove everything; does nothing where there is nothing.

        Raises:
            MeasurementFailed: something could not be removed; the message says how to remove it.
        """
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None
        deadline = time.monotonic() + _BUSY_SECONDS
        while (error := self._remove()) is not None and time.monotonic() < deadline:
            time.sleep(0.05)
        if error is not None:
            raise MeasurementFailed(
                f"the probe could not be removed ({error.strerror or error}): end what reads {self._path} and start "
                "PinScope's probe once more: it removes what was left"
            )

    def _remove(self) -> OSError | None:
        """Try to remove everything; gives what stood in the way last. One thing that is busy keeps nothing else."""
        trouble = None
        with suppress(OSError):  # it is gone
            _put(self._path / "events/enable", "0")
        try:
            with suppress(FileNotFoundError):
                self._path.rmdir()  # first: it keeps the events busy
        except OSError as error:
            trouble = error
        for group in sorted(self._groups):
            try:
                self.remove_group(group)
            except OSError as error:
                trouble = error
        return trouble


def _remove_group(folder: Path, group: str) -> None:
    with suppress(OSError):  # all at once takes a thirtieth of the time; older kernels remove one event at a time
        _put(folder / "uprobe_events", f"-:{group}/", append=True)
    for match in _DEFINED.finditer(_read(folder / "uprobe_events")):
        if match["group"] == group:
            _put(folder / "uprobe_events", f"-:{group}/{match['event']}", append=True)


def _buffer_kib() -> int:
    processors = os.cpu_count() or 1
    return max(_LEAST_KIB, min(_MOST_KIB, MOST_BUFFER_BYTES // 1024 // processors))


def _read(path: Path) -> str:
    return path.read_text(errors="replace")


def _put(path: Path, text: str, append: bool = False) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | (os.O_APPEND if append else 0))
    try:
        os.write(descriptor, f"{text}\n".encode() if append else text.encode())
    finally:
        os.close(descriptor)
