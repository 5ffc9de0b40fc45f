"""Copies that need not be: of data that is where it goes already, and of one block in pieces."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pinscope.records.run import TraceRow
from pinscope.records.traffic import NeedlessKind
from pinscope.tracing.host_data import PIECES_OF_ONE, UNIFORM

if TYPE_CHECKING:
    from pinscope.tracing.line_totals import LineTotals

_H2D, _D2H = 1, 2
"""CUPTI's kinds of copies between host and GPU."""


@dataclass(frozen=True)
class _Chains:
    """Copies of the same bytes at the same address, one chain for each: places of copies, chain by chain, each in the
    order of time.

    Attributes:
        places: of the copies.
        numbers: of the chain of each.
    """

    places: NDArray[np.intp]
    numbers: NDArray[np.intp]

    @classmethod
    def of(cls, rows: NDArray[np.intp], address: NDArray[Any], size: NDArray[Any]) -> _Chains:
        """Those of these copies."""
        order = np.lexsort((rows, size[rows], address[rows]))
        places = rows[order]
        is_new = (np.diff(address[places].astype(np.int64)) != 0) | (np.diff(size[places]) != 0)
        return cls(places, np.concatenate([[0], np.cumsum(is_new)])[: len(places)])

    def last(self, wanted: NDArray[np.bool_]) -> NDArray[np.intp]:
        """For each copy the place here of the last wanted one of its chain, itself counted; −1 where there is none."""
        here = np.arange(len(self.places))
        last = np.maximum.accumulate(np.where(wanted, here, -1)) if len(here) else here
        return np.where((last >= 0) & (self.numbers[last] == self.numbers), last, -1)

    def next(self, wanted: NDArray[np.bool_]) -> NDArray[np.intp]:
        """Likewise the next one."""
        mirrored = _Chains(self.places[::-1], self.numbers[::-1]).last(wanted[::-1])[::-1]
        return np.where(mirrored >= 0, len(self.places) - 1 - mirrored, -1)

    def stood_for(self, known: NDArray[np.bool_], chosen: NDArray[np.bool_]) -> NDArray[np.intp]:
        """Places of the copies that the chosen of the known ones stand for: each for itself and those since the known
        one before; in the order of time."""
        before = self.last(known)
        here = np.flatnonzero(chosen)
        since = np.where(here > 0, before[here - 1], -1)
        since = np.where((since >= 0) & (self.numbers[since] == self.numbers[here]), since, here - 1)
        steps = np.zeros(len(self.places) + 1, np.intp)
        np.add.at(steps, since + 1, 1)
        np.add.at(steps, here + 1, -1)
        return np.sort(self.places[np.cumsum(steps[:-1]) > 0])


class CopiedData:
    """What the copies of one process carried.

    Args:
        totals: its records.
    """

    def __init__(self, totals: LineTotals) -> None:
        copies = totals.copies
        self._totals = totals
        noted = totals.data_places(copies)
        data = totals.data if len(totals.data) else np.zeros(1, totals.data.dtype)
        self._is_noted = (noted >= 0) & (data["kind"][noted] != PIECES_OF_ONE)
        self._host, self._device = data["host"][noted], data["device"][noted]
        self._size = np.asarray(copies["bytes"])
        self._up = np.flatnonzero(self._is_noted & (copies["copy_kind"] == _H2D))
        self._back = np.flatnonzero(self._is_noted & (copies["copy_kind"] == _D2H))
        is_read = self._is_noted & (data["kind"][noted] > 0)
        late = np.zeros(len(copies), bool)  # the copy was not over when the sample was read
        late[self._back] = ~totals.is_over_with_call(copies[self._back])
        self._sample = np.where(is_read & ~late, data["sample"][noted], 0)
        self._is_uniform = data["kind"][noted] == UNIFORM
        self._carried = self._filled()
        """What each copy to the GPU carried, by its sample or those before and behind it; 0 where that is not known."""

    def rows(self) -> Iterator[TraceRow]:
        """Of each line the copies that need not be."""
        yield from self._in_pieces()
        if not self._is_noted.any():
            return
        yield from self._by_site("sent_again", self._sent_again())
        back, sender = self._brought_back()
        yield from self._by_site("brought_back", back, sender)

    def _filled(self) -> NDArray[np.uint64]:
        """A copy between two of its chain with equal samples carried what they did."""
        chains = _Chains.of(self._up, self._host, self._size)
        samples = self._sample[chains.places]
        before, behind = chains.last(samples > 0), chains.next(samples > 0)
        is_known = (before >= 0) & (behind >= 0) & (samples[before] == samples[behind])
        carried = np.zeros(len(self._size), np.uint64)
        carried[chains.places] = np.where(is_known, samples[before], 0)
        return carried

    def _sent_again(self) -> NDArray[np.intp]:
        """Copies to the GPU of what a line has sent before: by a sample of its own, as libraries gather the data in
        memory of theirs first; by one that is of one value only where the same memory held it at the last copy."""
        chains = _Chains.of(self._up, self._host, self._size)
        samples = self._sample[chains.places]
        before = np.concatenate([[-1], chains.last(samples > 0)[:-1]])[: len(samples)]
        again = (before >= 0) & (samples > 0) & (samples[before] == samples)
        again &= chains.numbers[before] == chains.numbers
        varied = np.flatnonzero((samples > 0) & ~self._is_uniform[chains.places])
        places = chains.places[varied]
        labels = (self._totals.site_of_copies[places], self._size[places], samples[varied])
        order = np.lexsort((places, *labels))
        is_first = np.concatenate([[True], np.any([np.diff(label[order]) != 0 for label in labels], axis=0)])
        again[varied[order[~is_first[: len(order)]]]] = True
        return chains.stood_for(samples > 0, again)

    def _brought_back(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Copies to the host of what the last one to the same memory of the GPU had brought there, and those."""
        both = np.sort(np.concatenate([self._up, self._back]))
        is_up = self._totals.copies["copy_kind"] == _H2D
        at_host = _Chains.of(both, self._host, self._size)
        following = np.roll(at_host.places, -1)  # what a copy brought, seen when the host sends it
        is_sent = np.roll(at_host.numbers, -1) == at_host.numbers
        is_sent[-1:] = False
        brought = self._sample.copy()
        unknown = is_sent & ~is_up[at_host.places] & is_up[following] & (brought[at_host.places] == 0)
        brought[at_host.places[unknown]] = self._carried[following[unknown]]
        on_gpu = _Chains.of(both, self._device, self._size)
        last = on_gpu.last(is_up[on_gpu.places])
        sender = np.full(len(self._size), -1)
        sender[on_gpu.places] = np.where(last >= 0, on_gpu.places[last], -1)
        chains = _Chains.of(self._back, self._device, self._size)
        places = chains.places
        known = (brought[places] > 0) & (sender[places] >= 0) & (self._carried[sender[places]] > 0)
        same = known & (brought[places] == self._carried[sender[places]])
        returned = chains.stood_for(known, same)
        returned = returned[sender[returned] >= 0]
        return returned, sender[returned]

    def _in_pieces(self) -> Iterator[TraceRow]:
        """Small copies that are pieces of one block."""
        totals = self._totals
        runs = totals.data[totals.data["kind"] == PIECES_OF_ONE]
        places = totals.copy_places(runs)
        runs, sites = runs[places >= 0], totals.site_of_copies[places[places >= 0]]
        for number in np.unique(sites):
            own = runs[sites == number]
            yield _row("in_pieces", number, int(own["device"].sum()), int(own["host"].sum()))

    def _by_site(
        self, kind: NeedlessKind, rows: NDArray[np.intp], sender: NDArray[np.intp] | None = None
    ) -> Iterator[TraceRow]:
        sites = self._totals.site_of_copies
        for number in np.unique(sites[rows]):
            here = sites[rows] == number
            own = rows[here]
            sent_by = None if sender is None else int(np.bincount(sites[sender[here]]).argmax())
            uniform = int(self._is_uniform[own].sum())
            yield _row(kind, number, len(own), int(self._size[own].sum()), uniform_count=uniform, sent_by=sent_by)


def _row(kind: NeedlessKind, number: int, count: int, size: int, **values: int | None) -> TraceRow:
    return TraceRow(kind=kind, repeat=0, warmup=False, number=int(number), count=count, bytes=size, **values)
