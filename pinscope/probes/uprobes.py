"""Probes on the driver's calls that pin or take host memory: which calls, how the kernel is asked, what it reports.

The kernel writes one line when a process enters such a function and one when it comes back (Linux documentation,
trace/uprobetracer). Its arguments stand in registers, by each architecture's calling convention. Where
cuMemHostAlloc puts the address of what it allocated is known on entry, the address itself only on return, in the
program's memory: so the return probe also reads what may still point there, the registers that a callee preserves
and the caller's end of the stack.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pinscope.probes.elf import is_for_another_processor
from pinscope.probes.proc import HERE, FileKey, Proc
from pinscope.probes.process import ProcessStatus, ending_with_this

Action = Literal["allocate", "free", "register", "unregister", "end_context"]

CALLS: Mapping[str, Action] = {
    "cuMemHostAlloc": "allocate",
    "cuMemAllocHost": "allocate",
    "cuMemAllocHost_v2": "allocate",
    "cuMemHostRegister": "register",
    "cuMemHostRegister_v2": "register",
    "cuMemFreeHost": "free",
    "cuMemHostUnregister": "unregister",
    "cuCtxDestroy": "end_context",
    "cuCtxDestroy_v2": "end_context",
    "cuDevicePrimaryCtxReset": "end_context",
    "cuDevicePrimaryCtxReset_v2": "end_context",
}
"""Functions of the CUDA driver API; the runtime API, CuPy and PyTorch all come through them (measured on an H200).

A context takes what was pinned in it along when it ends. cuDevicePrimaryCtxRelease is not among them: libraries retain
and release the primary context all the time, and only the last release ends it.
"""
FLAGLESS = frozenset({"cuMemAllocHost", "cuMemAllocHost_v2"})
"""They allocate without flags: what stands in the third register means nothing."""
EXEC_EVENT = "sched_process_exec"
"""The kernel's own event of a process that becomes another program."""

_STACK_WORDS = 16
_WORD_BYTES = 8


@dataclass(frozen=True)
class Architecture:
    """Names of registers, as the kernel's probes call them."""

    arguments: tuple[str, str, str]
    preserved: tuple[str, ...]
    """A called function leaves them as they were: a caller that still needs a pointer keeps it in one of them."""


ARCHITECTURES: Mapping[str, Architecture] = {
    "x86_64": Architecture(("di", "si", "dx"), ("bx", "bp", "r12", "r13", "r14", "r15")),
    "aarch64": Architecture(("x0", "x1", "x2"), tuple(f"x{number}" for number in range(19, 30))),
}
"""By the name that ``uname -m`` gives."""


def definitions(group: str, place: str, offsets: Mapping[str, int], architecture: Architecture) -> Iterator[str]:
    """Lines for the kernel's ``uprobe_events``: for each function one probe on its entry and one on its return.

    ``place`` is the library's path, without blanks; ``offsets`` are those of the functions in the file.
    """
    first, second, third = architecture.arguments
    for call, offset in offsets.items():
        where = f"{place}:0x{offset:x}"
        yield f"p:{group}/{call} {where} a=%{first}:x64 b=%{second}:x64 c=%{third}:x64"
        # What it allocated stands where its first argument points to.
        extra = _pointers(architecture) if CALLS[call] == "allocate" else ""
        yield f"r:{group}/{call}_r {where} ret=$retval:s32{extra}"


def _pointers(architecture: Architecture) -> str:
    registers = "".join(f" {name}=%{name}:x64 at_{name}=+0(%{name}):x64" for name in architecture.preserved)
    return f" sp=%sp:x64{registers}" + "".join(f" s{index}=$stack{index}:x64" for index in range(_STACK_WORDS))


@dataclass(frozen=True, slots=True)
class Entered:
    """A thread called one of :data:`CALLS`."""

    thread: int
    process: int | None
    """``None`` where the kernel did not note it."""
    seconds: float
    """On the clock that the trace runs by: since boot."""
    call: str
    arguments: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Returned:
    """The thread is back from it."""

    thread: int
    process: int | None
    seconds: float
    call: str
    result: int
    words: Mapping[str, int]
    """Registers and memory at that moment, by the names in the definition."""

    def word_at(self, pointer: int) -> int | None:
        """What memory held at ``pointer``, if this event tells."""
        for name, value in self.words.items():
            if value == pointer and f"at_{name}" in self.words:
                return self.words[f"at_{name}"]
        stack = self.words.get("sp")
        if stack is None or (pointer - stack) % _WORD_BYTES:
            return None
        return self.words.get(f"s{(pointer - stack) // _WORD_BYTES}")


@dataclass(frozen=True, slots=True)
class Executed:
    """A process became another program: its memory is gone."""

    process: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Lost:
    """Events that nobody read in time."""

    events: int


TraceEvent = Entered | Returned | Executed | Lost

_LINE = re.compile(
    # A thread may call itself anything, but in 15 letters, which the kernel pads to 16: of what looks like -TID there,
    # the last is the kernel's. What follows may be a program's path, in which anything may look like an event.
    r".{0,16}-(?P<thread>\d+) +(?:\( *(?P<process>\d+|-+)\) )?\[\d+\] \S+ +(?P<seconds>\d+\.\d+): "
    r"(?P<event>\w+): (?P<rest>.*)"
)
_CALL = re.compile(r"\(0x[0-9a-f]+(?P<back> <- 0x[0-9a-f]+)?\) (?P<fields>.*)")
_EXEC = re.compile(r"filename=.* pid=(?P<process>\d+) old_pid=\d+")
_LOST = re.compile(r"CPU:\d+ \[LOST(?: (?P<events>\d+))? EVENTS\]")


def parse_trace(text: str) -> Iterator[TraceEvent]:
    """The events in whole lines of a ``trace`` or ``trace_pipe``. Lines that make no sense are passed over."""
    for line in text.split("\n"):
        match = _LINE.fullmatch(line)
        event = _event(match) if match is not None else _lost(line)
        if event is not None:
            yield event


def _event(line: re.Match[str]) -> TraceEvent | None:
    event, seconds = line["event"], float(line["seconds"])
    if event == EXEC_EVENT:
        match = _EXEC.fullmatch(line["rest"])
        return Executed(int(match["process"]), seconds) if match else None
    match = _CALL.fullmatch(line["rest"])
    call = event.removesuffix("_r")
    if match is None or call not in CALLS or (event != call) != bool(match["back"]):
        return None
    words = _words(match["fields"])
    process = int(line["process"]) if (line["process"] or "-").isdigit() else None
    thread = int(line["thread"])
    if match["back"]:
        result = words.pop("ret", None)
        return None if result is None else Returned(thread, process, seconds, call, result, words)
    if not {"a", "b", "c"} <= words.keys():
        return None
    return Entered(thread, process, seconds, call, (words["a"], words["b"], words["c"]))


def _words(text: str) -> dict[str, int]:
    words = {}
    for word in text.split(" "):
        name, _, value = word.partition("=")
        try:
            words[name] = int(value, 0)
        except ValueError:  # "(fault)"
            continue
    return words


def _lost(line: str) -> Lost | None:
    match = _LOST.fullmatch(line)
    return Lost(int(match["events"] or 1)) if match else None


NAME = "libcuda.so.1"
USUAL_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/usr/local/cuda/compat",
    "/run/nvidia/driver/usr/lib/x86_64-linux-gnu",
    "/run/nvidia/driver/usr/lib64",
    "/run/opengl-driver/lib",
    "/usr/lib/wsl/lib",
)
"""Distributions' own, NVIDIA's container images and driver containers, NixOS and WSL."""

_LDCONFIG = ("/sbin/ldconfig", "-p")
_LDCONFIG_SECONDS = 5.0
_CACHED = re.compile(rf"^\s*{re.escape(NAME)} \(.*\) => (?P<path>/.+)$", re.MULTILINE)
_MAPPED = re.compile(
    # the executable part of the library
    r"^(?P<range>[0-9a-f]+-[0-9a-f]+) r-x[ps] [0-9a-f]+ [0-9a-f]+:[0-9a-f]+ \d+ +/(?:[^\n]*/)?libcuda\.so[^/\n]*$",
    re.ASCII | re.MULTILINE,
)

ANOTHER_COPY = "it uses another copy of the driver's library than this host's programs, which the probe does not follow"


def installed_libraries() -> tuple[Path, ...]:
    """The copies that programs on this host would load; each once, with links resolved.

    Those for another processor are left out: a 64-bit host often has the 32-bit driver as well.
    """
    try:
        cache = subprocess.run(
            _LDCONFIG,
            capture_output=True,
            text=True,
            timeout=_LDCONFIG_SECONDS,
            check=False,
            preexec_fn=ending_with_this(),
        ).stdout
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        cache = ""
    folders = (*filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":")), *USUAL_FOLDERS)
    places = [match["path"] for match in _CACHED.finditer(cache)] + [f"{folder}/{NAME}" for folder in folders]
    files = dict.fromkeys(path.resolve() for path in map(Path, places) if path.is_file())
    return tuple(path for path in files if not _is_foreign(path))


def _is_foreign(path: Path) -> bool:
    with suppress(OSError), path.open("rb") as file:  # one that cannot be read is reported later, with the reason
        return is_for_another_processor(file.fileno(), os.uname().machine)
    return False


@dataclass
class LibraryUsers:
    """Finds processes whose copy of the driver's library is not followed.

    A process whose address space holds as much code of libraries as before has mapped none, and its mappings are not
    read again.
    """

    probed: Mapping[FileKey, str | None]
    """Each known file, and why it is not followed; ``None`` if it is."""
    proc: Proc = HERE
    _known: dict[int, tuple[str, str | None]] = field(default_factory=dict)
    """By pid: how much of its address space is code, and why its copy is not followed."""

    def not_followed(self) -> Mapping[int, str]:
        """Why the copy is not followed that a process uses, by its pid."""
        known: dict[int, tuple[str, str | None]] = {}
        for pid in self.proc.pids().value or ():
            code, before = ProcessStatus.of(pid, self.proc).text("VmLib").value, self._known.get(pid)
            if code is not None:  # else it has ended, or is a thread of the kernel
                known[pid] = before if before is not None and before[0] == code else (code, self._reason(pid))
        self._known = known
        return {pid: reason for pid, (_, reason) in known.items() if reason is not None}

    def _reason(self, pid: int) -> str | None:
        for mapped in set(_MAPPED.findall(self.proc.read(f"/proc/{pid}/maps").value or "")):
            file = self.proc.file_key(f"/proc/{pid}/map_files/{mapped}").value
            if file is not None and (reason := self.probed.get(file, ANOTHER_COPY)) is not None:  # else it has let go
                return reason
        return None
