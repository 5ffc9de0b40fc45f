"""Follows who registers and allocates host memory through the driver, by uprobes on the driver's library.

From its start on, every process of every user is followed that uses the library which this host's programs would load;
of a process with another copy it is said that it is not. Pids are those of the initial pid namespace, as the kernel's
trace tells them; in a container with process ids of its own the probe is therefore refused.
"""

from __future__ import annotations

import atexit
import errno
import os
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from pinscope.errors import MeasurementFailed, NotPossible
from pinscope.live.copies import CopyCounter
from pinscope.live.sampler import Repeater
from pinscope.probes import uprobes
from pinscope.probes.copy_calls import COPY_CALLS
from pinscope.probes.elf import function_offsets
from pinscope.probes.proc import HERE, Answer, FileKey, Proc
from pinscope.probes.process import Caller, LiveCallers
from pinscope.probes.tracefs import TraceInstance, remove_leftovers, tracing_access
from pinscope.probes.uprobes import CALLS, FLAGLESS, Entered, Executed, LibraryUsers, Lost, Returned, TraceEvent
from pinscope.records.figure import Bound, about, at_least, at_most
from pinscope.records.registration import PidRegistrations, Piece, ProbedLibrary, Registrations

WRITE_COMBINED = 0x04
"""CU_MEMHOSTALLOC_WRITECOMBINED (CUDA driver API)."""
IO_MEMORY = 0x04
"""CU_MEMHOSTREGISTER_IOMEMORY: another device's memory, which the kernel does not pin."""


@dataclass
class ProcessPieces:
    """One process: its live memory, and sums since it was first seen."""

    caller: Caller
    from_start: bool
    registered: dict[int, Piece] = field(default_factory=dict)
    """By address."""
    allocated: dict[int, Piece] = field(default_factory=dict)
    """By address."""
    unknown: list[Piece] = field(default_factory=list)
    """Allocated pieces of unknown address, oldest first."""
    calls: int = 0
    dropped_pieces: int = 0
    context_ended_at: datetime | None = None

    def __len__(self) -> int:
        """How many pieces are kept."""
        return len(self.registered) + len(self.allocated) + len(self.unknown)

    def free(self, address: int) -> None:
        """Memory was freed; an address that nobody knows is put down to the oldest piece of unknown address."""
        if address and self.allocated.pop(address, None) is None and self.unknown:  # to free nothing is allowed
            del self.unknown[0]

    def as_record(self) -> PidRegistrations:
        """What is known of it, as a record; oldest pieces first."""
        pieces = (*self.registered.values(), *self.allocated.values(), *self.unknown)
        return PidRegistrations(
            pid=self.caller.pid,
            name=self.caller.name,
            from_start=self.from_start,
            registered_bytes=sum(piece.bytes for piece in self.registered.values()),
            registrations=len(self.registered),
            pinned_registered_bytes=sum(map(pinned_bytes, self.registered.values())),
            pieces=tuple(sorted(pieces, key=lambda piece: piece.since)),
            calls=self.calls,
            dropped_pieces=self.dropped_pieces,
            context_ended_at=self.context_ended_at,
        )


def pinned_bytes(piece: Piece) -> int:
    """Bytes of the whole pages that a registered piece pins; 0 for any other."""
    if piece.kind != "register" or piece.address is None or piece.flags & IO_MEMORY:
        return 0
    page = os.sysconf("SC_PAGE_SIZE")
    return -(-(piece.address + piece.bytes) // page) * page - piece.address // page * page


MOST_PIECES = 20_000
"""Of one process."""
MOST_UNFINISHED = 1000
"""Calls that were entered and have not returned, before it is looked whether their threads are there still."""
MOST_BYTES = 2**50
"""Of one piece: more than any host has."""
START_SLACK_SECONDS = 0.05
"""The kernel gives the start of a process in hundredths of a second."""


class PinnedPieces:
    """Pinned memory of all processes; ``since`` the probes were set, in seconds since boot."""

    def __init__(self, callers: LiveCallers, since: float) -> None:
        self._callers = callers
        self._since = since
        self._processes: dict[int, ProcessPieces] = {}
        self._entered: dict[tuple[int, str], Entered] = {}
        self.lost_events = 0

    def apply(self, events: Iterable[TraceEvent], boot: float) -> None:
        """Apply what happened, in its order; at ``boot``, in seconds since 1970, the events' clock was zero."""
        known: dict[int, Caller | None] = {}  # asked once for all events of a batch
        for event in events:
            match event:
                case Entered():
                    # Two probes on one file report each call twice; the second report changes nothing.
                    self._entered[event.thread, event.call] = event
                case Returned():
                    entered = self._entered.pop((event.thread, event.call), None)
                    if entered is not None:
                        key = event.process or event.thread
                        if key not in known:
                            known[key] = self._caller(event)
                        self._apply_call(known[key], entered, event, datetime.fromtimestamp(boot + event.seconds, UTC))
                case Executed():
                    self._forget(event.process, before=event.seconds)
                case Lost():
                    self.lost_events += event.events

    def _caller(self, event: Returned) -> Caller | None:
        pid = event.process or self._callers.owner(event.thread)
        return self._callers.of(pid) if pid is not None else None

    def check(self) -> None:
        """Forget processes that have ended."""
        for pid, process in list(self._processes.items()):
            if self._callers.of(pid) != process.caller:
                self._forget(pid)
        if len(self._entered) > MOST_UNFINISHED:  # threads that ended in a call
            self._entered = {key: entered for key, entered in self._entered.items() if self._callers.owner(key[0])}

    def by_pid(self) -> Mapping[int, PidRegistrations]:
        """What is known of each process."""
        return {pid: process.as_record() for pid, process in self._processes.items()}

    def pinned_by(self, pid: int) -> Iterator[tuple[int, int]]:
        """Begin and end of each piece of a process whose address is known."""
        process = self._processes.get(pid)
        for piece in (*process.registered.values(), *process.allocated.values()) if process is not None else ():
            if piece.address is not None:
                yield piece.address, piece.address + piece.bytes

    def _process(self, caller: Caller) -> ProcessPieces:
        process = self._processes.get(caller.pid)
        if process is not None and process.caller == caller:
            return process
        self._forget(caller.pid)
        process = ProcessPieces(caller, from_start=caller.started > self._since)
        self._processes[caller.pid] = process
        return process

    def _forget(self, pid: int, before: float | None = None) -> None:
        """Forget a process; with ``before``, unless its process started after that."""
        process = self._processes.get(pid)
        if process is not None and (before is None or process.caller.started <= before):
            del self._processes[pid]

    def _apply_call(self, caller: Caller | None, entered: Entered, returned: Returned, moment: datetime) -> None:
        # An event older than the process is that of an earlier one with the same number.
        if caller is None or returned.result != 0 or entered.seconds < caller.started - START_SLACK_SECONDS:
            return
        process = self._process(caller)
        match CALLS[returned.call]:
            case "free":
                process.free(entered.arguments[0])
            case "unregister":
                process.registered.pop(entered.arguments[0], None)  # nobody may have seen it registered
            case "end_context":
                process.context_ended_at = moment
            case _:
                self._pin(process, entered, returned, moment)

    def _pin(self, process: ProcessPieces, entered: Entered, returned: Returned, moment: datetime) -> None:
        """Memory was registered or allocated."""
        process.calls += 1
        first, size, flags = entered.arguments
        if len(process) >= MOST_PIECES or not 0 < size < MOST_BYTES:
            process.dropped_pieces += 1
            return
        flags = 0 if entered.call in FLAGLESS else flags & 0xFFFFFFFF
        registers = CALLS[entered.call] == "register"
        piece = Piece(
            kind="register" if registers else "write_combined" if flags & WRITE_COMBINED else "alloc",
            address=first if registers else returned.word_at(first) or None,
            bytes=size,
            flags=flags,
            since=moment,
            seconds=max(0.0, returned.seconds - entered.seconds),
        )
        if piece.address is None:
            process.unknown.append(piece)
        elif registers:
            process.registered[piece.address] = piece  # one of this address was unregistered in a call that was lost
        else:
            process.allocated[piece.address] = piece


_NOT_PINNING = "it exports none of the driver's calls that pin memory"
_NO_PROBES_THERE = (
    "its file system does not take probes; a copy on a disk or in memory (ext4, xfs, overlay, squashfs, tmpfs) does"
)


READ_SECONDS = 0.1
"""How often the kernel's buffer is emptied."""
LOOK_SECONDS = 1.0
"""How often to look for processes that use another copy of the library, or have ended."""
STOP_SECONDS = 5.0
"""How long a stop waits for a reading in progress, which may hang where another program's files do."""

_NO_LIBRARY = "no libcuda.so.1 on this host: install NVIDIA's driver"
_NOT_STARTED = "the probe on the driver's library does not run"
_SET_ALREADY = "this process has a probe already"


class Tracker:
    """Follows every process on the host from :meth:`start` on. A context manager; may be started again.

    Args:
        proc: where /proc and /sys are read.
        libraries: copies of the driver's library to probe; ``None``: those in the usual places.
        copies_of: processes whose copies are counted as well.
    """

    def __init__(
        self, proc: Proc = HERE, libraries: Sequence[Path] | None = None, copies_of: Collection[int] = ()
    ) -> None:
        self._proc = proc
        self._copies_of = copies_of
        self._libraries = libraries
        self._lock = threading.RLock()
        self._reader = Repeater("pinscope-tracker", self._turn, READ_SECONDS)
        self._session: _Session | None = None
        self._trouble: str | None = None
        self._owner = os.getpid()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self) -> None:
        """Set the probes, after removing what a killed PinScope left; does nothing if it runs.

        Raises:
            NotPossible: this machine cannot; the message says why and what to do.
        """
        with self._lock:
            if self._session is not None:
                return
            access = tracing_access(self._proc)
            if access.value is None:
                raise NotPossible(access.reason)
            installed = uprobes.installed_libraries() if self._libraries is None else self._libraries
            if not installed:
                raise NotPossible(_NO_LIBRARY)
            self._session = _Session(self._proc, access.value, installed, self._copies_of)
            self._trouble = None
            self._owner = os.getpid()
            atexit.register(self._stop_at_exit)
        self._reader.start()

    def stop(self) -> None:
        """Take the probes away; does nothing if there are none, or in a forked child: they are its parent's.

        Raises:
            MeasurementFailed: they could not be removed; the message says how to remove them.
        """
        if os.getpid() != self._owner:  # before the lock: a thread that the child has not may have held it
            return
        self._reader.stop()
        held = self._lock.acquire(timeout=STOP_SECONDS)
        try:
            session, self._session = self._session, None
            atexit.unregister(self._stop_at_exit)
            if session is not None:  # also without the lock: what hangs may hang for ever, and the probes must go
                session.close()
        finally:
            if held:
                self._lock.release()

    def registered(self) -> Registrations:
        """What is pinned now, by process.

        If the kernel's trace breaks off, there is nobody in it from then on, and ``trouble`` says why.

        Raises:
            NotPossible: it was not started.
        """
        session = self._session
        if session is None:
            raise NotPossible(_NOT_STARTED)
        self._catch_up(session)
        with self._lock:
            return session.registrations(self._trouble)

    def _stop_at_exit(self) -> None:
        with suppress(MeasurementFailed):  # nobody would read it; the next start removes what is left
            self.stop()

    def _turn(self) -> None:
        session = self._session
        if session is not None and self._trouble is None:
            self._catch_up(session, session.not_followed())

    def _catch_up(self, session: _Session, not_followed: Mapping[int, str] | None = None) -> None:
        """Apply what happened."""
        with self._lock:
            if self._session is not session or self._trouble is not None:
                return
            try:
                session.read()
                if not_followed is not None:
                    session.update(not_followed)
            except OSError as error:
                self._trouble = f"the probe on the driver's library broke off ({error}): stop it and start it again"


class _Session:
    """One run of the probe, from start to stop."""

    def __init__(self, proc: Proc, folder: Path, installed: Sequence[Path], copies_of: Collection[int]) -> None:
        self._proc = proc
        self._look_due = 0.0
        self._instance = TraceInstance(folder, proc)
        try:
            remove_leftovers(folder, proc)
            self._instance.open()
        except FileExistsError:
            raise NotPossible(_SET_ALREADY) from None
        except OSError as error:
            raise NotPossible(f"the kernel does not let PinScope trace: {error}") from None
        self._copies = CopyCounter(copies_of, proc)
        try:
            self._libraries: list[ProbedLibrary] = []
            reasons: dict[FileKey, str | None] = {}
            for path in installed:
                self._add(str(path), reasons)
            if None not in reasons.values():
                reason = next((library.reason for library in self._libraries), "it is gone")
                raise NotPossible(f"the driver's library cannot be probed: {reason}")
            self._users = LibraryUsers(reasons, proc)
            self._not_followed = self._users.not_followed()
            self._since, since = datetime.now(UTC), time.clock_gettime(time.CLOCK_BOOTTIME)
            # Once: if the clock is set meanwhile, moments that are compared stay on one scale.
            self._booted = self._since.timestamp() - since
            self._pieces = PinnedPieces(LiveCallers(proc), since)
        except BaseException:
            self.close()
            raise

    def _add(self, path: str, reasons: dict[FileKey, str | None]) -> None:
        """Probe a copy of the library; one that is known already, or is gone, is passed over.

        ``reasons``, why each file is not followed, is brought up to date.
        """
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return
        except OSError as error:
            self._libraries.append(ProbedLibrary(path=path, reason=f"it cannot be opened: {error.strerror or error}"))
            return
        try:
            status = os.fstat(descriptor)
            file = (status.st_dev, status.st_ino)
            if file not in reasons:
                self._libraries.append(self._probe(path, descriptor))
                reasons[file] = self._libraries[-1].reason
        finally:
            os.close(descriptor)

    def _probe(self, path: str, descriptor: int) -> ProbedLibrary:
        machine = os.uname().machine
        offsets = function_offsets(descriptor, CALLS, machine)
        if not offsets.value:
            return ProbedLibrary(path=path, reason=offsets.reason or _NOT_PINNING)
        # By the open file: a path may hold blanks, which end it.
        place, calls = f"/proc/{os.getpid()}/fd/{descriptor}", offsets.value
        architecture = uprobes.ARCHITECTURES[machine]
        try:
            self._instance.add_group(
                len(self._libraries), lambda group: uprobes.definitions(group, place, calls, architecture)
            )
        except OSError as error:
            reason = _NO_PROBES_THERE if error.errno == errno.EIO else f"the kernel refuses: {error.strerror or error}"
            return ProbedLibrary(path=path, reason=reason)
        self._copies.add(place, function_offsets(descriptor, COPY_CALLS, machine).value or {})
        return ProbedLibrary(path=path, calls=tuple(calls))

    def close(self) -> None:
        """Remove the probes."""
        self._copies.close()
        self._instance.close()

    def read(self) -> None:
        """Apply what the kernel saw since the last time."""
        until = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        events = list(uprobes.parse_trace(self._instance.read()))
        self._copies.follow(events, until, lambda part: self._pieces.apply(part, self._booted), self._pieces.pinned_by)

    def not_followed(self) -> Mapping[int, str] | None:
        """Why processes are not followed, by pid, if it is time to look; for one thread only."""
        if time.monotonic() < self._look_due:
            return None
        self._look_due = time.monotonic() + LOOK_SECONDS
        return self._users.not_followed()

    def update(self, not_followed: Mapping[int, str]) -> None:
        """Keep who is not followed, and forget ended processes."""
        self._pieces.check()
        self._not_followed = not_followed

    def registrations(self, trouble: str | None) -> Registrations:
        """What processes that run now have pinned; nobody's if there is trouble: they would not be up to date."""
        self._pieces.check()
        return Registrations(
            since=self._since,
            by_pid=self._pieces.by_pid() if trouble is None else {},
            lost_events=self._pieces.lost_events,
            not_followed=self._not_followed,
            libraries=tuple(self._libraries),
            trouble=trouble,
            copies=self._copies.copies() if trouble is None else {},
            copies_trouble=self._copies.trouble,
        )


OLDEST_PIECES = 10  # of each holder in a snapshot
NOT_FOLLOWED = "registered memory is not shown in /proc; 'pinscope live --probe', as root, traces it from its start on"
_EARLIER = at_least("what it registered before the probe started is not known")
_LOST = about("some calls came too fast to be followed")
_TOO_MANY = at_least("not all of its pieces could be followed")
_ANOTHER_COPY = at_least("it uses another copy of the driver's library too, which is not traced")
_CONTEXT_ENDED = at_most("it has ended a CUDA context, which releases the memory pinned in it")
_ENDED_AND_MORE = about("it has ended a CUDA context, and some of its pinned memory is not known")


def registered_by(
    pid: int, cuda: bool | None, started_at: datetime | None, registrations: Registrations | None
) -> tuple[Answer[PidRegistrations], Bound | None]:
    """What a process has registered, and why that is no more than an estimate if it is one.

    ``None`` of ``cuda`` or ``started_at``: that is not known; of ``registrations``: there is no probe.
    """
    unknown = NOT_FOLLOWED if registrations is None else registrations.trouble
    if registrations is None or unknown is not None:
        return Answer(None, unknown), None
    known = registrations.by_pid.get(pid)
    if known is None and pid in registrations.not_followed:
        return Answer.missing(registrations.not_followed[pid]), None
    if known is None and cuda is False:
        return Answer(PidRegistrations(pid=pid, name="")), None
    since_its_start = started_at is not None and started_at > registrations.since
    known = known or PidRegistrations(pid=pid, name="", from_start=since_its_start)
    return Answer(known), _estimate(known, registrations)


def _estimate(known: PidRegistrations, registrations: Registrations) -> Bound | None:
    if registrations.lost_events:
        return _LOST
    least = _at_least(known, registrations)
    ended = known.context_ended_at
    if ended is not None and any(piece.kind == "register" and piece.since < ended for piece in known.pieces):
        return _ENDED_AND_MORE if least else _CONTEXT_ENDED
    return least


def _at_least(known: PidRegistrations, registrations: Registrations) -> Bound | None:
    if not known.from_start:
        return _EARLIER
    if known.pid in registrations.not_followed:
        return _ANOTHER_COPY
    return _TOO_MANY if known.dropped_pieces else None
