"""Pinned memory of the host over time, as it grows: the series and moments of a chart that browsers draw."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile

from pinscope.analysis.held import held_by
from pinscope.charts.theme import COLOURS
from pinscope.records.figure import figures
from pinscope.records.snapshot import HostTotals
from pinscope.records.timeline import Sample

MOST_POINTS = 600
"""More curves are too close to distinguish on a screen."""
TREND_POINTS = 40
"""Steps of a small curve in a table, at most, but for the one that has begun."""
_LEAST_STEP_SECONDS = 1 / 64

_LABELS = {figure.field: figure.label for figure in figures(HostTotals)}
BANDS: Mapping[str, str] = {
    _LABELS["explained_bytes"]: COLOURS["pinned"],
    _LABELS["other_pinned_bytes"]: COLOURS["registered"],
    "Pinned, of unknown kind": COLOURS["reference"],
}
"""Parts of the pinned total, stacked, with their colours."""
LINES: Mapping[str, str] = {
    _LABELS["mlocked_bytes"]: COLOURS["locked"],
    _LABELS["driver_memory_bytes"]: COLOURS["driver"],
}
"""What is not part of it."""
SERIES: Mapping[str, str] = {**BANDS, **LINES}


def moments(
    samples: Sequence[Sample], window_seconds: float, interval_seconds: float, after: float | None = None
) -> list[list[int | None]]:
    """What the chart draws of the last ``window_seconds``.

    Args:
        samples: oldest first.
        window_seconds: how far back from the last sample.
        interval_seconds: from one sample to the next.
        after: only those later than this, in seconds since the sampling began, and all of them. Without it, of more
            moments than a screen can show those with the most pinned and locked memory.

    Returns:
        Of each its time in milliseconds since 1970 and the bytes of each of :data:`SERIES`, ``None`` if not known.
    """
    shown = within(samples, window_seconds)
    if after is not None:
        chosen: Iterable[Sample] = _later(shown, after)
    else:
        chosen = highest_of_each(shown, max(window_seconds / MOST_POINTS, interval_seconds))
    return [[round(one.taken_at.timestamp() * 1000), *_values(one)] for one in chosen]


def _later(samples: Sequence[Sample], after: float) -> list[Sample]:
    found = list(takewhile(lambda one: one.elapsed_seconds > after, reversed(samples)))
    return found[::-1]


def within(samples: Sequence[Sample], window_seconds: float) -> Sequence[Sample]:
    """Those of the last ``window_seconds``, oldest first."""
    if not samples:
        return ()
    begin = samples[-1].elapsed_seconds - window_seconds
    first = len(samples)
    while first and samples[first - 1].elapsed_seconds >= begin:
        first -= 1
    return samples[first:]


def highest_of_each(samples: Sequence[Sample], bucket_seconds: float) -> Iterator[Sample]:
    """Of each stretch of time the sample with the most memory; stretches do not move as time goes on."""
    best: Sample | None = None
    number = None
    for one in samples:
        turn = one.elapsed_seconds // bucket_seconds
        if best is not None and turn != number:
            yield best
            best = None
        if best is None or _weight(one) >= _weight(best):
            best = one
        number = turn
    if best is not None:
        yield best


def _weight(sample: Sample) -> int:
    return (sample.pinned_bytes or 0) + (sample.mlocked_bytes or 0)


def _values(sample: Sample) -> tuple[int | None, ...]:
    """In the order of :data:`SERIES`. Bands are the exact total wherever that is known, split where it can be."""
    if sample.pinned_bytes is not None and sample.other_pinned_bytes is None:
        return None, None, sample.pinned_bytes, sample.mlocked_bytes, sample.driver_memory_bytes
    return (sample.explained_bytes, sample.other_pinned_bytes, None, sample.mlocked_bytes, sample.driver_memory_bytes)


def trends(samples: Sequence[Sample], window_seconds: float) -> Mapping[tuple[int, object], list[float]]:
    """What each process held through the window, in few steps; by pid and start. One that a sample left out held 0.

    Only those with the most bytes are in a sample. Steps do not move as time goes on, so that a curve changes seldom.
    """
    shown = within(samples, window_seconds)
    if not shown:
        return {}
    span = shown[-1].elapsed_seconds - shown[0].elapsed_seconds
    step_seconds = 2 ** math.ceil(math.log2(max(span / TREND_POINTS, _LEAST_STEP_SECONDS)))
    picked = list({one.elapsed_seconds // step_seconds: one for one in shown}.values())
    found: dict[tuple[int, object], list[float]] = {
        (one.pid, one.started_at): [0.0] * len(picked) for one in picked[-1].holders
    }
    for number, sample in enumerate(picked):
        for one in sample.holders:
            steps = found.get((one.pid, one.started_at))
            if steps is not None:
                steps[number] = float(held_by(one))
    return found
