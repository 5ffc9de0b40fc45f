"""Which copies are of a DataLoader's batches: those that come from where a batch lies, soon after it was given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Loader(NamedTuple):
    """A DataLoader, as a program makes and uses it.

    Attributes:
        stack: number of the stack that made the first one of its data set.
        pins: it pins its batches.
        workers: processes that make them.
    """

    stack: int
    pins: bool
    workers: int


def copies_of_batches(
    notes: Sequence[Mapping[str, Any]], host: NDArray[np.uint64], size: NDArray[np.int64], starts: NDArray[np.int64]
) -> Iterator[tuple[Loader, int]]:
    """Each loader, and the place of a copy of one of its batches.

    Args:
        notes: of batches, as :mod:`pinscope.tracing.loader_origins` writes them.
        host: where each copy to the GPU reads; 0 where that is not known.
        size: bytes of each.
        starts: when its call began; ascending.
    """
    order = np.argsort(host, kind="stable")
    ordered = host[order]
    for note in notes:
        loader = Loader(int(note["stack"]), bool(note["pins"]), int(note["workers"]))
        for address, length in note["tensors"]:
            here = slice(*(np.searchsorted(ordered, np.uint64(address), side) for side in ("left", "right")))
            copies = order[here]
            copies = copies[(size[copies] == length) & (starts[copies] >= note["ns"])]
            if len(copies):
                yield loader, int(copies[0])


def by_site(fed: Iterator[tuple[Loader, int]], sites: NDArray[np.intp]) -> Mapping[tuple[Loader, int], int]:
    """Loader and number of a site → how many of its copies were found to be of batches."""
    return Counter((loader, int(sites[place])) for loader, place in set(fed))
