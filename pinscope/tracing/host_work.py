"""What the CPU did for copies beside the driver's calls: rows of the library's calls that move data of the host; and of
which of these calls the copies are that a library makes later."""

from __future__ import annotations

from collections import deque
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
        received = self.calls[np.asarray([name == RECEIVE for name, _ in self._names], bool)[self.calls["name"]]]
        places = _outer_calls(self.calls[waits], received)
        seconds = np.zeros(len(self.calls))
        np.add.at(seconds, waits[places[places >= 0]], _took(received[places >= 0]))
        return seconds

    @cached_property
    def of_driver_calls(self) -> NDArray[np.intp]:
        """Of each call of the driver the library's call that it was made in, −1 where there is none."""
        movers = np.flatnonzero(~self._loads)
        places = _outer_calls(self.calls[movers], self._driver)
        return np.where(places < 0, -1, np.append(movers, -1)[places])

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


def _outer_calls(outer: NDArray[Any], inner: NDArray[Any]) -> NDArray[np.intp]:
    """Of each inner call the place of the outer call of its thread that it lies in; −1 where there is none. The outer
    ones are in the order of their beginnings, and those of a thread follow each other."""
    places = np.full(len(inner), -1, np.intp)
    for thread in np.unique(outer["thread"]):
        of_thread, within = (np.flatnonzero(calls["thread"] == thread) for calls in (outer, inner))
        newest = np.searchsorted(outer["start"][of_thread], inner["start"][within], side="right") - 1
        held = (newest >= 0) & (inner["end"][within] <= outer["end"][of_thread[np.maximum(newest, 0)]])
        places[within[held]] = of_thread[newest[held]]
    return places


# Copies that a library's own threads make once the call has returned, as JAX's do

HANDS_OVER = ("jax.device_put", "jax.numpy.asarray", "jax.numpy.array")
"""Calls that leave the copy to threads of the library."""
MOST_OPEN = 100
"""Calls whose data has not been copied yet; that of older ones has gone another way."""


def lines_by_order(
    copies: NDArray[Any], starts: NDArray[np.int64], calls: NDArray[Any], names: Sequence[tuple[str, str]]
) -> NDArray[np.intp]:
    """Of each copy the stack of its call; 0 where none fits, or more than one GPU has copies: one call may copy to all.

    Args:
        copies: CUPTI's records of large copies to the GPU, made by threads without Python code.
        starts: when each copy's call began; ascending.
        calls: of libraries, as the spool has them.
        names: of each number in them, the call and what it did.
    """
    handing = [number for number, (name, _) in enumerate(names) if name in HANDS_OVER]
    calls = calls[np.isin(calls["name"], handing)]
    if not len(calls) or len(np.unique(copies["device_id"])) > 1:
        return np.zeros(len(copies), np.intp)
    places = calls_of_copies(starts, copies["bytes"], calls["start"], calls["bytes"])
    return np.where(places < 0, 0, calls["stack"][places]).astype(np.intp)


def calls_of_copies(
    copied_at: NDArray[np.int64], copied: NDArray[np.int64], called_at: NDArray[np.int64], called: NDArray[np.int64]
) -> NDArray[np.intp]:
    """Of each copy the place of its call, by bytes and order: the oldest call that had begun and of whose bytes so many
    are left. −1 where none fits; where the copies of a call do not make up its bytes; and where another copy of the
    same bytes has no call, so that they may have been taken for one another.

    Args:
        copied_at: when each copy began; ascending.
        copied: bytes of each.
        called_at: when each call began; ascending.
        called: bytes of each.
    """
    chosen = np.full(len(copied), -1)
    waiting: deque[int] = deque(maxlen=MOST_OPEN)
    left, following = called.copy(), 0
    for place, (moment, size) in enumerate(zip(copied_at, copied, strict=True)):
        while following < len(called) and called_at[following] <= moment:
            waiting.append(following)
            following += 1
        call = next((call for call in waiting if left[call] >= size), None)
        if call is not None:
            chosen[place] = call
            left[call] -= size
            if not left[call]:
                waiting.remove(call)
    is_whole = (chosen >= 0) & (left[chosen] == 0) if len(called) else np.zeros(len(copied), bool)
    return np.where(is_whole & ~np.isin(copied, copied[~is_whole]), chosen, -1)
