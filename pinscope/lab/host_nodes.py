"""On which NUMA nodes a lab's host buffers lie: an account of the buffers, and what the kernel says of their pages."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from pinscope.probes.numa import page_nodes

SAMPLED_PAGES = 16
"""Of each buffer: the first, the last and some in between."""


class HostNodes:
    """Host buffers that are held now, and the nodes on which they were seen.

    To look costs some microseconds: never within a timed part.
    """

    def __init__(self) -> None:
        self._held: dict[int, int] = {}
        self._seen: set[int] = set()
        self._ever: set[int] = set()
        self.reason: str | None = None
        """Why the kernel does not tell; ``None`` while it does."""

    @contextmanager
    def holding(self, address: int, nbytes: int) -> Iterator[None]:
        """A buffer is there meanwhile. Not looked at yet: its pages need not be."""
        self._held[address] = nbytes
        try:
            yield
        finally:
            self._held.pop(address, None)

    def look(self, buffers: Iterable[tuple[int, int]] = ()) -> None:
        """See where the held buffers lie now, and others that are no lab's: (address, bytes) of each.

        To be called for buffers that are gone before the next observation.
        """
        pages = [page for buffer in (*self._held.items(), *buffers) for page in _sample(*buffer)]
        if not pages or self.reason is not None:
            return
        found = page_nodes(pages)
        self.reason = found.reason
        self.add(node for node in found.value or () if node is not None)

    def add(self, nodes: Iterable[int]) -> None:
        """Buffers were seen on these nodes, by another process of this run."""
        self._seen.update(nodes)

    def take(self) -> tuple[int, ...]:
        """The nodes of all buffers that were held since this was last asked, as far as they can be known."""
        self.look()
        nodes = tuple(sorted(self._seen))
        self._ever.update(nodes)
        self._seen.clear()
        return nodes

    @property
    def ever(self) -> tuple[int, ...]:
        """All nodes that :meth:`take` has returned."""
        return tuple(sorted(self._ever))


def _sample(address: int, nbytes: int) -> Iterator[int]:
    """Addresses in evenly spread pages; not at powers of two, which interleaved memory would put on one node."""
    first = address // mmap.PAGESIZE
    steps = (address + nbytes - 1) // mmap.PAGESIZE - first
    for page in sorted({first + steps * number // (SAMPLED_PAGES - 1) for number in range(SAMPLED_PAGES)}):
        yield page * mmap.PAGESIZE
