"""Pinned memory of the host over time, as it grows: a Vega-Lite chart whose specification never changes.

Only the data changes from one drawing to the next, so that what a reader has zoomed into or picked stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from pinscope.analysis.held import held_by
from pinscope.analysis.rules.series import gap_seconds
from pinscope.charts.theme import COLOURS
from pinscope.records.figure import figures
from pinscope.records.snapshot import HostTotals
from pinscope.records.timeline import Sample

MOST_POINTS = 600
"""More curves are too close to distinguish on a screen."""
TREND_POINTS = 40
"""Steps of a small curve in a table."""
LEAST_SECONDS = 60.0
"""The axis is at least so long, and grows to the window as samples come in."""

_LABELS = {figure.field: figure.label for figure in figures(HostTotals)}
BANDS: Mapping[str, str] = {
    _LABELS["explained_bytes"]: COLOURS["pinned"],
    _LABELS["other_pinned_bytes"]: COLOURS["registered"],
    "Pinned, of unknown kind": COLOURS["reference"],
}
"""Parts of the pinned total, stacked, with their colours."""
LINES: Mapping[str, str] = {
    _LABELS["mlocked_bytes"]: COLOURS["locked"],
    _LABELS["driver_memory_bytes"]: COLOURS["write_combined"],
}
"""What is not part of it."""
SERIES: Mapping[str, str] = {**BANDS, **LINES}
_KNOWN, _OTHER, _WHOLE = BANDS

_DATA = "moments"
_LEAST_AXIS_BYTES = 2**20
_LOG = "floor(log({0})/log(1024)+1e-9)"
_BYTES_TEXT = (
    "!isValid({0}) ? 'n/a' : {0} < 1 ? '0 B' : "
    f"format({{0}}/pow(1024,{_LOG}),'.3~r')+' '+['B','KiB','MiB','GiB','TiB','PiB'][{_LOG}]"
)
"""A size in binary units, as a Vega expression."""
_TICKS = "sequence(0, domain('y')[1]*1.0001, pow(2, round(log(domain('y')[1]/5)/LN2)))"
"""Round numbers of binary units: steps of a power of two, four to seven of them."""


def frame(samples: Sequence[Sample], window_seconds: float, interval_seconds: float) -> pd.DataFrame:
    """The last ``window_seconds`` of the samples, one row a moment, a column a series.

    Args:
        samples: oldest first.
        window_seconds: how far back from the last sample.
        interval_seconds: from one sample to the next; a gap of the series is left open.

    Returns:
        ``time`` (UTC) and a float32 column of bytes for each of :data:`SERIES`; what is not known is not a number. The
        first row stands where the axis begins. Of more moments than a screen can show,
        those with the most pinned and locked memory stay.
    """
    shown = within(samples, window_seconds)
    rows: list[tuple[Any, ...]] = []
    if shown:
        seconds = min(window_seconds, max(LEAST_SECONDS, shown[-1].elapsed_seconds - shown[0].elapsed_seconds))
        rows.append(_nothing(shown[-1].taken_at - timedelta(seconds=seconds)))
    bucket = max(window_seconds / MOST_POINTS, interval_seconds)
    longest = timedelta(seconds=gap_seconds(bucket))
    previous: Sample | None = None
    for one in highest_of_each(shown, bucket):
        if previous is not None and one.taken_at - previous.taken_at > longest:
            rows.append((previous.taken_at + timedelta(seconds=bucket), *rows[-1][1:]))  # held until then
            rows.append(_nothing(previous.taken_at + timedelta(seconds=bucket)))
        rows.append((one.taken_at, *_values(one)))
        previous = one
    if previous is not None:
        rows.append((shown[-1].taken_at + timedelta(seconds=interval_seconds), *_values(shown[-1])))
    found = pd.DataFrame(rows, columns=["time", *SERIES])
    found["time"] = pd.to_datetime(found["time"], utc=True).astype("datetime64[ms, UTC]")
    return found.astype(dict.fromkeys(SERIES, np.float32))


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
    return (
        sample.explained_bytes, sample.other_pinned_bytes, None, sample.mlocked_bytes, sample.driver_memory_bytes,
    )  # fmt: skip


def _nothing(moment: object) -> tuple[Any, ...]:
    return (moment, *[None] * len(SERIES))


def _layer(names: Sequence[str], mark: Mapping[str, Any], stack: str | None) -> dict[str, Any]:
    dimmed = {"condition": {"param": "picked", "value": 1.0}, "value": 0.15}
    return {
        "transform": [{"fold": list(names), "as": ["series", "bytes"]}],
        "mark": {"interpolate": "step-after", **mark},
        "encoding": {
            "y": {"field": "bytes", "type": "quantitative", "stack": stack},
            "color": {"field": "series", "type": "nominal"},
            "opacity": dimmed,
            "order": {"field": "series", "sort": "ascending"},
        },
    }


def _hover() -> dict[str, Any]:
    """A line below the pointer, with every figure of that moment."""
    texts = [
        {"calculate": _BYTES_TEXT.format(f"datum[{name!r}]"), "as": f"text {number}"}
        for number, name in enumerate(SERIES)
    ]
    shown = [{"field": f"text {number}", "title": name} for number, name in enumerate(SERIES)]
    moment = {"field": "time", "title": "Time (UTC)", "timeUnit": "utcyearmonthdatehoursminutesseconds"}
    return {
        "params": [{
            "name": "pointed",
            "select": {"type": "point", "fields": ["time"], "nearest": True, "on": "pointermove",
                       "clear": "pointerout"},
        }],
        "transform": texts,
        "mark": {"type": "rule", "color": COLOURS["reference"]},
        "encoding": {
            "opacity": {"condition": {"param": "pointed", "empty": False, "value": 0.9}, "value": 0},
            "tooltip": [{**moment, "format": "%H:%M:%S"}, *shown],
        },
    }  # fmt: skip


_PICKED: Mapping[str, Any] = {
    "name": "picked",
    "select": {"type": "point", "fields": ["series"]},
    "bind": "legend",
}
_ZOOM: Mapping[str, Any] = {
    "name": "zoom",
    # The wheel alone goes on scrolling the page; a pinch arrives as a wheel with Ctrl.
    "select": {"type": "interval", "encodings": ["x"], "zoom": "wheel![event.ctrlKey || event.metaKey]"},
    "bind": "scales",
}

SPEC: Mapping[str, Any] = MappingProxyType(
    {
        "data": {"name": _DATA},
        "height": 320,
        "config": {"legend": {"padding": 0, "offset": 12}, "axis": {"labelPadding": 6}},
        "encoding": {
            "x": {
                "field": "time", "type": "temporal", "scale": {"type": "utc"},
                "axis": {"title": None, "grid": False, "format": "%H:%M:%S", "labelOverlap": True, "tickCount": 6},
            },
            "y": {
                "scale": {"nice": False},
                "axis": {"title": None, "labelExpr": _BYTES_TEXT.format("datum.value"), "values": {"expr": _TICKS}},
            },
            "color": {
                "scale": {"domain": list(SERIES), "range": list(SERIES.values())},
                "legend": {"title": None, "orient": "top", "columns": {"expr": "width > 620 ? 4 : 1"},
                           "labelLimit": 0, "symbolType": "square"},
            },
        },
        "layer": [
            {
                **_layer(list(BANDS), {"type": "area", "fillOpacity": 0.75, "line": {"strokeWidth": 1}}, "zero"),
                "params": [_PICKED, _ZOOM],
            },
            _layer(list(LINES), {"type": "line", "strokeWidth": 2, "strokeDash": [6, 3]}, None),
            {"mark": {"type": "point", "opacity": 0}, "encoding": {"x": None, "y": {"datum": _LEAST_AXIS_BYTES}}},
            _hover(),
        ],
    }
)  # fmt: skip
"""What :func:`frame` is drawn with."""


def drawing(moments: pd.DataFrame) -> dict[str, Any]:
    """The specification with the moments from :func:`frame`.

    The data goes by name: without it, the browser draws once before it has any, and complains.
    """
    return {**SPEC, "datasets": {_DATA: moments}}


def trends(samples: Sequence[Sample], window_seconds: float) -> Mapping[tuple[int, object], list[float]]:
    """What each process held through the window, in few steps; by pid and start. One that a sample left out held 0.

    Only those with the most bytes are in a sample.
    """
    shown = within(samples, window_seconds)
    if not shown:
        return {}
    picked = list(shown[:: max(1, len(shown) // TREND_POINTS)])
    if picked[-1] is not shown[-1]:
        picked.append(shown[-1])
    found: dict[tuple[int, object], list[float]] = {
        (one.pid, one.started_at): [0.0] * len(picked) for one in picked[-1].holders
    }
    for number, sample in enumerate(picked):
        for one in sample.holders:
            steps = found.get((one.pid, one.started_at))
            if steps is not None:
                steps[number] = float(held_by(one))
    return found
