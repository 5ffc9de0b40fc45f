"""Ways to move many pieces, a record each, and which pieces of an area are moved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from pinscope.analysis.cells import LineStyle, Way, way
from pinscope.records.run import OneWay


def _way(title: str, phrase: str, style: str, help: str, kinds: str = "") -> Way:
    marks: list[Any] = style.split()
    return way(title, phrase, LineStyle(*marks), kinds, help)


WAYS: Mapping[str, Way] = {
    "contiguous": _way(
        "one contiguous copy",
        "",
        "copy circle-open dash",
        "one copy of as much, side by side (the reference)",
        "reference",
    ),
    "loop": _way("loop of copies", "a loop of copies", "pageable diamond", "cudaMemcpyAsync for each piece"),
    "batch": _way("batch call", "one batch call", "pinned", "one cudaMemcpyBatchAsync into an idle stream"),
    "batch_queued": _way(
        "batch call behind work",
        "one batch call behind other work",
        "pinned circle-open dash",
        "the same into a stream that is still at work (h2d only)",
        "reference",
    ),
    "graph": _way("CUDA graph", "a CUDA graph of the copies", "touch square-open dash", "a CUDA graph of the copies"),
    "copy_2d": _way("2D copy", "one 2D copy", "intact square", "one cudaMemcpy2DAsync (strided only)", "simplest"),
    "kernel": _way(
        "kernel", "one kernel", "mapped triangle-up", "threads of the GPU reach the pieces in mapped memory"
    ),
    "cpu": _way(
        "CPU threads, one copy",
        "CPU threads and one copy",
        "workers star",
        "threads of the CPU collect them for one copy",
    ),
    "managed": _way(
        "managed, prefetched",
        "prefetches of managed memory",
        "managed pentagon",
        "cudaMemPrefetchAsync for each piece, of few",
        "older",
    ),
}
"""Of ways that are as good the ``simplest``, then the first, is advised: no multiprocessor, no thread, little code; a
``reference`` is not. An
``older`` one is in runs of earlier versions; the experiment access measures managed memory."""
MEASURED = tuple(name for name, way in WAYS.items() if "older" not in way.kinds)
if TYPE_CHECKING:
    WayName = str
    Choice = str
else:
    WayName = Literal[tuple(WAYS)]
    Choice = Literal[MEASURED]
Layout = Literal["scattered", "strided"]
SEED = 20_240_607
"""Of the order of scattered pieces: the same in every run."""


@dataclass(frozen=True)
class Variant:
    """A way, and how much of the machine it takes."""

    way: WayName
    blocks: int | None = None
    threads: int | None = None

    @property
    def words(self) -> str:
        """``, 8 blocks``; empty where the way has nothing to choose."""
        return f", {self.blocks} blocks" if self.blocks else f", {self.threads} threads" if self.threads else ""


@dataclass(frozen=True)
class Case:
    """Pieces of an area of host memory, side by side on the GPU.

    Attributes:
        direction: to the GPU (gathered from the area) or back (scattered over it).
        layout: in random places and order, or every other piece in order.
        piece_bytes: length of a piece.
        pieces: how many.
        area_bytes: length of the area; at least two pieces for each that is moved.
    """

    direction: OneWay
    layout: Layout
    piece_bytes: int
    pieces: int
    area_bytes: int

    @property
    def slots(self) -> int:
        """Pieces that the area holds."""
        return self.area_bytes // self.piece_bytes

    @property
    def nbytes(self) -> int:
        """Of all pieces."""
        return self.pieces * self.piece_bytes

    def places(self) -> NDArray[np.int64]:
        """Number of each piece in the area, in the order in which they lie on the GPU."""
        if self.layout == "strided":
            return 2 * np.arange(self.pieces, dtype=np.int64)
        return np.random.default_rng(SEED).permutation(self.slots)[: self.pieces].astype(np.int64)

    def place_on_device(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Of each piece of the area: its number on the GPU, or -1 if it is none of these, which are moved."""
        numbers = np.full(self.slots, -1, dtype=np.int64)
        numbers[places] = np.arange(self.pieces)
        return numbers


def pieces_in(area_bytes: int, piece_bytes: int, most: int) -> int:
    """As many pieces as are moved: at most every other one of the area."""
    return min(most, area_bytes // piece_bytes // 2)
