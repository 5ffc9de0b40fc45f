"""The one sampler that all browser tabs look at. It runs while somebody looks, and rests when nobody does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

import streamlit as st

from pinscope.live.sampler import History, Sampler
from pinscope.live.source import LiveSource, open_source
from pinscope.records.snapshot import Snapshot

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
