"""How managed memory is followed inside the program: from its first allocation on, and in no program without any.

CUPTI's counters say which pages moved and when, and not who touched them. So kernels' launches are followed from then
on, and every few milliseconds it is noted at which line the program stands.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from sys import _current_frames
from types import FrameType
from typing import Any

from pinscope.tracing.bound import as_json, bind, os, start_thread, time
from pinscope.tracing.cupti_library import CuptiLibrary, Refused
from pinscope.tracing.spool_folder import SpoolFolder
from pinscope.tracing.stacks import OURS

bind(globals())

SAMPLE_SECONDS = 0.005
"""So often it is noted where the program stands."""
KEPT_SAMPLES = 50
"""So many are written together: what is not yet written is lost with a process that is killed."""
STANDING = struct.Struct("<2qI")
"""From when to when the program stood at the line of a stack; its number, 0 where nobody knows which thread worked."""
_ALLOCATES, _LAUNCHES = "cuMemAllocManaged", "cuLaunch"
"""The driver's functions that are followed only here begin so."""
_DEVICE = b"/dev/nvidia-uvm"
"""Of which managed memory is mapped, and 2 MiB of the driver's own in every process that uses CUDA."""
_DRIVERS_OWN_BYTES = 2 << 20
_STANDARD = os.path.dirname(os.__file__) + "/"
_PACKAGES = "/site-packages/"


class ManagedMemory:
    """Follows what a process does with managed memory.

    Args:
        config: what the spool's ``config.json`` says.
        cupti: the subscription.
        folder: where this process writes.
        stack: gives the number of the stack above a frame.
        is_on: whether something is recorded now.
        caught: called with a fault.

    Attributes:
        allocates: numbers of the functions that allocate it; empty once it is followed, or that was refused.
        activities: kinds of records that are kept besides.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        cupti: CuptiLibrary,
        folder: SpoolFolder,
        stack: Callable[[FrameType], int],
        is_on: Callable[[], bool],
        caught: Callable[[BaseException], None],
    ) -> None:
        functions = {int(number): name for number, name in config["functions"].items()}
        self.allocates = frozenset(number for number, name in functions.items() if name.startswith(_ALLOCATES))
        self.activities: tuple[int, ...] = ()
        self._launches = [number for number, name in functions.items() if name.startswith(_LAUNCHES)]
        self._kind = int(config["kinds"]["UNIFIED_MEMORY_COUNTER"])
        self._cupti, self._folder, self._number = cupti, folder, stack
        self._is_on, self._caught = is_on, caught
        self._process, self._is_over = os.getpid(), False
        self._written = bytearray()
        self._since = self._until = self._stack = self._samples = 0

    def wait_for_it(self, records: bool) -> None:
        """Follow it from its first allocation on, also where nothing is recorded then; or now, if it is there."""
        self._cupti.always_follow(self.allocates)
        if _is_there():
            self.begin(records)

    def begin(self, records: bool) -> None:
        """There is managed memory: follow it, if the driver lets us.

        Args:
            records: whether CUPTI keeps records of what the program does now.
        """
        self.allocates = frozenset()
        refused = None
        try:
            self._cupti.count_migrations()
            self.activities = (self._kind,)
            if records:
                self._cupti.record(self.activities, True)
        except Refused as error:
            refused = error.args[0]
        self._folder.append("managed", as_json({"refused": refused}) + b"\n")
        if refused is None:
            self._cupti.follow_also(self._launches, records)
            self._since = self._until = time.time_ns()
            start_thread(self._watch)

    def finish(self) -> None:
        """The recording is over: write what is left."""
        self._is_over = True
        self._close()
        self._write()

    def _watch(self) -> None:
        """In a thread of its own: note where the program stands."""
        while not self._is_over and os.getpid() == self._process:
            try:
                time.sleep(SAMPLE_SECONDS)
                if self._is_on():
                    self._sample(time.time_ns())
            except BaseException as error:  # noqa: BLE001 - nothing may reach the program
                self._caught(error)

    def _sample(self, now: int) -> None:
        frame = _working()
        number = 0 if frame is None else self._number(frame)
        self._samples += 1
        if number != self._stack or self._samples % KEPT_SAMPLES == 0:
            self._close()
            self._since, self._stack = self._until, number
        self._until = now
        if self._samples % KEPT_SAMPLES == 0:
            self._write()

    def _close(self) -> None:
        if self._until > self._since:
            self._written += STANDING.pack(self._since, self._until, self._stack)

    def _write(self) -> None:
        written, self._written = bytes(self._written), bytearray()
        if written:
            self._folder.append("standing", written)


def is_followed_later(function: str) -> bool:
    """Whether a function of the driver is followed only here."""
    return function.startswith((_ALLOCATES, _LAUNCHES))


def _is_there() -> bool:
    try:
        maps = os.open("/proc/self/maps", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return holds_managed(b"".join(iter(lambda: os.read(maps, 1 << 16), b"")))
    finally:
        os.close(maps)


def holds_managed(maps: bytes) -> bool:
    """Whether a process has managed memory, from the text of its ``/proc/PID/maps``."""
    for line in maps.split(b"\n"):
        if line.endswith(_DEVICE):
            first, _, end = line.partition(b" ")[0].partition(b"-")
            if int(end, 16) - int(first, 16) > _DRIVERS_OWN_BYTES:
                return True
    return False


def _working() -> FrameType | None:
    """Innermost frame of the thread that works: the program's only one, or the only one that is not in Python's own
    library, where threads wait."""
    frames = [frame for frame in _current_frames().values() if not _is_ours(frame)]
    if len(frames) > 1:
        frames = [frame for frame in frames if not _may_wait(frame.f_code.co_filename)]
    return frames[0] if len(frames) == 1 else None


def _is_ours(frame: FrameType) -> bool:
    """Whether a thread began in our code: one of ours, or one of CUPTI's that calls us."""
    while frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_filename.startswith(OURS)


def _may_wait(file: str) -> bool:
    return file.startswith(_STANDARD) and _PACKAGES not in file
