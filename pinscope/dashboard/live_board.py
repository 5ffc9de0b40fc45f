"""The last moments of the page Now, each made once for all tabs that look at it, and what changed between two."""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property

import streamlit as st

from pinscope.dashboard.live_document import Json, chosen_facts, document, holder_key, patch
from pinscope.live.reading import read_snapshot
from pinscope.live.sampler import History, Sampler
from pinscope.live.series import moments
from pinscope.live.source import LiveSource, open_source
from pinscope.records.snapshot import Snapshot
from pinscope.report.json_report import render_snapshot

MOST_VIEWS = 16
"""Moments, each through a window, that are kept to tell what changed since; a browser asks once a second."""
LEAST_WAIT_SECONDS = 0.25
"""From one question to the next of a tab that waits for the first snapshot."""
_LATE_SECONDS = 0.1
"""After a snapshot is due it is there."""


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
        shown = moments(self.history.samples, self.window_seconds, self.history.interval_seconds)
        return _dumped(self.document | {"moments": shown})

    def since(self, older: View) -> bytes:
        """What changed from another moment to this one."""
        after = older.history.samples[-1].elapsed_seconds if older.history.samples else None
        new = moments(self.history.samples, self.window_seconds, self.history.interval_seconds, after)
        return _dumped(patch(older.document, self.document) | {"moments": new})

    def is_of(self, history: History) -> bool:
        """Whether it would be the same."""
        mine = self.history
        same = mine.trouble == history.trouble and mine.interval_seconds == history.interval_seconds
        return same and mine.latest is history.latest


class Board:
    """The last moments, for all tabs; thread-safe.

    Args:
        look: what is known now.
    """

    def __init__(self, look: Callable[[], History]) -> None:
        self._look = look
        self._lock = threading.Lock()
        self._views: OrderedDict[str, View] = OrderedDict()
        self._patches: OrderedDict[tuple[str, str], bytes] = OrderedDict()
        self._server = secrets.token_hex(4)
        self._made = 0

    def answer(self, window_seconds: float, known: str, chosen: str) -> bytes:
        """What changed for a tab since the view that it has.

        Args:
            window_seconds: how far back it looks; one of :data:`WINDOWS`.
            known: tag of the view that it has; empty for none.
            chosen: key of the process that is looked into; empty for none.
        """
        with self._lock:
            view = self._current(window_seconds)
            before = self._views.get(known)
            if before is not None and before.window_seconds != window_seconds:
                before = None
            about: Json = {"tag": view.tag, "wait": _wait_seconds(view.history)}
            if before is not view:
                about["facts"] = _facts(view, chosen)
            if before is not None:
                about["base"] = known
            content = view.whole if before is None else self._patch(before, view)
        return b'%s, "document": %s}' % (_dumped(about)[:-1], content)

    def snapshot(self, tag: str) -> bytes | None:
        """The snapshot of a view as JSON; ``None`` if it is not kept any more."""
        with self._lock:
            view = self._views.get(tag)
        latest = view.history.latest if view else None
        return render_snapshot(latest, read_snapshot(latest)) if latest else None

    def facts(self, tag: str) -> bytes | None:
        """All that is known of each holder of a view, by key; ``None`` if it is not kept any more."""
        with self._lock:
            view = self._views.get(tag)
        return _dumped(_facts(view, "*")) if view else None

    def _current(self, window_seconds: float) -> View:
        history = self._look()
        for view in reversed(self._views.values()):
            if view.window_seconds == window_seconds and view.is_of(history):
                return view
        self._made += 1
        view = View(f"{self._server}-{self._made}", history, window_seconds)
        self._views[view.tag] = view
        if len(self._views) > MOST_VIEWS:
            self._views.popitem(last=False)
        return view

    def _patch(self, before: View, view: View) -> bytes:
        if before is view:
            return b"{}"
        key = (before.tag, view.tag)
        if key not in self._patches:
            self._patches[key] = view.since(before)
            if len(self._patches) > MOST_VIEWS:
                self._patches.popitem(last=False)
        return self._patches[key]


def _facts(view: View, chosen: str) -> Json:
    latest = view.history.latest
    if not chosen or latest is None:
        return {}
    return chosen_facts(latest, map(holder_key, latest.holders) if chosen == "*" else (chosen,))


def _wait_seconds(history: History) -> float:
    """Until there is something new."""
    interval = history.interval_seconds
    if history.latest is None:
        return LEAST_WAIT_SECONDS
    left = interval - (datetime.now(UTC) - history.latest.taken_at).total_seconds()
    if not -0.5 * interval <= left <= interval:  # it is late, or the clock was set
        return max(interval, LEAST_WAIT_SECONDS)
    return round(max(left + _LATE_SECONDS, LEAST_WAIT_SECONDS), 3)


def _dumped(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


REST_SECONDS = 90.0
"""After so long without a look sampling stops. Browsers wake the timers of a hidden tab once a minute."""
DEFAULT_INTERVAL_SECONDS = 1.0


class Watch:
    """Samples this host for every open page; thread-safe.

    Args:
        open_source: gives the source for an interval in seconds; entered when sampling starts, left when it stops.
        rest_seconds: without a look for so long, sampling stops.
        clock: seconds, never going back.
    """

    def __init__(
        self,
        open_source: Callable[[float], LiveSource] = lambda seconds: open_source(interval_seconds=seconds),
        rest_seconds: float = REST_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open_source = open_source
        self._rest_seconds = rest_seconds
        self._clock = clock
        self._lock = threading.RLock()
        self._looked_at = clock()
        self._source: LiveSource | None = None
        self._opened = ExitStack()
        self._sampler = Sampler(self._take, DEFAULT_INTERVAL_SECONDS)
        self._stale: Snapshot | None = None

    def look(self) -> History:
        """What is known now; sampling goes on, or starts again, for a while.

        ``latest`` is ``None`` until there is one that is not from before the rest.
        """
        with self._lock:
            self._looked_at = self._clock()
            if not self._sampler.running:
                self._stale = self._sampler.history().latest
                self._start()
            history = self._sampler.history()
            return replace(history, latest=None) if history.latest is self._stale else history

    def set_interval(self, seconds: float) -> None:
        """Sample at another pace, for all who look.

        Raises:
            InvalidParameter: it is no number of seconds, or too small.
        """
        self._sampler.set_interval(seconds)
        with self._lock:
            if self._sampler.running:  # the driver is asked at the new pace as well
                self.close()
                self._start()

    @property
    def running(self) -> bool:
        """Whether it samples now."""
        return self._sampler.running

    def close(self) -> None:
        """Stop; a later look starts it again."""
        with self._lock:
            self._sampler.stop()
            self._source = None
            self._opened.close()

    def _start(self) -> None:
        source = self._open_source(self._sampler.history().interval_seconds)
        self._source = self._opened.enter_context(source)
        self._sampler.start()

    def _take(self) -> Snapshot:
        """In the sampler's thread. The last one before it rests is dropped by the sampler."""
        source = self._source
        try:
            if source is None:
                raise RuntimeError("sampling was stopped")
            return source.take()
        finally:
            self._rest_if_nobody_looks()

    def _rest_if_nobody_looks(self) -> None:
        if self._clock() - self._looked_at < self._rest_seconds or not self._lock.acquire(blocking=False):
            return  # somebody is starting or stopping it this moment
        try:
            if self._clock() - self._looked_at >= self._rest_seconds:
                self.close()
        finally:
            self._lock.release()


@st.cache_resource(show_spinner=False, on_release=Watch.close)
def watch() -> Watch:
    """The one of this server."""
    return Watch()
