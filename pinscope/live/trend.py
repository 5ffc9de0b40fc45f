"""What the host and each holder held lately, in few steps: for a small curve beside a figure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import pairwise

from pinscope.analysis.held import held_by
from pinscope.records.timeline import Sample

Identity = tuple[int, datetime | None]
"""Pid and start of a process."""
Curve = tuple[float | None, ...]
"""Amounts, oldest first; ``None`` where not known."""


def host_trend(samples: Sequence[Sample], steps: int) -> Curve:
    """Pinned memory of the host; of the samples that share a step, the most."""
    return tuple(_most(part.pinned_bytes for part in parts) for parts in _steps(samples, steps))


def holder_trends(samples: Sequence[Sample], steps: int) -> Mapping[Identity, Curve]:
    """What each process of the last sample held, likewise. Only those with the most bytes are in a sample."""
    if not samples:
        return {}
    found: dict[Identity, list[float | None]] = {(one.pid, one.started_at): [] for one in samples[-1].holders}
    for number, parts in enumerate(_steps(samples, steps)):
        for part in parts:
            for one in part.holders:
                curve = found.get((one.pid, one.started_at))
                if curve is not None:
                    curve += [None] * (number + 1 - len(curve))
                    curve[number] = max(curve[number] or 0.0, float(held_by(one)))
    return {key: tuple(curve) for key, curve in found.items()}


def _steps(samples: Sequence[Sample], steps: int) -> list[Sequence[Sample]]:
    """The samples in at most so many parts of about one length."""
    count = min(len(samples), steps)
    edges = [place * len(samples) // count for place in range(count + 1)] if count else []
    return [samples[begin:end] for begin, end in pairwise(edges)]


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
