"""Follows who registers and allocates host memory through the driver, by uprobes on the driver's library.

From its start on, every process of every user is followed that uses the library which this host's programs would load;
of a process with another copy it is said that it is not. Pids are those of the initial pid namespace, as the kernel's
trace tells them; in a container with process ids of its own the probe is therefore refused.

Programs allocate from pools and free again for each tensor on a GPU. Probes on those calls would slow all of them down,
so they are switched on only while some process has a pool of host memory.
"""

from __future__ import annotations

import atexit
import errno
import itertools
import os
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import Self

from pinscope.errors import MeasurementFailed, NotPossible
from pinscope.live.pinned_pieces import PinnedPieces
from pinscope.live.sampler import Repeater
from pinscope.probes import uprobes
from pinscope.probes.answer import Answer
from pinscope.probes.proc import HERE, Proc
from pinscope.probes.process import CUDA_STEP_BYTES, LiveCallers, MemoryMaps, ObjectKey, covered_bytes
from pinscope.probes.tracefs import TraceInstance, remove_leftovers, tracing_access
from pinscope.probes.uprobes import CALLS, POOL_CALLS, FileKey, LibraryUsers, Wanted
from pinscope.records.figure import Bound, about, at_least, at_most
from pinscope.records.registration import PidRegistrations, Piece, PieceKind, ProbedLibrary, Registrations

_NOT_PINNING = "it exports none of the driver's calls that pin memory"
_NO_PROBES_THERE = (
    "its file system does not take probes; a copy on a disk or in memory (ext4, xfs, overlay, squashfs, tmpfs) does"
)


@dataclass
class ProbedLibraries:
    """The probes on copies of the driver's library.

    Args:
        instance: an open one.
        machine: the processor, as ``uname -m`` calls it.
    """

    instance: TraceInstance
    machine: str
    libraries: list[ProbedLibrary] = field(default_factory=list)
    reasons: dict[FileKey, str | None] = field(default_factory=dict)
    """Why a file is not followed; ``None`` if it is."""
    _pool_groups: list[str] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _pools: bool = False

    def add(self, path: str) -> None:
        """Probe a copy; a file that is known already, or is gone, is passed over."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return
        except OSError as error:
            self.libraries.append(ProbedLibrary(path=path, reason=f"it cannot be opened: {error.strerror or error}"))
            return
        try:
            status = os.fstat(descriptor)
            file = (status.st_dev, status.st_ino)
            if file not in self.reasons:
                self.libraries.append(self._probe(path, descriptor))
                self.reasons[file] = self.libraries[-1].reason
        finally:
            os.close(descriptor)

    def follow_pools(self, on: bool) -> None:
        """Switch the probes on pool calls on or off.

        Raises:
            OSError: the kernel does not let probes be switched any more.
        """
        if on != self._pools:
            self._pools = on
            for group in self._pool_groups:
                self.instance.switch_group(group, on)

    def _probe(self, path: str, descriptor: int) -> ProbedLibrary:
        offsets = uprobes.function_offsets(descriptor, CALLS, self.machine)
        if not offsets.value:
            return ProbedLibrary(path=path, reason=offsets.reason or _NOT_PINNING)
        # By the open file: a path may hold blanks, which end it.
        place, calls = f"/proc/{os.getpid()}/fd/{descriptor}", offsets.value
        pool_calls = {call: offset for call, offset in calls.items() if call in POOL_CALLS}
        others = {call: offset for call, offset in calls.items() if call not in POOL_CALLS}
        groups = []
        try:
            groups.append(self._define(place, others, on=True))
            if pool_calls:
                self._pool_groups.append(self._define(place, pool_calls, on=False))
        except OSError as error:
            for group in groups:
                self.instance.remove_group(group)
            reason = _NO_PROBES_THERE if error.errno == errno.EIO else f"the kernel refuses: {error.strerror or error}"
            return ProbedLibrary(path=path, reason=reason)
        return ProbedLibrary(path=path, calls=tuple(calls))

    def _define(self, place: str, offsets: Mapping[str, int], on: bool) -> str:
        architecture = uprobes.ARCHITECTURES[self.machine]
        return self.instance.add_group(
            next(self._numbers), lambda group: uprobes.definitions(group, place, offsets, architecture), on=on
        )


READ_SECONDS = 0.1
"""How often the kernel's buffer is emptied."""
LOOK_SECONDS = 1.0
"""How often to look for processes that use another copy of the library, or have ended."""
STOP_SECONDS = 5.0
"""How long a stop waits for a reading in progress, which may hang where another program's files do."""

Unresolved = Mapping[int, tuple[Sequence[Wanted], Collection[int]]]
"""By pid: pieces of unknown address, and the addresses of the others."""

_NO_LIBRARY = "no libcuda.so.1 on this host: install NVIDIA's driver"
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
            installed = uprobes.installed_libraries() if self._libraries is None else self._libraries
            if not installed:
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
            self._catch_up(session, session.not_followed())

    def _catch_up(self, session: _Session, not_followed: Mapping[int, str] | None = None) -> None:
        """Apply what happened, and look for the addresses that the trace did not give."""
        with self._lock:
            if self._session is not session or self._trouble is not None:
                return
            try:
                session.read()
                if not_followed is not None:
                    session.update(not_followed)
            except OSError as error:
                self._trouble = f"the probe on the driver's library broke off ({error}): stop it and start it again"
            unresolved = session.unresolved()
        addresses = session.addresses(unresolved)  # without the lock: a program's memory may be slow to answer
        with self._lock:
            session.resolve(addresses)


class _Session:
    """One run of the probe, from start to stop."""

    def __init__(self, proc: Proc, folder: Path, installed: Sequence[Path], buffer_kib: int | None) -> None:
        self._proc = proc
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
            self._probed = ProbedLibraries(self._instance, os.uname().machine)
            for path in installed:
                self._probed.add(str(path))
            if None not in self._probed.reasons.values():
                reason = next((library.reason for library in self._probed.libraries), "it is gone")
                raise NotPossible(f"the driver's library cannot be probed: {reason}")
            self._users = LibraryUsers(self._probed.reasons, proc)
            self._not_followed = self._users.not_followed()
            self._since, since = datetime.now(UTC), time.clock_gettime(time.CLOCK_BOOTTIME)
            # Once: if the clock is set meanwhile, moments that are compared stay on one scale.
            self._booted = self._since.timestamp() - since
            self._pieces = PinnedPieces(LiveCallers(proc), since)
        except BaseException:
            self._instance.close()
            raise

    def close(self) -> None:
        """Remove the probes."""
        self._instance.close()

    def read(self) -> None:
        """Apply what the kernel saw since the last time."""
        self._pieces.apply(uprobes.parse_trace(self._instance.read()), self._booted)
        self._probed.follow_pools(self._pieces.has_host_pools)

    def unresolved(self) -> Unresolved:
        """Pieces whose address nobody has looked for yet."""
        return {pid: (wanted, self._pieces.addresses(pid)) for pid, wanted in self._pieces.unresolved().items()}

    def addresses(self, unresolved: Unresolved) -> Mapping[int, Mapping[int, int]]:
        """Look for them in the processes' memory: by pid, those that were found by number."""
        return {
            pid: uprobes.find_addresses(pid, wanted, taken, self._proc) for pid, (wanted, taken) in unresolved.items()
        }

    def resolve(self, by_pid: Mapping[int, Mapping[int, int]]) -> None:
        """Keep them."""
        for pid, addresses in by_pid.items():
            for number, address in addresses.items():
                self._pieces.resolve(pid, number, address)

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
            libraries=tuple(self._probed.libraries),
            left_out_processes=self._pieces.left_out_processes,
            trouble=trouble,
        )


OLDEST_PIECES = 10  # of each holder in a snapshot
NOT_FOLLOWED = "registered memory is not shown in /proc; 'pinscope live --probe', as root, traces it from its start on"
CALLS_NOT_FOLLOWED = "only 'pinscope live --probe', as root, traces the driver's calls, from its start on"
_EARLIER = at_least("what it registered before the probe started is not known")
_LOST = about("some calls came too fast to be followed")
_TOO_MANY = at_least("not all of its pieces could be followed")
_ANOTHER_COPY = at_least("it uses another copy of the driver's library too, which is not traced")
_CONTEXT_ENDED = at_most("it has ended a CUDA context, which releases the memory pinned in it")
_ENDED_AND_MORE = about("it has ended a CUDA context, and some of its pinned memory is not known")
_LEFT_OUT = at_least("more processes pin memory than the probe follows")
_TAKEN_EARLIER = at_least("what it took before the probe started is not known")
_POOLS = at_least("a pool of host memory holds more than is allocated from it")
_IMPORTED = at_least("it imported memory of another process, whose size the call does not give")
_UNREAD = about("the handle of some cuMemCreate memory could not be read")


@dataclass(frozen=True)
class Registered:
    """Registered memory of one process."""

    bytes: Answer[int]
    """To the byte."""
    pieces: Answer[int]
    driver_memory: Answer[int]
    """Write-combined memory, cuMemCreate on the host, and what is allocated from pools of host memory: in bytes as the
    process asked for it, mapped or not."""
    pinned_bytes: int = 0
    """The whole pages that the kernel pins for it; 0 where that is not known."""
    estimate: Bound | None = None
    """Why the figures are no more than an estimate."""
    oldest: tuple[Piece, ...] = ()
    """Live pieces that were pinned first, allocated ones too."""
    driver_estimate: Bound | None = None
    """Of ``driver_memory``, as ``estimate``."""


def registered_by(
    pid: int, cuda: bool | None, started_at: datetime | None, registrations: Registrations | None
) -> Registered:
    """What a process has registered.

    Args:
        pid: of the process.
        cuda: whether it uses CUDA; ``None`` if that is not known.
        started_at: when it started, where that is known.
        registrations: what the probe tells; ``None`` if there is none.
    """
    unknown = NOT_FOLLOWED if registrations is None else registrations.trouble
    if registrations is None or unknown is not None:
        calls = CALLS_NOT_FOLLOWED if registrations is None else unknown
        return Registered(Answer(None, unknown), Answer(None, unknown), Answer(None, calls))
    known = registrations.by_pid.get(pid)
    if known is None and pid in registrations.not_followed:
        unfollowed: Answer[int] = Answer.missing(registrations.not_followed[pid])
        return Registered(unfollowed, unfollowed, unfollowed)
    if known is None and cuda is False:
        return Registered(Answer(0), Answer(0), Answer(0))
    since_its_start = started_at is not None and started_at > registrations.since
    known = known or PidRegistrations(pid=pid, name="", from_start=since_its_start)
    return Registered(
        Answer(known.registered_bytes),
        Answer(known.registrations),
        Answer(known.driver_memory_bytes),
        known.pinned_registered_bytes,
        _estimate(known, registrations),
        known.pieces[:OLDEST_PIECES],
        _driver_estimate(known, registrations),
    )


def _estimate(known: PidRegistrations, registrations: Registrations) -> Bound | None:
    if registrations.lost_events:
        return _LOST
    return _after_contexts(known, "register", _at_least(known, registrations))


def _driver_estimate(known: PidRegistrations, registrations: Registrations) -> Bound | None:
    if registrations.lost_events:
        return _LOST
    if known.unread_handles:
        return _UNREAD
    more = _at_least(known, registrations, _TAKEN_EARLIER)
    least = more or (_POOLS if known.host_pools else _IMPORTED if known.imported else None)
    return _after_contexts(known, "write_combined", least)


def _after_contexts(known: PidRegistrations, kind: PieceKind, least: Bound | None) -> Bound | None:
    """What holds if a context has ended since one of the pieces of this kind was taken."""
    ended = known.context_ended_at
    if ended is not None and any(piece.kind == kind and piece.since < ended for piece in known.pieces):
        return _ENDED_AND_MORE if least else _CONTEXT_ENDED
    return least


def _at_least(known: PidRegistrations, registrations: Registrations, earlier: Bound = _EARLIER) -> Bound | None:
    if not known.from_start:
        return earlier
    if known.pid in registrations.not_followed:
        return _ANOTHER_COPY
    if known.dropped_pieces:
        return _TOO_MANY
    return _LEFT_OUT if registrations.left_out_processes and not known.calls else None


MIB = 2**20
CONTEXT_PIECES = 4
"""Pieces of pinned memory, of :data:`CUDA_STEP_BYTES` each, that a context has."""
CONTEXT_MAPPINGS: Mapping[int, int] = {56 * MIB: 1, 6_205_440: 1, 2 * MIB: 4, 4096: 20}
"""Mappings of driver memory that a context has: bytes of each → how many."""
_TELLING = (56 * MIB, 6_205_440)
"""Those by which the contexts of a process are counted."""
_UNFAMILIAR = at_most(
    "it includes what the driver maps for its contexts, as this driver maps other sizes than version 580"
)
_MOST_GENERATIONS = 100
"""So many ancestors decide between two that started in one tick."""


def context_count(maps: MemoryMaps) -> int:
    """Contexts that a process has, also several on one GPU, or has inherited."""
    sizes = Counter(maps.driver_sizes)
    return max(len(maps.gpus), min(sizes[size] for size in _TELLING))


def split_pieces(sizes: Sequence[int], contexts: int) -> tuple[list[int], int]:
    """Pieces that the program asked for, and bytes of those that the driver has for its contexts."""
    small = sizes.count(CUDA_STEP_BYTES)
    own = min(CONTEXT_PIECES * contexts, small)
    asked = [size for size in sizes if size != CUDA_STEP_BYTES] + [CUDA_STEP_BYTES] * (small - own)
    return asked, own * CUDA_STEP_BYTES


def asked_driver_memory(sizes: Sequence[int], contexts: int) -> tuple[int, Bound | None]:
    """Bytes of driver memory beyond what the contexts have, and why the figure is an estimate if it is one."""
    if not sizes:
        return 0, None
    rest = Counter(sizes)
    own = Counter({size: count * contexts for size, count in CONTEXT_MAPPINGS.items()})
    familiar = own <= rest
    return sum(size * count for size, count in (rest - own).items()), None if familiar else _UNFAMILIAR


@dataclass(frozen=True)
class Candidate:
    """A process with mappings."""

    pid: int
    parent: int | None
    started: int | None
    """Clock ticks since boot; ``None`` where that is not known."""
    maps: MemoryMaps


@dataclass
class Share:
    """What one process has of it."""

    owned: list[int] = field(default_factory=list)
    """Bytes of each piece that it owns."""
    inherited: list[int] = field(default_factory=list)
    """Bytes that it maps of each piece that another process owns."""
    inherited_from: set[int] = field(default_factory=set)
    inherited_by: set[int] = field(default_factory=set)
    driver_sizes: list[int] = field(default_factory=list)
    """Bytes of each mapping of driver memory that is not its owner's as well."""


def attribute(candidates: Collection[Candidate]) -> dict[int, Share]:
    """Each candidate's share, by pid.

    A forked process inherits its parent's mappings. The pages stay the parent's: it pinned them. So of several
    processes that map one piece, the owner is the one that started first; its size is what any of them maps of it.
    Mappings of driver memory have no name of their own: a process has inherited those that lie where they lie in a
    process from which it has inherited pieces, and every context has pieces.
    """
    parents = {candidate.pid: candidate.parent for candidate in candidates}
    ranks = {candidate.pid: _rank(candidate, parents) for candidate in candidates}
    common = _common(candidates)
    shares = {candidate.pid: Share(_alone(candidate.maps.sizes, common)) for candidate in candidates}
    for key, users in _users(candidates, common).items():
        owner = min(users, key=lambda candidate: ranks[candidate.pid])
        shares[owner.pid].owned.append(
            covered_bytes([extent for candidate in users for extent in candidate.maps.shared_zero[key]])
        )
        for candidate in users:
            if candidate is not owner:
                shares[candidate.pid].inherited.append(candidate.maps.sizes[key])
                shares[candidate.pid].inherited_from.add(owner.pid)
                shares[owner.pid].inherited_by.add(candidate.pid)
    driver = {candidate.pid: candidate.maps.driver for candidate in candidates}
    for pid, share in shares.items():
        own = driver[pid].difference(*(driver[owner] for owner in share.inherited_from))
        share.driver_sizes = [last - first for first, last in own]
    return shares


def without_larger(candidates: Collection[Candidate], pinned_bytes: int | None) -> list[Candidate]:
    """The candidates without pieces that are larger than all that is pinned: those are ordinary shared memory.

    Nothing is left out where the kernel's count has not even what the driver pins for its contexts, as with drivers
    that pin in another way.

    Args:
        candidates: with all their mappings.
        pinned_bytes: on the whole host, with the slack of its counters; ``None`` where that is not known.
    """
    if pinned_bytes is None or pinned_bytes < _of_contexts(candidates):
        return list(candidates)
    return [_without_larger(candidate, pinned_bytes) for candidate in candidates]


def _of_contexts(candidates: Collection[Candidate]) -> int:
    """Bytes that the driver itself has pinned for contexts; a forked child's are its parent's."""
    met: set[ObjectKey] = set()
    total = 0
    for candidate in candidates:
        small = (
            {key for key, size in candidate.maps.sizes.items() if size == CUDA_STEP_BYTES}
            if candidate.maps.gpus
            else set()
        )
        total += split_pieces([CUDA_STEP_BYTES] * len(small - met), len(candidate.maps.gpus))[1]
        met |= small
    return total


def _without_larger(candidate: Candidate, most: int) -> Candidate:
    sizes = candidate.maps.sizes
    if all(size <= most for size in sizes.values()):
        return candidate
    kept = {key: extents for key, extents in candidate.maps.shared_zero.items() if sizes[key] <= most}
    maps = MemoryMaps(kept, candidate.maps.managed_bytes, candidate.maps.driver, candidate.maps.gpus)
    return Candidate(candidate.pid, candidate.parent, candidate.started, maps)


def _common(candidates: Collection[Candidate]) -> set[ObjectKey]:
    """Pieces that more than one process maps; nearly always none, and one process may have thousands."""
    met: set[ObjectKey] = set()
    common: set[ObjectKey] = set()
    for candidate in candidates:
        common.update(met & candidate.maps.shared_zero.keys())
        met.update(candidate.maps.shared_zero)
    return common


def _users(candidates: Collection[Candidate], common: set[ObjectKey]) -> dict[ObjectKey, list[Candidate]]:
    """Who maps each of these pieces."""
    users: dict[ObjectKey, list[Candidate]] = {}
    for candidate in candidates:
        for key in common & candidate.maps.shared_zero.keys():
            users.setdefault(key, []).append(candidate)
    return users


def _alone(sizes: Mapping[ObjectKey, int], common: set[ObjectKey]) -> list[int]:
    """Sizes of the pieces that only this process maps."""
    if common.isdisjoint(sizes):
        return list(sizes.values())
    return [size for key, size in sizes.items() if key not in common]


def _rank(candidate: Candidate, parents: Mapping[int, int | None]) -> tuple[float, int, int]:
    """Owners first: by start; of two that started in one tick the ancestor, then the lower pid."""
    depth, above, passed = 0, candidate.parent, {candidate.pid}
    # A torn reading may show a circle, and a program may fork without end.
    while above is not None and above in parents and above not in passed and depth < _MOST_GENERATIONS:
        passed.add(above)
        depth, above = depth + 1, parents[above]
    return (inf if candidate.started is None else candidate.started, depth, candidate.pid)
