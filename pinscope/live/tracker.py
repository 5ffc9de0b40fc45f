"""Follows who registers and allocates host memory through the driver, by uprobes on the driver's library.

From its start on, every process of every user is followed that uses a probed copy of the library. The copies
that this host's programs would load are probed at once, those that containers bring along when a process is seen with
one. Pids are those of the initial pid namespace, as the kernel's trace tells them; in a container with process ids of
its own the probe is therefore refused.
"""

from __future__ import annotations

import atexit
import errno
import itertools
import os
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from pinscope.errors import MeasurementFailed, NotPossible
from pinscope.live.gpu_watch import Repeater
from pinscope.live.pinned_pieces import Ledger
from pinscope.probes.answer import Answer
from pinscope.probes.driver_library import FileKey, MappedLibraries, MappedLibrary, installed_libraries, opened_copy
from pinscope.probes.proc import HERE, Proc
from pinscope.probes.process import LiveCallers
from pinscope.probes.return_probe_trial import why_not_return_probes
from pinscope.probes.tracefs import TraceInstance, remove_leftovers, tracing_access
from pinscope.probes.uprobes import (
    ARCHITECTURES,
    CALLS,
    POOL_CALLS,
    Wanted,
    definitions,
    find_addresses,
    function_offsets,
    parse_trace,
)
from pinscope.records.registration import ProbedLibrary, Registrations

MOST_COPIES = 64
"""Known ones, followed or not."""
MOST_NEW_COPIES = 4
"""So many are looked at anew each time: anybody can map many files of that name, and to read one takes time."""
UNUSED_LOOKS = 60
"""A copy that nobody used so often is let go of: its probes keep the mount busy that it lies on."""

_NOT_PINNING = "it exports none of the driver's calls that pin memory"
_TOO_MANY = f"{MOST_COPIES} copies of the driver's library are in use already"
_NOT_YET = "its copy of the driver's library has not been looked at yet"
_NO_PROBES_THERE = (
    "its file system does not take probes; a copy on a disk or in memory (ext4, xfs, overlay, squashfs, tmpfs) does"
)


@dataclass(eq=False)
class _Copy:
    library: ProbedLibrary
    file: tuple[int, int]
    """Device and inode."""
    installed: bool
    group: str | None = None
    """Its events; ``None`` if it could not be probed."""
    pool_group: str | None = None
    """Those of the calls on pools; ``None`` if the copy has none."""
    on: bool = False
    """Followed, as far as its users know."""
    unused_looks: int = 0


@dataclass(frozen=True)
class Users:
    """Processes that use copies of the library."""

    late: frozenset[int]
    """They had their copy before it was probed."""
    not_followed: Mapping[int, str]
    """Why the copy is not followed that they use."""


class ProbedCopies:
    """The probes on all copies. Those of a copy that nobody uses are switched off at once, and removed a while later.

    Args:
        instance: an open one.
        machine: the processor, as ``uname -m`` calls it.
    """

    def __init__(self, instance: TraceInstance, machine: str) -> None:
        self._instance = instance
        self._machine = machine
        self._copies: list[_Copy] = []
        self._mapped: dict[FileKey, _Copy] = {}
        self._numbers = itertools.count(1)
        self._pools = False

    def libraries(self) -> tuple[ProbedLibrary, ...]:
        """Each copy, with the reason where it is not followed."""
        return tuple(copy.library for copy in self._copies)

    def add_installed(self, path: str) -> None:
        """Probe a copy for good."""
        found = self._copy(path, path, installed=True)
        if found is not None and found.value is not None:
            found.value.on = True

    def follow(self, mapped: Mapping[FileKey, MappedLibrary], most_new: int = MOST_NEW_COPIES) -> Users:
        """Probe the copies that processes use.

        Args:
            mapped: all that are in use.
            most_new: so many that are not known yet are looked at; the others wait for the next time.

        Raises:
            OSError: the kernel does not let probes be switched any more.
        """
        late: set[int] = set()
        not_followed: dict[int, str] = {}
        used: set[_Copy] = set()
        # A key that is not in use may come to mean another file.
        self._mapped = {key: copy for key, copy in self._mapped.items() if key in mapped}
        for key, library in mapped.items():
            found: Answer[_Copy] | None
            if key in self._mapped:
                found = Answer(self._mapped[key])
            elif most_new > 0:
                most_new -= 1
                found = self._copy(library.place, library.path, installed=False)
            else:
                found = Answer.missing(_NOT_YET)
            if found is None:  # the process has ended meanwhile
                continue
            copy = found.value
            reason = found.reason if copy is None else copy.library.reason
            if reason is not None:
                not_followed.update(dict.fromkeys(library.pids, reason))
            if copy is not None:
                self._mapped[key] = copy
                used.add(copy)
                if copy.group is not None and not copy.on:
                    late.update(library.pids)
                    self._switch(copy, True)
        for copy in [one for one in self._copies if not one.installed and one not in used]:
            self._rest(copy)
        return Users(frozenset(late), not_followed)

    def follow_pools(self, on: bool) -> None:
        """Switch the probes on pool calls on or off, in all copies that are followed.

        Raises:
            OSError: the kernel does not let probes be switched any more.
        """
        if on == self._pools:
            return
        self._pools = on
        for copy in self._copies:
            if copy.on and copy.pool_group is not None:
                self._instance.switch_group(copy.pool_group, on)

    def _rest(self, copy: _Copy) -> None:
        """Nobody uses it now."""
        copy.unused_looks += 1
        if copy.on:
            self._switch(copy, False)
        if copy.group is None or copy.unused_looks >= UNUSED_LOOKS:
            self._let_go(copy)

    def _switch(self, copy: _Copy, on: bool) -> None:
        if copy.group is not None:
            self._instance.switch_group(copy.group, on)
        if copy.pool_group is not None and self._pools:
            self._instance.switch_group(copy.pool_group, on)
        copy.on, copy.unused_looks = on, 0

    def _let_go(self, copy: _Copy) -> None:
        """Forget it, unless somebody else traces by its probes: then it stays until the next look."""
        try:
            if copy.pool_group is not None:
                self._instance.remove_group(copy.pool_group)
                copy.pool_group = None
            if copy.group is not None:
                self._instance.remove_group(copy.group)
        except OSError:
            return
        self._copies.remove(copy)

    def _has_room(self) -> bool:
        """Whether one more copy can be known, after letting go of the one that was not used for longest."""
        if len(self._copies) >= MOST_COPIES:
            unused = [one for one in self._copies if one.group is not None and not one.on]
            if unused:
                self._let_go(max(unused, key=lambda one: one.unused_looks))
        return len(self._copies) < MOST_COPIES

    def _copy(self, place: str, path: str, installed: bool) -> Answer[_Copy] | None:
        """The copy at a place: the one that is known already, or a new one; ``None`` if there is no such file."""
        with opened_copy(place) as opened:
            if opened is None or opened.value is None:
                return None if opened is None else Answer(None, opened.reason)
            status = os.fstat(opened.value)
            file = (status.st_dev, status.st_ino)
            for known in self._copies:
                if known.file == file:
                    return Answer(known)
            if not self._has_room():
                return Answer.missing(_TOO_MANY)
            copy = _Copy(ProbedLibrary(path=path), file, installed)
            copy.library = self._probe(copy, opened.value)
            self._copies.append(copy)
            return Answer(copy)

    def _probe(self, copy: _Copy, descriptor: int) -> ProbedLibrary:
        offsets = function_offsets(descriptor, CALLS, self._machine)
        if not offsets.value:
            return copy.library.model_copy(update={"reason": offsets.reason or _NOT_PINNING})
        # By the open file: a path in a container means another file here, and may hold blanks, which end it.
        place, calls = f"/proc/{os.getpid()}/fd/{descriptor}", offsets.value
        architecture = ARCHITECTURES[self._machine]
        pool_calls = {call: offset for call, offset in calls.items() if call in POOL_CALLS}
        others = {call: offset for call, offset in calls.items() if call not in POOL_CALLS}
        try:
            copy.group = self._instance.add_group(
                next(self._numbers), lambda group: definitions(group, place, others, architecture)
            )
            if pool_calls:
                copy.pool_group = self._instance.add_group(
                    next(self._numbers), lambda group: definitions(group, place, pool_calls, architecture), on=False
                )
        except OSError as error:
            if copy.group is not None:
                self._instance.remove_group(copy.group)
                copy.group = None
            reason = _NO_PROBES_THERE if error.errno == errno.EIO else f"the kernel refuses: {error.strerror or error}"
            return copy.library.model_copy(update={"reason": reason})
        return copy.library.model_copy(update={"calls": tuple(calls)})


READ_SECONDS = 0.1
"""How often the kernel's buffer is emptied."""
LOOK_SECONDS = 1.0
"""How often to look for new copies of the library and for processes that ended."""
STOP_SECONDS = 5.0
"""How long a stop waits for a reading in progress, which may hang where another program's files do."""

Unresolved = Mapping[int, tuple[Sequence[Wanted], Collection[int]]]
"""By pid: pieces of unknown address, and the addresses of the others."""

_NO_LIBRARY = (
    "no libcuda.so.1 on this host, and no process uses one: install NVIDIA's driver, or start a CUDA program first"
)
_NOT_STARTED = "the probe on the driver's library does not run"
_SET_ALREADY = "this process has a probe already"


class Tracker:
    """Follows every process on the host from :meth:`start` on. A context manager; may be started again.

    Args:
        proc: where /proc and /sys are read.
        libraries: copies of the driver's library to probe from the beginning; ``None``: those in the usual places.
        read_seconds: how often the kernel's buffer is emptied.
        buffer_kib: size of that buffer, for each processor; ``None``: as many processors allow.
    """

    def __init__(
        self,
        proc: Proc = HERE,
        libraries: Sequence[Path] | None = None,
        read_seconds: float = READ_SECONDS,
        buffer_kib: int | None = None,
    ) -> None:
        self._proc = proc
        self._libraries = libraries
        self._buffer_kib = buffer_kib
        self._lock = threading.RLock()
        self._reader = Repeater("pinscope-tracker", self._turn, read_seconds)
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
            installed = installed_libraries() if self._libraries is None else self._libraries
            if not installed and not MappedLibraries(self._proc).look():
                raise NotPossible(_NO_LIBRARY)
            self._session = _Session(self._proc, access.value, installed, self._buffer_kib)
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
            self._catch_up(session, session.mapped())

    def _catch_up(self, session: _Session, mapped: Mapping[FileKey, MappedLibrary] | None = None) -> None:
        """Book what happened, and look for the addresses that the trace did not give."""
        with self._lock:
            if self._session is not session or self._trouble is not None:
                return
            try:
                session.read()
                if mapped is not None:
                    session.follow(mapped)
            except OSError as error:
                self._trouble = f"the probe on the driver's library broke off ({error}): stop it and start it again"
            unresolved = session.unresolved()
        found = session.addresses(unresolved)  # without the lock: a program's memory may be slow to answer
        with self._lock:
            session.resolve(found)


class _Session:
    """One run of the probe, from start to stop."""

    def __init__(self, proc: Proc, folder: Path, installed: Sequence[Path], buffer_kib: int | None) -> None:
        self._proc = proc
        self._mapped = MappedLibraries(proc)
        self._look_due = 0.0
        self._instance = TraceInstance(folder, proc, buffer_kib)
        try:
            remove_leftovers(folder, proc)
            self._instance.open()
        except FileExistsError:
            raise NotPossible(_SET_ALREADY) from None
        except OSError as error:
            raise NotPossible(f"the kernel does not let PinScope trace: {error}") from None
        try:
            harm = why_not_return_probes(self._instance, proc)
            if harm is not None:
                raise NotPossible(harm)
            self._copies = ProbedCopies(self._instance, os.uname().machine)
            for path in installed:
                self._copies.add_installed(str(path))
            self._users = self._copies.follow(self._mapped.look(), most_new=MOST_COPIES)
            reasons = [library.reason for library in self._copies.libraries()]
            if None not in reasons:
                raise NotPossible(f"the driver's library cannot be probed: {reasons[0] if reasons else 'it is gone'}")
            self._since, since = datetime.now(UTC), time.clock_gettime(time.CLOCK_BOOTTIME)
            # Once: if the clock is set meanwhile, moments that are compared stay on one scale.
            self._booted = self._since.timestamp() - since
            self._ledger = Ledger(LiveCallers(proc), since)
        except BaseException:
            self._instance.close()
            raise

    def close(self) -> None:
        """Remove the probes."""
        self._instance.close()

    def read(self) -> None:
        """Book what the kernel saw since the last time."""
        self._ledger.apply(parse_trace(self._instance.read()), self._booted)
        self._copies.follow_pools(self._ledger.has_host_pools)

    def unresolved(self) -> Unresolved:
        """Pieces whose address nobody has looked for yet."""
        return {pid: (wanted, self._ledger.addresses(pid)) for pid, wanted in self._ledger.unresolved().items()}

    def addresses(self, unresolved: Unresolved) -> Mapping[int, Mapping[int, int]]:
        """Look for them in the processes' memory: by pid, those that were found by number."""
        return {pid: find_addresses(pid, wanted, taken, self._proc) for pid, (wanted, taken) in unresolved.items()}

    def resolve(self, found: Mapping[int, Mapping[int, int]]) -> None:
        """Book them."""
        for pid, addresses in found.items():
            for number, address in addresses.items():
                self._ledger.resolve(pid, number, address)

    def mapped(self) -> Mapping[FileKey, MappedLibrary] | None:
        """The copies of the library that are in use, if it is time to look; for one thread only."""
        if time.monotonic() < self._look_due:
            return None
        self._look_due = time.monotonic() + LOOK_SECONDS
        return self._mapped.look()

    def follow(self, mapped: Mapping[FileKey, MappedLibrary]) -> None:
        """Probe copies of the library that are new, let go of those no longer used, and forget ended processes."""
        self._ledger.check()
        self._users = self._copies.follow(mapped)
        for pid in self._users.late:
            self._ledger.late(pid)

    def registrations(self, trouble: str | None) -> Registrations:
        """The books, of processes that run now; nobody's if there is trouble: they would not be up to date."""
        self._ledger.check()
        return Registrations(
            since=self._since,
            by_pid=self._ledger.by_pid() if trouble is None else {},
            lost_events=self._ledger.lost_events,
            not_followed=self._users.not_followed,
            libraries=self._copies.libraries(),
            left_out_processes=self._ledger.left_out_processes,
            trouble=trouble,
        )
