"""What the driver takes on the host for each context by itself, and so what is left that a program asked for.

Measured on H200s with driver 580.159, in C, CuPy and PyTorch programs: with one context and with two, with 64 streams,
1000 events, cuBLAS and kernels that print, always the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from pinscope.probes.process_memory import CUDA_STEP_BYTES, MemoryMaps
from pinscope.records.bound import Bound, at_most

MIB = 2**20
CONTEXT_PIECES = 4
"""Pieces of pinned memory, of :data:`CUDA_STEP_BYTES` each, that a context has."""
CONTEXT_MAPPINGS: Mapping[int, int] = {56 * MIB: 1, 6_205_440: 1, 2 * MIB: 4, 4096: 20}
"""Mappings of driver memory that a context has: bytes of each → how many."""
_TELLING = (56 * MIB, 6_205_440)
"""Those by which the contexts of a process are counted."""
_UNFAMILIAR = at_most("the driver's own for its contexts is in it, as this driver maps other sizes than 580 does")


def context_count(maps: MemoryMaps) -> int:
    """Contexts that a process has, also several on one GPU, or has inherited."""
    sizes = Counter(maps.driver_sizes)
    return max(len(maps.gpus), min(sizes[size] for size in _TELLING))


def split_pieces(sizes: Sequence[int], contexts: int) -> tuple[list[int], int]:
    """Pieces that the program asked for, and bytes of those that the driver has for its contexts."""
    small = sizes.count(CUDA_STEP_BYTES)
    own = min(CONTEXT_PIECES * contexts, small)
    asked = [size for size in sizes if size != CUDA_STEP_BYTES] + [CUDA_STEP_BYTES] * (small - own)
    return asked, own * CUDA_STEP_BYTES


def asked_driver_memory(sizes: Sequence[int], contexts: int) -> tuple[int, Bound | None]:
    """Bytes of driver memory beyond what the contexts have, and why the figure is an estimate if it is one."""
    if not sizes:
        return 0, None
    rest = Counter(sizes)
    own = Counter({size: count * contexts for size, count in CONTEXT_MAPPINGS.items()})
    familiar = own <= rest
    return sum(size * count for size, count in (rest - own).items()), None if familiar else _UNFAMILIAR
