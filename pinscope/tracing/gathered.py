"""All records of a trace, taken from the spool as they come and kept in files: memory does not grow with the trace."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pinscope.tracing.places import Sources
from pinscope.tracing.spool import Spool

TYPES: Mapping[str, np.dtype[Any]] = {
    "copies": np.dtype([
        ("correlation_id", "u4"), ("device_id", "u4"), ("stream_id", "u4"), ("copy_kind", "u1"), ("src_kind", "u1"),
        ("dst_kind", "u1"), ("flags_", "u1"), ("bytes", "i8"), ("start", "i8"), ("end", "i8"),
    ]),
    "calls": np.dtype([
        ("correlation_id", "u4"), ("cbid", "u4"), ("driver", "u4"), ("thread_id", "u4"), ("start", "i8"), ("end", "i8"),
        ("return_value", "u4"),
    ]),
    "kernels": np.dtype([("device_id", "u4"), ("stream_id", "u4"), ("start", "i8"), ("end", "i8")]),
    "allocations": np.dtype([
        ("correlation_id", "u4"), ("memory_operation_type", "i4"), ("memory_kind", "i4"), ("address", "u8"),
        ("bytes", "i8"), ("timestamp", "i8"),
    ]),
}  # fmt: skip
"""What is kept of each record."""
_TABLES = {
    "MEMCPY": "copies", "RUNTIME": "calls", "DRIVER": "calls", "CONCURRENT_KERNEL": "kernels",
    "MEMORY2": "allocations",
}  # fmt: skip
_PINNED = 2
"""Kind of memory of which allocations are kept."""


class Gathered:
    """The records of a spool, moved into a file for each table.

    Args:
        spool: where they come from.
        folder: where the files are made.
    """

    def __init__(self, spool: Spool, folder: Path) -> None:
        self.spool = spool
        self.records = 0
        """How many are kept."""
        self.is_full = False
        """No more are kept."""
        self._folder = folder
        self._sources, self._stacks_end = Sources(), 0
        self._followed = {
            driver: np.asarray(sorted(map(int, spool.config[name])), np.uint32)
            for driver, name in ((0, "runtime"), (1, "driver"))
        }

    def take(self, ended: bool = False) -> None:
        """Take what is there; ``ended``: the program has."""
        for buffer in self.spool.take(ended):
            for kind, found in buffer.items():
                self._keep(kind, found)
        stacks, self._stacks_end = self.spool.new_stacks(self._stacks_end)
        self._sources.look(stacks)

    def _keep(self, kind: str, found: NDArray[Any]) -> None:
        name = _TABLES[kind]
        driver = int(kind == "DRIVER")
        if name == "calls":
            found = found[np.isin(found["cbid"], self._followed[driver])]
        elif name == "allocations":
            found = found[found["memory_kind"] == _PINNED]
        if not len(found) or self.is_full:
            return
        kept = np.zeros(len(found), TYPES[name])
        for field in TYPES[name].names or ():
            kept[field] = driver if field == "driver" else found[field]
        with (self._folder / name).open("ab") as file:
            kept.tofile(file)
        self.records += len(kept)

    def table(self, name: str) -> NDArray[Any]:
        """A table, in the order in which its records came; it stays on the disk."""
        path = self._folder / name
        if not path.exists():
            return np.empty(0, TYPES[name])
        return np.memmap(path, TYPES[name], mode="r")
