"""Whose the pinned memory is that several processes map, and how much of it the driver has for its contexts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from pinscope.probes.process import CUDA_STEP_BYTES, MemoryMaps, ObjectKey, covered_bytes
from pinscope.records.figure import Bound, at_most

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
