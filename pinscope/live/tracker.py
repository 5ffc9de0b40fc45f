"""Follows who registers and allocates host memory through the driver, by uprobes on the driver's library.

From its start on, every process of every user is followed that uses a probed copy of the library. The copies
that this host's programs would load are probed at once, those that containers bring along when a process is seen with
one. Pids are those of the initial pid namespace, as the kernel's trace tells them; in a container with process ids of
its own the probe is therefore refused.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from pinscope.errors import MeasurementFailed, NotPossible
from pinscope.live.probed_copies import MOST_COPIES, ProbedCopies
from pinscope.live.registration_ledger import Ledger
from pinscope.live.sampler import Repeater
from pinscope.probes.driver_library import FileKey, MappedLibraries, MappedLibrary, installed_libraries
from pinscope.probes.pinned_address import Wanted, find_addresses
from pinscope.probes.proc import HERE, Proc
from pinscope.probes.process_identity import LiveCallers
from pinscope.probes.return_probe_trial import why_not_return_probes
from pinscope.probes.tracefs import TraceInstance, remove_leftovers, tracing_access
from pinscope.probes.uprobes import parse_trace
from pinscope.records.registration import Registrations

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
