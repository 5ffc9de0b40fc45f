"""Whose each piece of shared pinned memory is: every piece counts once, in the process that owns it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import inf

from pinscope.probes.process_memory import MemoryMaps, ObjectKey, covered_bytes


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
    inherited_bytes: int = 0
    inherited_from: set[int] = field(default_factory=set)
    inherited_by: set[int] = field(default_factory=set)


def attribute(candidates: Collection[Candidate]) -> dict[int, Share]:
    """Each candidate's share, by pid.

    A forked process inherits its parent's mappings. The pages stay the parent's: it pinned them. So of several
    processes that map one piece, the owner is the one that started first; its size is what any of them maps of it.
    """
    parents = {one.pid: one.parent for one in candidates}
    ranks = {one.pid: _rank(one, parents) for one in candidates}
    common = _common(candidates)
    shares = {one.pid: Share(_alone(one.maps.sizes, common)) for one in candidates}
    for key in common:
        users = [one for one in candidates if key in one.maps.shared_zero]
        owner = min(users, key=lambda one: ranks[one.pid])
        shares[owner.pid].owned.append(covered_bytes([extent for one in users for extent in one.maps.shared_zero[key]]))
        for one in users:
            if one is not owner:
                shares[one.pid].inherited_bytes += one.maps.sizes[key]
                shares[one.pid].inherited_from.add(owner.pid)
                shares[owner.pid].inherited_by.add(one.pid)
    return shares


def _common(candidates: Collection[Candidate]) -> set[ObjectKey]:
    """Pieces that more than one process maps; nearly always none, and one process may have thousands."""
    met: set[ObjectKey] = set()
    common: set[ObjectKey] = set()
    for one in candidates:
        common.update(met & one.maps.shared_zero.keys())
        met.update(one.maps.shared_zero)
    return common


def _alone(sizes: Mapping[ObjectKey, int], common: set[ObjectKey]) -> list[int]:
    """Sizes of the pieces that only this process maps."""
    if common.isdisjoint(sizes):
        return list(sizes.values())
    return [size for key, size in sizes.items() if key not in common]


def _rank(one: Candidate, parents: Mapping[int, int | None]) -> tuple[float, int, int]:
    """Owners first: by start; of two that started in one tick the ancestor, then the lower pid."""
    depth, above, passed = 0, one.parent, {one.pid}
    while above is not None and above in parents and above not in passed:  # a torn reading may show a circle
        passed.add(above)
        depth, above = depth + 1, parents[above]
    return (inf if one.started is None else one.started, depth, one.pid)
