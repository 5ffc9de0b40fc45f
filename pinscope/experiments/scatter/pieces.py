"""Which pieces of an area are moved, and in which order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

OneWay = Literal["h2d", "d2h"]
Layout = Literal["scattered", "strided"]
SEED = 20_240_607
"""Of the order of scattered pieces: the same in every run."""


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

    def within(self, area_bytes: int, most: int) -> Case:
        """The same in a smaller area, with as many pieces as it takes, ``most`` at most."""
        pieces = pieces_in(area_bytes, self.piece_bytes, min(most, self.pieces))
        return Case(self.direction, self.layout, self.piece_bytes, pieces, area_bytes)

    def places(self) -> NDArray[np.int64]:
        """Number of each piece in the area, in the order in which they lie on the GPU."""
        if self.layout == "strided":
            return 2 * np.arange(self.pieces, dtype=np.int64)
        return np.random.default_rng(SEED).permutation(self.slots)[: self.pieces].astype(np.int64)

    def place_on_device(self) -> NDArray[np.int64]:
        """Of each piece of the area: its number on the GPU, or -1 if it is not moved."""
        numbers = np.full(self.slots, -1, dtype=np.int64)
        numbers[self.places()] = np.arange(self.pieces)
        return numbers


def pieces_in(area_bytes: int, piece_bytes: int, most: int) -> int:
    """As many pieces as are moved: at most every other one of the area."""
    return min(most, area_bytes // piece_bytes // 2)
