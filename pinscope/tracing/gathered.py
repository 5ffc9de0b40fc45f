"""All records of a trace, taken from the spool as they come and kept in files: memory does not grow with the trace."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pinscope.tracing.places import Sources
from pinscope.tracing.spool import Spool

TYPES: Mapping[str, np.dtype[Any]] = {
    "copies": np.dtype(
        [
            ("correlation_id", "u4"),
            ("device_id", "u4"),
            ("stream_id", "u4"),
            ("copy_kind", "u1"),
            ("src_kind", "u1"),
            ("dst_kind", "u1"),
            ("flags_", "u1"),
            ("bytes", "i8"),
            ("start", "i8"),
            ("end", "i8"),
        ]
    ),
    "kernels": np.dtype([("device_id", "u4"), ("stream_id", "u4"), ("start", "i8"), ("end", "i8")]),
    "allocations": np.dtype(
        [
            ("correlation_id", "u4"),
            ("memory_operation_type", "i4"),
            ("memory_kind", "i4"),
            ("address", "u8"),
            ("bytes", "i8"),
            ("timestamp", "i8"),
        ]
    ),
}
"""What is kept of each record. An end is 0 where none was recorded, and never before its start. The start of a copy is
0 where CUPTI could not time it; such kernels are left out."""
_TABLES = {"MEMCPY": "copies", "CONCURRENT_KERNEL": "kernels", "MEMORY2": "allocations"}
MANAGED = 5
_KEPT = (2, MANAGED)
"""Kinds of memory of which allocations are kept; the first is pinned memory."""


class Gathered:
    """The records of a spool, moved into a file for each table.

    Args:
        spool: where they come from.
        folder: where the files are made.
    """

    def __init__(self, spool: Spool, folder: Path) -> None:
        self.spool = spool
        self.records = 0
        """How many are there: those that are kept, and the calls."""
        self._kept = 0
        self.is_full = False
        """No more are kept."""
        self._folder = folder
        self._sources, self._stacks_end = Sources(), 0

    def take(self, ended: bool = False) -> None:
        """Take what is there; ``ended``: the program has."""
        for buffer in self.spool.take(ended):
            if not self.is_full:
                self._keep(buffer)
        stacks, self._stacks_end = self.spool.new_stacks(self._stacks_end)
        self._sources.look(stacks)
        self.records = self._kept + self.spool.least_calls

    def _keep(self, buffer: Mapping[str, NDArray[Any]]) -> None:
        """Keep the records of a buffer: all of them or, where the disk is full, none."""
        ends: dict[Path, int] = {}
        records = 0
        try:
            for kind, batch in buffer.items():
                name = _TABLES[kind]
                wanted = batch[_is_kept(name, batch)]
                kept = np.zeros(len(wanted), TYPES[name])
                for field in TYPES[name].names or ():
                    kept[field] = wanted[field]
                if "end" in (TYPES[name].names or ()):
                    is_timed = (kept["start"] > 0) & (kept["end"] > 0)
                    kept["end"] = np.where(is_timed, np.maximum(kept["start"], kept["end"]), 0)
                with (self._folder / name).open("ab") as file:
                    ends[self._folder / name] = file.tell()
                    file.write(kept.data)
                records += len(kept)
        except OSError:
            for path, end in ends.items():
                os.truncate(path, end)
            raise
        self._kept += records

    def table(self, name: str) -> NDArray[Any]:
        """A table, in the order in which its records came; it stays on the disk."""
        path = self._folder / name
        if not path.exists() or not path.stat().st_size:
            return np.empty(0, TYPES[name])
        return np.memmap(path, TYPES[name], mode="r")


def _is_kept(name: str, batch: NDArray[Any]) -> Any:
    """Which records a table takes."""
    if name == "allocations":
        return np.isin(batch["memory_kind"], _KEPT)
    return batch["start"] > 0 if name == "kernels" else slice(None)
