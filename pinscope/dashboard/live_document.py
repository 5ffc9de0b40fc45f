"""What the page Now shows of one moment, as plain data that a browser draws; and what changed from one to the next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from pinscope.charts.theme import COLOURS
from pinscope.dashboard.labels import sentence
from pinscope.live.reading import pinned_change, read_snapshot, snapshot_verdict
from pinscope.live.sampler import History
from pinscope.live.series import BANDS, SERIES, Curve, growing, holder_trends, within
from pinscope.records.figure import Figure, figures
from pinscope.records.finding import Finding
from pinscope.records.snapshot import DeviceFigures, Holder, HostTotals, Snapshot, Unreadable
from pinscope.records.timeline import Event, EventKind
from pinscope.report.facts import SEVERITY_WORDS, Fact, by_severity, quantity_text
from pinscope.report.snapshot_facts import (
    COLUMNS,
    HolderRow,
    device_facts,
    figure_text,
    gpus_text,
    holder_facts,
    holder_rows,
    host_facts,
    share_text,
)
from pinscope.text import one_line
from pinscope.units import format_bytes, format_seconds

Json = dict[str, Any]
MOST_EVENTS = 200
TREND_HEIGHT = 100
"""Of the tallest step of a small curve."""
TREND_STEPS = 40
"""Steps of a small curve, at most, but for the one that has begun."""
_HOST, _GPU = (tuple(figure for figure in figures(kind) if figure.page) for kind in (HostTotals, DeviceFigures))
_EVENTS: Mapping[EventKind, str] = {
    "appeared": "● appeared",
    "grew": "▲ grew",
    "released": "▼ released",
    "ended": "○ ended",
}
SERIES_LIST = [{"name": name, "colour": COLOURS[colour], "band": name in BANDS} for name, colour in SERIES.items()]
"""The chart's, in the order of a moment's values."""


def document(history: History, window_seconds: float) -> Json:
    """All that the page shows, but for the chart's moments and what is known of a chosen process.

    Lists are dictionaries by a key that lasts, so that :func:`patch` finds what changed. No value is ``None``.

    Args:
        history: what the sampler saw.
        window_seconds: how far back the marks of growing processes, their curves and the events reach.
    """
    found: Json = {"interval": history.interval_seconds, "series": SERIES_LIST}
    snapshot = history.latest
    if history.trouble:
        rest = "Below is the last reading that succeeded." if snapshot else "PinScope keeps trying."
        found["trouble"] = f"{sentence(history.trouble)} {rest}"
    if snapshot is None:
        return found
    lately = within(history.samples, window_seconds)
    return found | {
        "taken": milliseconds(snapshot.taken_at),
        "took": format_seconds(snapshot.cpu_seconds),
        "verdict": one_line(f"{snapshot_verdict(snapshot)} {pinned_change(lately)}".rstrip()),
        "figures": _figures(snapshot.host, _HOST),
        "host": _numbered(_fact(fact) for fact in host_facts(snapshot.host)),
        "columns": {
            name: {"label": figure.label, "help": figure.help, "hidden": figure.page == "hidden"}
            for name, figure in COLUMNS.items()
            if figure.page and (snapshot.probe is not None or not figure.probed)
        },
        "holders": _holders(history, snapshot, window_seconds),
        "devices": _numbered(_device(device) for device in snapshot.devices),
        "no_gpu": "" if snapshot.devices else _no_gpu(snapshot),
        "findings": _numbered(_finding(finding) for finding in by_severity(read_snapshot(snapshot))),
        "events": _events(history.events, snapshot.taken_at - timedelta(seconds=window_seconds)),
        "gaps": _numbered(_gap(gap) for gap in snapshot.unreadable),
    }


def holder_key(holder: Holder | HolderRow) -> str:
    """Tells a process from any other, also from a later one with the same number."""
    return f"{holder.pid}-{milliseconds(holder.started_at) if holder.started_at else ''}"


def chosen_facts(snapshot: Snapshot, keys: Iterable[str]) -> Json:
    """All that is known of these processes, by key; one that holds nothing any more is left out."""
    wanted = set(keys)
    return {
        key: [_fact(fact) for fact in holder_facts(one)]
        for one in snapshot.holders
        if (key := holder_key(one)) in wanted
    }


def patch(old: Json, new: Json) -> Json:
    """What turns ``old`` into ``new``: values that differ, and ``None`` for what is gone (as RFC 7396 has it)."""
    changed: Json = dict.fromkeys(name for name in old if name not in new)
    for name, value in new.items():
        before = old.get(name)
        if before == value and name in old:
            continue
        both = isinstance(before, dict) and isinstance(value, dict)
        changed[name] = patch(before, value) if both else value  # type: ignore[arg-type]
    return changed


def milliseconds(moment: datetime) -> int:
    """Since 1970, as JavaScript counts."""
    return round(moment.timestamp() * 1000)


def _numbered(items: Iterable[Any]) -> Json:
    return {str(number): item for number, item in enumerate(items)}


def _fact(fact: Fact) -> list[str]:
    return [one_line(text) for text in fact]


def _figures(record: HostTotals | DeviceFigures, chosen: Sequence[Figure]) -> Json:
    """Cards; why a figure is missing or no more than an estimate stands in its help."""
    found: Json = {}
    for figure in chosen:
        note = record.note(figure.field)
        found[figure.field] = {
            "label": figure.label,
            "text": figure_text(record, figure.field, figure.unit, because=False),
            "below": share_text(record, figure.field) or "",
            "help": f"{figure.help} {sentence(note)}" if note else figure.help,
        }
    return found


def _holders(history: History, snapshot: Snapshot, window_seconds: float) -> Json:
    """Most bytes first; those that only lock memory are marked, as that is not pinned."""
    lately = within(history.samples, window_seconds)
    rows = holder_rows(snapshot.holders, growing(lately))
    curves = holder_trends(lately, TREND_STEPS)
    return {
        holder_key(row): _holder(row, one, rank, curves.get((row.pid, row.started_at), ()))
        for rank, (row, one) in enumerate(zip(rows, snapshot.holders, strict=True))
    }


def _holder(row: HolderRow, holder: Holder, rank: int, curve: Curve) -> Json:
    highest = max((step or 0.0 for step in curve), default=0.0) or 1.0
    return {
        "rank": rank,
        "name": row.name,
        "pid": row.pid,
        "only_locked": row.only_locked,
        "grows": row.growing,
        "cells": {name: [row.amounts[name], row.text(name)] for name, figure in COLUMNS.items() if figure.page},
        "gpus": gpus_text(row.gpus),
        "trend": [round(TREND_HEIGHT * (step or 0.0) / highest) for step in curve],
        "user": row.user or "",
        "container": row.container or "",
        "group": one_line(holder.cgroup or ""),
        "started": milliseconds(row.started_at) if row.started_at else 0,
        "command": row.command or "",
    }


def _device(device: DeviceFigures) -> Json:
    return {
        "title": f"GPU {device.index}: {one_line(device.name)}",
        "figures": _figures(device, _GPU),
        "facts": _numbered(_fact(fact) for fact in device_facts(device)),
    }


def _no_gpu(snapshot: Snapshot) -> str:
    gap = next((gap for gap in snapshot.unreadable if gap.what == "GPUs"), None)
    reason = sentence(gap.reason) if gap else "The driver reports no GPU."
    advice = f" {gap.advice}" if gap and gap.advice else ""
    return one_line(f"{reason} The rest of this page works without a GPU.{advice}")


def _finding(finding: Finding) -> Json:
    evidence = (f"{one_line(quantity.name)}: {one_line(quantity_text(quantity))}" for quantity in finding.evidence)
    return {
        "severity": finding.severity,
        "word": SEVERITY_WORDS[finding.severity],
        "title": one_line(finding.title),
        "detail": one_line(sentence(finding.detail)) if finding.detail else "",
        "evidence": " · ".join(evidence),
        "advice": one_line(finding.advice) if finding.advice and finding.severity != "good" else "",
        "code": finding.code or "",
    }


def _events(events: Sequence[Event], begin: datetime) -> Json:
    """What happened to the holders within the window, as far as a page lists it; by what happened to whom when."""
    shown: Json = {}
    for event in reversed(events):
        if event.at < begin or len(shown) == MOST_EVENTS:
            break
        at = milliseconds(event.at)
        shown[f"{at}-{event.pid}-{event.what}-{event.kind}"] = {
            "at": at,
            "event": _EVENTS[event.kind],
            "name": one_line(event.name),
            "pid": event.pid,
            "memory": COLUMNS[f"{event.what}_bytes"].label,
            "change": f"{'+' if event.change_bytes > 0 else '−'} {format_bytes(abs(event.change_bytes))}",
            "total": format_bytes(event.total_bytes),
        }
    return shown


def _gap(gap: Unreadable) -> Json:
    return {
        "what": one_line(gap.what),
        "reason": one_line(sentence(gap.reason)) if gap.reason else "",
        "advice": one_line(gap.advice) if gap.advice else "",
        "hides": gap.hides_holders,
    }
