"""What a holder has registered, and which of the driver's host memory it has, as far as the probe followed it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import inf

from pinscope.probes.answer import Answer
from pinscope.probes.process import CUDA_STEP_BYTES, MemoryMaps, ObjectKey, covered_bytes
from pinscope.records.figure import Bound, about, at_least, at_most
from pinscope.records.registration import PidRegistrations, Piece, PieceKind, Registrations

OLDEST_PIECES = 10
"""So many pieces of each holder a snapshot shows."""
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
