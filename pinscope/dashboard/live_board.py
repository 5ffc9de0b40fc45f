"""What the page Now shows: sampled once for all tabs, as plain data, and what changed between two moments."""

from __future__ import annotations

import json
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

import streamlit as st

from pinscope.charts.theme import COLOURS
from pinscope.live.findings import snapshot_findings, snapshot_verdict
from pinscope.live.sampler import History, Sampler
from pinscope.live.series import BANDS, SERIES, Curve, growing, holder_trends, moments, within
from pinscope.live.source import LiveSource, open_source
from pinscope.records.figure import Figure, figures
from pinscope.records.run import Finding
from pinscope.records.snapshot import DeviceFigures, Holder, HostTotals, Snapshot, Unreadable
from pinscope.records.timeline import Event, EventKind
from pinscope.report import snapshot_facts
from pinscope.report.facts import SEVERITY_WORDS, Fact, by_severity, quantity_text
from pinscope.report.write import render_snapshot
from pinscope.text import one_line, sentence
from pinscope.units import format_bytes, format_seconds

Json = dict[str, Any]
MOST_EVENTS = 200
TREND_STEPS = 40
"""Steps of a small curve, at most, but for the one that has begun."""
TREND_HEIGHT = 100
"""Of the tallest step of a small curve."""
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
    content: Json = {"interval": history.interval_seconds, "series": SERIES_LIST}
    snapshot = history.latest
    if history.trouble:
        rest = "Below is the last reading that succeeded." if snapshot else "PinScope keeps trying."
        content["trouble"] = f"{sentence(history.trouble)} {rest}"
    if snapshot is None:
        return content
    return content | {
        "taken": milliseconds(snapshot.taken_at),
        "took": format_seconds(snapshot.cpu_seconds),
        "verdict": one_line(snapshot_verdict(snapshot)),
        "figures": _figures(snapshot.host, _HOST),
        "host": _numbered(_fact(fact) for fact in snapshot_facts.host_facts(snapshot.host)),
        "columns": {
            name: {"label": figure.label, "help": figure.help, "hidden": figure.page == "hidden"}
            for name, figure in snapshot_facts.COLUMNS.items()
            if figure.page and (snapshot.probe is not None or not figure.probed)
        },
        "holders": _holders(history, snapshot, window_seconds),
        "devices": _numbered(_device(device) for device in snapshot.devices),
        "no_gpu": "" if snapshot.devices else _no_gpu(snapshot),
        "findings": _numbered(_finding(finding) for finding in by_severity(snapshot_findings(snapshot))),
        "events": _events(history.events, snapshot.taken_at - timedelta(seconds=window_seconds)),
        "gaps": _numbered(_gap(gap) for gap in snapshot.unreadable),
    }


def holder_key(holder: Holder) -> str:
    """Tells a process from any other, also from a later one with the same number."""
    return f"{holder.pid}-{milliseconds(holder.started_at) if holder.started_at else ''}"


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
    cards: Json = {}
    for figure in chosen:
        note = record.note(figure.field)
        cards[figure.field] = {
            "label": figure.label,
            "text": snapshot_facts.figure_text(record, figure.field, figure.unit, because=False),
            "below": snapshot_facts.share_text(record, figure.field) or "",
            "help": f"{figure.help} {sentence(note)}" if note else figure.help,
        }
    return cards


def _holders(history: History, snapshot: Snapshot, window_seconds: float) -> Json:
    """Most bytes first; those that only lock memory are marked, as that is not pinned."""
    lately = within(history.samples, window_seconds)
    rows = snapshot_facts.holder_rows(snapshot.holders, growing(lately))
    curves = holder_trends(lately, TREND_STEPS)
    return {
        holder_key(row.holder): _holder(row, rank, curves.get((row.holder.pid, row.holder.started_at), ()))
        for rank, row in enumerate(rows)
    }


def _holder(row: snapshot_facts.HolderRow, rank: int, curve: Curve) -> Json:
    holder = row.holder
    highest = max((step or 0.0 for step in curve), default=0.0) or 1.0
    return {
        "rank": rank,
        "name": one_line(holder.name) or "n/a",
        "pid": holder.pid,
        "only_locked": row.only_locked,
        "grows": row.growing,
        "cells": {
            name: [row.amounts[name], row.text(name)] for name, figure in snapshot_facts.COLUMNS.items() if figure.page
        },
        "gpus": snapshot_facts.gpus_text(row.gpus),
        "trend": [round(TREND_HEIGHT * (step or 0.0) / highest) for step in curve],
        "user": one_line(holder.user or ""),
        "container": one_line(holder.container or ""),
        "group": one_line(holder.cgroup or ""),
        "started": milliseconds(holder.started_at) if holder.started_at else 0,
        "command": one_line(holder.command or ""),
    }


def _device(device: DeviceFigures) -> Json:
    return {
        "title": f"GPU {device.index}: {one_line(device.name)}",
        "figures": _figures(device, _GPU),
        "facts": _numbered(_fact(fact) for fact in snapshot_facts.device_facts(device)),
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
    listed: Json = {}
    for event in reversed(events):
        if event.at < begin or len(listed) == MOST_EVENTS:
            break
        at = milliseconds(event.at)
        listed[f"{at}-{event.pid}-{event.what}-{event.kind}"] = {
            "at": at,
            "event": _EVENTS[event.kind],
            "name": one_line(event.name),
            "pid": event.pid,
            "memory": snapshot_facts.COLUMNS[f"{event.what}_bytes"].label,
            "change": f"{'+' if event.change_bytes > 0 else '−'} {format_bytes(abs(event.change_bytes))}",
            "total": format_bytes(event.total_bytes),
        }
    return listed


def _gap(gap: Unreadable) -> Json:
    return {
        "what": one_line(gap.what),
        "reason": one_line(sentence(gap.reason)) if gap.reason else "",
        "advice": one_line(gap.advice) if gap.advice else "",
        "hides": gap.hides_holders,
    }


MOST_VIEWS = 16
"""Moments, each through a window, that are kept to tell what changed since; a browser asks once a second."""
LEAST_WAIT_SECONDS = 0.25
"""From one question to the next of a tab that waits for the first snapshot."""


@dataclass(frozen=True)
class View:
    """One moment through one window. ``tag`` names it to browsers."""

    tag: str
    history: History
    window_seconds: float

    @cached_property
    def document(self) -> Json:
        """What the page shows."""
        return document(self.history, self.window_seconds)

    @cached_property
    def whole(self) -> bytes:
        """The document with the chart's moments."""
        all_moments = moments(self.history.samples, self.window_seconds, self.history.interval_seconds)
        return _dumped(self.document | {"moments": all_moments})

    def since(self, older: View) -> bytes:
        """What changed from another moment to this one."""
        if older is self:
            return b"{}"
        after = older.history.samples[-1].elapsed_seconds if older.history.samples else None
        new = moments(self.history.samples, self.window_seconds, self.history.interval_seconds, after)
        return _dumped(patch(older.document, self.document) | {"moments": new})


class Board:
    """The last moments, for all tabs; thread-safe.

    Args:
        look: what is known now.
    """

    def __init__(self, look: Callable[[], History]) -> None:
        self._look = look
        self._lock = threading.Lock()
        self._views: OrderedDict[str, View] = OrderedDict()
        self._server = secrets.token_hex(4)
        self._made = 0

    def answer(self, window_seconds: float, known: str, chosen: str) -> bytes:
        """What changed for a tab since the view that it has.

        Args:
            window_seconds: how far back it looks; one of :data:`pinscope.dashboard.routes.WINDOWS`.
            known: tag of the view that it has; empty for none.
            chosen: key of the process that is looked into; empty for none.
        """
        with self._lock:
            view = self._current(window_seconds)
            before = self._views.get(known)
            if before is not None and before.window_seconds != window_seconds:
                before = None
            wait = view.history.interval_seconds if view.history.latest else LEAST_WAIT_SECONDS
            about: Json = {"tag": view.tag, "wait": wait}
            if before is not view:
                about["facts"] = _facts(view, chosen) if chosen else {}
            if before is not None:
                about["base"] = known
            content = view.whole if before is None else view.since(before)
        return b'%s, "document": %s}' % (_dumped(about)[:-1], content)

    def snapshot(self, tag: str) -> bytes | None:
        """The snapshot of a view as JSON; ``None`` if it is not kept any more."""
        view = self._views.get(tag)
        latest = view.history.latest if view else None
        return render_snapshot(latest, snapshot_findings(latest)) if latest else None

    def facts(self, tag: str) -> bytes | None:
        """All that is known of each holder of a view, by key; ``None`` if it is not kept any more."""
        view = self._views.get(tag)
        return _dumped(_facts(view)) if view else None

    def _current(self, window_seconds: float) -> View:
        history = self._look()
        for view in reversed(self._views.values()):
            known = view.history
            if view.window_seconds == window_seconds and (
                known.trouble == history.trouble and known.latest is history.latest
            ):
                return view
        self._made += 1
        view = View(f"{self._server}-{self._made}", history, window_seconds)
        self._views[view.tag] = view
        if len(self._views) > MOST_VIEWS:
            self._views.popitem(last=False)
        return view


def _facts(view: View, chosen: str = "") -> Json:
    """All that is known of the process with that key, or of each; one that holds nothing any more is left out."""
    keyed = {holder_key(holder): holder for holder in (view.history.latest.holders if view.history.latest else ())}
    return {
        key: [_fact(fact) for fact in snapshot_facts.holder_facts(holder)]
        for key, holder in keyed.items()
        if chosen in ("", key)
    }


def _dumped(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


REST_SECONDS = 90.0
"""After so long without a look sampling stops. Browsers wake the timers of a hidden tab once a minute."""
INTERVAL_SECONDS = 1.0


class Watch:
    """Samples this host for every open page; thread-safe.

    Args:
        open_source: gives the source; entered when sampling starts, left when it stops.
        rest_seconds: without a look for so long, sampling stops.
        interval_seconds: from one snapshot to the next.
    """

    def __init__(
        self,
        open_source: Callable[[], LiveSource] = lambda: open_source(interval_seconds=INTERVAL_SECONDS),
        rest_seconds: float = REST_SECONDS,
        interval_seconds: float = INTERVAL_SECONDS,
    ) -> None:
        self._open_source = open_source
        self._rest_seconds = rest_seconds
        self._lock = threading.RLock()
        self._alarm = threading.Timer(rest_seconds, self._rest)
        self._source: LiveSource
        self._opened = ExitStack()
        self._sampler = Sampler(self._take, interval_seconds)
        self._stale: Snapshot | None = None

    def look(self) -> History:
        """What is known now; sampling goes on, or starts again, for a while.

        ``latest`` is ``None`` until there is one that is not from before the rest.
        """
        with self._lock:
            self._alarm.cancel()
            self._alarm = threading.Timer(self._rest_seconds, self._rest)
            self._alarm.daemon = True
            self._alarm.start()
            if not self._sampler.running:
                self._stale = self._sampler.history().latest
                self._source = self._opened.enter_context(self._open_source())
                self._sampler.start()
            history = self._sampler.history()
            return replace(history, latest=None) if history.latest is self._stale else history

    @property
    def running(self) -> bool:
        """Whether it samples now."""
        return self._sampler.running

    def close(self) -> None:
        """Stop; a later look starts it again."""
        with self._lock:
            self._alarm.cancel()
            self._sampler.stop()
            self._opened.close()

    def _take(self) -> Snapshot:
        return self._source.take()

    def _rest(self) -> None:
        with self._lock:
            if self._alarm is threading.current_thread():  # else somebody has looked this moment
                self.close()


@st.cache_resource(show_spinner=False, on_release=Watch.close)
def watch() -> Watch:
    """The one of this server."""
    return Watch()
