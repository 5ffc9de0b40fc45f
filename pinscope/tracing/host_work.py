"""What the CPU did for copies beside the driver's calls: rows of the library's calls that move data of the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pinscope.records.trace_row import LARGE_BYTES
from pinscope.tracing.mapped_file import CONVERTED, GATHERED, LOADS, PINNED, PINS, RECEIVE, RECEIVED, STAGED
from pinscope.tracing.stretch import Busy, Times, once

MOST_DETAILS = 3
"""Conversions that a row names."""
NOT_AS_IT_LIES = "gathered: it is not contiguous"


class HostWork:
    """The followed calls of one process.

    Args:
        calls: of the spool.
        names: of each number in them, the call and what it did.
        own: of each stack whether its line is the program's own. What a library does in a thread of its own is left
            out.
        driver: the calls of the driver.
        busy: when some GPU computed or copied.
        looked: correlation id of such a call → nanoseconds that we looked at its memory before, which are not the
            library's.
    """

    def __init__(
        self,
        calls: NDArray[Any],
        names: Sequence[tuple[str, str]],
        own: NDArray[np.bool_],
        driver: NDArray[Any],
        busy: Busy,
        looked: Mapping[int, int],
    ) -> None:
        self._names, self._driver, self._busy = names, driver, busy
        self._reached = driver["start"].copy()
        """Of each call of the driver when the library had come to it."""
        seen = np.flatnonzero(np.isin(driver["correlation_id"], list(looked)))
        took = [looked[number] for number in driver["correlation_id"][seen].tolist()]
        self._reached[seen] -= np.asarray(took, np.int64)
        calls = calls[calls["name"] < len(names)]
        calls["stack"][calls["stack"] >= len(own)] = 0
        self.calls: NDArray[Any] = calls[own[calls["stack"]]] if own.any() else calls
        """In the order of their beginnings."""
        self.kinds = np.unique([names[number][0] for number in self.calls["name"]], return_inverse=True)[1].reshape(-1)
        """Of each call a number for its name."""
        self._loads = (self.calls["flags"] & LOADS) > 0

    @cached_property
    def _received(self) -> NDArray[np.float64]:
        """Of each wait for a batch, how long of it what workers sent was received."""
        waits = np.flatnonzero(self._loads)
        sent = np.asarray([name == RECEIVE for name, _ in self._names])[self.calls["name"]]
        seconds = np.zeros(len(self.calls))
        for thread in np.unique(self.calls["thread"][waits]):
            outer = waits[self.calls["thread"][waits] == thread]
            within = np.flatnonzero(sent & (self.calls["thread"] == thread))
            place = np.searchsorted(self.calls["start"][outer], self.calls["start"][within], side="right") - 1
            inside = (place >= 0) & (self.calls["end"][within] <= self.calls["end"][outer[np.maximum(place, 0)]])
            np.add.at(seconds, outer[place[inside]], _took(self.calls[within[inside]]))
        return seconds

    @cached_property
    def of_driver_calls(self) -> NDArray[np.intp]:
        """Of each call of the driver the library's call that it was made in, −1 where there is none."""
        calls, inner = self._driver, np.full(len(self._driver), -1, np.intp)
        movers = np.flatnonzero(~self._loads)
        for thread in np.unique(self.calls["thread"][movers]):
            outer = movers[self.calls["thread"][movers] == thread]
            within = np.flatnonzero(calls["thread"] == thread)
            place = np.searchsorted(self.calls["start"][outer], calls["start"][within], side="right") - 1
            holds = (place >= 0) & (calls["end"][within] <= self.calls["end"][outer[np.maximum(place, 0)]])
            inner[within[holds]] = outer[place[holds]]
        return inner

    @cached_property
    def _pieces(self) -> tuple[NDArray[np.intp], Times, Times]:
        """Stretches on the CPU before, between and behind the driver's calls: call, beginning and end of each."""
        movers = np.flatnonzero(~self._loads)
        inside = np.flatnonzero(self.of_driver_calls >= 0)
        owners, driver = self.of_driver_calls[inside], self._driver[inside]
        calls = self.calls[movers]
        whose = np.concatenate([movers, owners])
        begun = np.concatenate([calls["start"], driver["end"]]).astype(np.int64)
        ended = np.concatenate([calls["end"], self._reached[inside]]).astype(np.int64)
        first, last = np.lexsort((begun, whose)), np.lexsort((ended, whose))
        return whose[first], begun[first], np.maximum(begun[first], ended[last])

    @cached_property
    def seconds(self) -> NDArray[np.float64]:
        """Of each call how long it was on the CPU beside the driver's calls."""
        whose, begun, ended = self._pieces
        return np.bincount(whose, ended - begun, len(self.calls)) / 1e9

    @cached_property
    def _idle(self) -> tuple[NDArray[np.intp], Times, Times]:
        """Of each stretch, cut so that no moment belongs to two, how long no GPU computed or copied: the call, where
        that ends, and nanoseconds."""
        whose, begun, ended = self._pieces
        order = np.argsort(begun, kind="stable")
        starts, ends = once(begun[order], ended[order])
        return whose[order], ends, ends - starts - self._busy.within(starts, ends)

    @cached_property
    def idle_seconds(self) -> NDArray[np.float64]:
        """Of each call how long all GPUs stood idle meanwhile, beside the driver's calls."""
        whose, _, idle = self._idle
        return np.bincount(whose, idle, len(self.calls)) / 1e9

    def idle_within(self, starts: Times, ends: Times) -> Times:
        """How much of that lies in each stretch in which no kernel runs."""
        _, reached, idle = self._idle
        order = np.argsort(reached, kind="stable")
        sums = np.append(0, np.cumsum(idle[order]))
        first, behind = (np.searchsorted(reached[order], moments) for moments in (starts, ends))
        return np.asarray(sums[behind] - sums[first], np.int64)

    def together(self, rows: NDArray[np.intp], pinned_at: NDArray[np.intp], pinned: NDArray[Any]) -> dict[str, Any]:
        """What is known of some calls of one name.

        Args:
            rows: their places.
            pinned_at: of what was pinned, the place of the driver's call; −1 where that is not known.
            pinned: its bytes.
        """
        calls, flags = self.calls[rows], self.calls["flags"][rows]
        known = pinned_at >= 0
        newly = pinned[known][np.isin(self.of_driver_calls[pinned_at[known]], rows)]
        return {
            "call": self._names[calls["name"][0]][0],
            "count": len(rows),
            "bytes": int(calls["bytes"].sum()),
            "call_seconds": float(_took(calls).sum()),
            "host_seconds": float(self.seconds[rows].sum()),
            "idle_seconds": float(self.idle_seconds[rows].sum()),
            "processor_seconds": float(calls["processor"].sum()) / 1e9,
            "minor_faults": int(calls["minor_faults"].sum()),
            "major_faults": int(calls["major_faults"].sum()),
            "converted_bytes": int(calls["bytes"][(flags & CONVERTED) > 0].sum()),
            "gathered_bytes": int(calls["bytes"][(flags & GATHERED) > 0].sum()),
            "staged_bytes": int(calls["bytes"][(flags & STAGED) > 0].sum()),
            "pinned_source_count": int(((flags & PINNED) > 0).sum()),
            "newly_pinned_count": len(newly),
            "newly_pinned_bytes": int(newly.sum()),
            "reason": self._reason(rows),
            **(self._of_loader(rows) if self._loads[rows].any() else {}),
        }

    def _of_loader(self, rows: NDArray[np.intp]) -> dict[str, Any]:
        """Of waits for batches: a few long ones, such as the first, are no steady wait."""
        waited = float(np.median(_took(self.calls[rows]) - self._received[rows]))
        pins = (self.calls["flags"][rows] & PINS) > 0
        return {"wait_seconds": max(waited, 0.0) * len(rows), "pins_batches": bool(pins.any())}

    def _reason(self, rows: NDArray[np.intp]) -> str | None:
        """What these calls did to the data on the CPU."""
        flags = self.calls["flags"][rows]
        details = {self._names[number][1] for number in self.calls["name"][rows[(flags & CONVERTED) > 0]]}
        said = [f"converted: {', '.join(sorted(details)[:MOST_DETAILS])}"] if details else []
        return "; ".join([*said, *([NOT_AS_IT_LIES] if (flags & GATHERED).any() else [])]) or None

    def of_copies(self, places: NDArray[np.intp], sizes: NDArray[Any]) -> dict[str, Any]:
        """What is known of the large copies of a site by the calls that made them: how many have a pinned source, how
        many one that a DataLoader's worker sent, and why the data goes through other memory.

        Args:
            places: of the driver's calls.
            sizes: in bytes.
        """
        known = places[(places >= 0) & (sizes > LARGE_BYTES)]
        rows = self.of_driver_calls[known]
        rows = rows[rows >= 0]
        if not len(rows):
            return {}
        flags = self.calls["flags"][rows]
        return {
            "pinned_source_count": int(((flags & PINNED) > 0).sum()),
            "received_count": int(((flags & RECEIVED) > 0).sum()),
            "reason": self._reason(rows),
        }


def _took(calls: NDArray[Any]) -> NDArray[np.float64]:
    """Seconds of each."""
    return np.asarray((calls["end"] - calls["start"]) / 1e9)
