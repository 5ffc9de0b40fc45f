"""The ways to pin a lot of host memory, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pinscope.records.base import Record
from pinscope.records.run import Backing

StrategyName = Literal[
    "host_alloc",
    "host_alloc_chunks",
    "register_untouched",
    "touch_register",
    "touch_register_chunks",
    "thp_register",
    "thp_register_chunks",
    "thp_register_threads",
    "thp_pipeline",
]
Registering = Literal["one", "chunks", "threads", "pipeline"]


class Strategy(Record):
    """One way to pin."""

    name: StrategyName
    title: str
    """The same for people."""
    backing: Backing | None
    """Pages under the memory; ``None`` where the driver allocates it (cudaHostAlloc)."""
    touched: bool
    """Whether threads touch the memory before it is registered."""
    registering: Registering
    """In one piece; in chunks one after the other; in chunks by several threads; or each chunk as soon as it is
    touched, while threads touch the next ones."""

    @property
    def chunked(self) -> bool:
        """True if no copy may cross a chunk boundary."""
        return self.registering != "one"

    @property
    def makes_array(self) -> bool:
        """True if all of the memory lies side by side; separate calls of cudaHostAlloc give separate places."""
        return self.backing is not None or not self.chunked


def _strategy(name: StrategyName, title: str, backing: Backing | None, touched: bool, how: Registering) -> Strategy:
    return Strategy(name=name, title=title, backing=backing, touched=touched, registering=how)


STRATEGIES: Mapping[str, Strategy] = {
    strategy.name: strategy
    for strategy in (
        _strategy("host_alloc", "one cudaHostAlloc", None, False, "one"),
        _strategy("host_alloc_chunks", "cudaHostAlloc in chunks", None, False, "chunks"),
        _strategy("register_untouched", "4 KiB pages, untouched, register", "4k", False, "one"),
        _strategy("touch_register", "4 KiB pages, threads touch, register", "4k", True, "one"),
        _strategy("touch_register_chunks", "4 KiB pages, threads touch, register chunks", "4k", True, "chunks"),
        _strategy("thp_register", "huge pages, threads touch, register", "thp", True, "one"),
        _strategy("thp_register_chunks", "huge pages, threads touch, register chunks", "thp", True, "chunks"),
        _strategy("thp_register_threads", "huge pages, threads touch, threads register chunks", "thp", True, "threads"),
        _strategy("thp_pipeline", "huge pages, register each chunk once touched", "thp", True, "pipeline"),
    )
}
"""Name → strategy, in the order in which they are measured and shown."""
