"""Copies that need not be: of data that is where it goes already."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pinscope.records.trace_row import LARGE_BYTES, TraceRow
from pinscope.tracing.host_data import (
    AGAIN,
    BACK,
    BACK_OTHER,
    BACK_PARTLY,
    FIRST,
    LATER,
    LATER_OTHER,
    LATER_PARTLY,
    PARTLY,
)
from pinscope.tracing.line_totals import MEMORY, LineTotals, find, unnumbered

_PAGEABLE = MEMORY.index("pageable")


def needless(totals: LineTotals) -> Iterator[TraceRow]:
    """Of each line the copies that need not be."""
    copied = _Copied(totals)
    yield from copied.sent_again()
    yield from copied.brought_back()


class _Copied:
    """What is known of the data of one process's copies.

    Args:
        totals: its records.
    """

    def __init__(self, totals: LineTotals) -> None:
        self._copies, self._sites = totals.copies, totals.site_of_copies
        copied = self._copies["correlation_id"]
        at = find(copied, totals.data["correlation_id"], ascending=False)
        data, self._at = totals.data[at >= 0], at[at >= 0]
        self._kinds, self._other = data["kind"], find(copied, data["other"], ascending=False)
        self._is_large = self._copies["bytes"] > LARGE_BYTES
        self._is_over = totals.is_over_with_call(self._copies)

    def sent_again(self) -> Iterator[TraceRow]:
        """To the GPU, of what the same line had sent before. Of a line whose data was ever seen to change in places
        nothing is said: there are changes then that samples do not see."""
        sampled = np.isin(self._kinds, (FIRST, AGAIN, PARTLY))
        again = (self._kinds == AGAIN) & (self._other >= 0)
        again &= self._sites[self._other] == self._sites[self._at]
        for number in np.unique(self._sites[self._at[again]]):
            here = self._sites[self._at] == number
            if not (here & (self._kinds == PARTLY)).any():
                yield self._row("sent_again", number, here & again, here & sampled, number)

    def brought_back(self) -> Iterator[TraceRow]:
        """To the host, of what a copy had brought to the same memory of the GPU; likewise. Data in pageable memory was
        there when the call was over, where CUPTI's times say so, too; in pinned memory, once the host sends it."""
        at_once = (self._copies["dst_kind"] == _PAGEABLE) & self._is_over
        same, partly, other = (
            np.where(at_once[self._at], self._kinds == soon, self._kinds == later) & (self._other >= 0)
            for soon, later in ((BACK, LATER), (BACK_PARTLY, LATER_PARTLY), (BACK_OTHER, LATER_OTHER))
        )
        for number in np.unique(self._sites[self._at[same]]):
            here = self._sites[self._at] == number
            if not (here & partly).any():
                sender = int(np.bincount(self._sites[self._other[here & same]]).argmax())
                yield self._row("brought_back", number, here & same, here & (same | other), sender, sent_by=sender)

    def _row(
        self, kind: Any, number: int, chosen: NDArray[np.bool_], sampled: NDArray[np.bool_], sender: int, **values: int
    ) -> TraceRow:
        """Chosen copies of a site, as many as there are: so many times what was seen as the sender made more copies
        than were sampled."""
        sent = self._sites[self._at[np.isin(self._kinds, (FIRST, AGAIN, PARTLY))]] == sender
        more = int((self._is_large & (self._sites == sender)).sum()) / max(int(sent.sum()), 1)
        sizes = self._copies["bytes"]
        large = self._is_large & (self._sites == number)
        return unnumbered(
            kind=kind,
            number=int(number),
            count=min(round(int(chosen.sum()) * more), int(large.sum())),
            bytes=min(round(int(sizes[self._at[chosen]].sum()) * more), int(sizes[large].sum())),
            sampled_count=int(sampled.sum()),
            **values,
        )
