"""A recommended way to pin: the one record from which the call, the code to paste and the plan are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pinscope.analysis.pinning_strategy import Recommended, StrategyCell
from pinscope.records.pinning_strategy import STRATEGIES, Strategy, StrategyName
from pinscope.units import exact_bytes, format_bytes

DEFAULT_ARRAY: StrategyName = "thp_register"
DEFAULT_CHUNKS: StrategyName = "thp_pipeline"
"""What ``pinned_empty`` takes without and with ``chunk``: as the recorded H200 recommends, which a test holds."""
IN_SMALL_PAGES: Mapping[StrategyName, StrategyName] = {
    "thp_register": "touch_register",
    "thp_register_chunks": "touch_register_chunks",
    "thp_register_threads": "touch_register_chunks",
    "thp_pipeline": "touch_register_chunks",
}
"""Strategy → the nearest one that was measured in 4 KiB pages, for hosts without huge ones."""


def default_strategy(chunked: bool, huge_pages: bool) -> Strategy:
    """What ``pinned_empty`` does unless a strategy is named."""
    name = DEFAULT_CHUNKS if chunked else DEFAULT_ARRAY
    return STRATEGIES[name if huge_pages else IN_SMALL_PAGES.get(name, name)]


@dataclass(frozen=True)
class Recipe:
    """A strategy with its settings.

    Attributes:
        strategy: its name.
        chunk_bytes: length of a chunk; ``None`` where all is pinned by one call.
        threads: how many touch (and register, where several do).
        names_threads: whether their number was chosen; else it is that of the processors.
    """

    strategy: StrategyName
    chunk_bytes: int | None
    threads: int
    names_threads: bool = False

    @classmethod
    def of(cls, cell: StrategyCell, params: Mapping[str, Any]) -> Recipe:
        """What was measured, with the parameters of the run."""
        chosen = bool(params.get("threads"))
        return cls(STRATEGIES[cell.strategy].name, cell.chunk_bytes, cell.threads, chosen)

    @property
    def title(self) -> str:
        """The strategy for people."""
        return STRATEGIES[self.strategy].title

    def call(self, nbytes: int) -> str:
        """The call of ``pinscope.pinned_empty`` that pins so much this way."""
        words = [f'"{exact_bytes(nbytes)}"']
        if self.chunk_bytes is not None:
            words.append(f'chunk="{exact_bytes(self.chunk_bytes)}"')
        if self.strategy != (DEFAULT_ARRAY if self.chunk_bytes is None else DEFAULT_CHUNKS):
            words.append(f'strategy="{self.strategy}"')
        if self.names_threads:
            words.append(f"threads={self.threads}")
        return f"pinscope.pinned_empty({', '.join(words)})"

    def code(self) -> str:
        """Python code that pins this way; needs NumPy and CuPy.

        Raises:
            ValueError: the strategy gives no one stretch of memory.
        """
        strategy = STRATEGIES[self.strategy]
        if not strategy.makes_array:
            raise ValueError(f"{strategy.title} gives no one stretch of memory")
        heading = _HEADING.format(name=strategy.name, title=strategy.title)
        if strategy.backing is None:
            return heading + _HOST_ALLOC
        if self.chunk_bytes is not None:
            heading += _CHUNK_NOTE.format(chunk=format_bytes(self.chunk_bytes))
        threads = f", threads={self.threads}" if strategy.touched else ""
        chunk = f", chunk={self.chunk_bytes}" if self.chunk_bytes is not None else ""
        return heading + _REGISTER.format(
            imports=_POOL_IMPORT if strategy.touched else "",
            parameters=threads + chunk,
            advice="MADV_HUGEPAGE" if strategy.backing == "thp" else "MADV_NOHUGEPAGE",
            touch=_TOUCH if strategy.touched else "",
            length="nbytes" if self.chunk_bytes is None else "min(chunk, nbytes - at)",
            body=_BODIES[strategy.touched, strategy.registering],
        )


@dataclass(frozen=True)
class Recipes:
    """What a run recommends.

    Attributes:
        array: for one array that any copy may use; ``None`` if no such strategy was measured.
        chunks: in chunks side by side; ``None`` likewise.
        gentler_in_chunks: whether neighbours wait clearly less when memory is pinned in chunks.
    """

    array: Recipe | None
    chunks: Recipe | None
    gentler_in_chunks: bool

    @classmethod
    def of(cls, recommended: Recommended, params: Mapping[str, Any]) -> Recipes:
        """The recommended cells with the parameters of their run."""
        return cls(
            Recipe.of(recommended.array, params) if recommended.array else None,
            Recipe.of(recommended.chunks, params) if recommended.chunks else None,
            recommended.gentler_in_chunks,
        )


_HEADING = "# {name}: {title}.\n"
_CHUNK_NOTE = "# A copy must stay inside one chunk ({chunk}): CUDA refuses others (cudaErrorInvalidValue).\n"
_HOST_ALLOC = """\
import numpy as np
from cupy.cuda import alloc_pinned_memory  # cudaHostAlloc


def pinned_buffer(nbytes):
    return np.frombuffer(alloc_pinned_memory(nbytes), np.uint8, nbytes)
"""
_POOL_IMPORT = "from concurrent.futures import ThreadPoolExecutor\n"
_REGISTER = '''\
import mmap
import weakref
{imports}
import numpy as np
from cupy.cuda import runtime

HUGE, PART = 2**21, 2**26


def pinned_buffer(nbytes{parameters}):
    """A pinned NumPy array of bytes; unpinned with the last array that uses it."""
    memory = mmap.mmap(-1, nbytes + HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.{advice})
    whole = np.frombuffer(memory, np.uint8)
    start = -whole.ctypes.data % HUGE
    array = whole[start : start + nbytes]
{touch}
    def register(at):
        runtime.hostRegister(array.ctypes.data + at, {length}, 0)
        weakref.finalize(whole, runtime.hostUnregister, array.ctypes.data + at).atexit = False

{body}    return array
'''
_TOUCH = """
    def touch(at):
        array[at : min(at + PART, nbytes) : 4096] = 0  # one byte a page; NumPy lets other threads run
"""
_TOUCH_ALL = """\
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(touch, range(0, nbytes, PART)))
"""
_BODIES: Mapping[tuple[bool, str], str] = {
    (False, "one"): "    register(0)\n",
    (True, "one"): _TOUCH_ALL + "    register(0)\n",
    (True, "chunks"): _TOUCH_ALL + "    for at in range(0, nbytes, chunk):\n        register(at)\n",
    (True, "threads"): """\
    device = runtime.getDevice()  # each thread has a GPU of its own, at first the first one
    with ThreadPoolExecutor(threads, initializer=runtime.setDevice, initargs=(device,)) as pool:
        list(pool.map(touch, range(0, nbytes, PART)))
        list(pool.map(register, range(0, nbytes, chunk)))
""",
    (True, "pipeline"): """\
    with ThreadPoolExecutor(threads) as pool:
        touched = [pool.submit(touch, at) for at in range(0, nbytes, PART)]
        for at in range(0, nbytes, chunk):
            for part in touched[at // PART : -(-min(at + chunk, nbytes) // PART)]:
                part.result()
            register(at)
""",
}
"""(touched, how it is registered) → what does it."""
