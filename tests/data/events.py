"""SYNTHETIC events, as a trace of a program may have them: each follows from its number."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

SCHEMA = pa.schema(
    [
        ("begin_ns", pa.int64()), ("end_ns", pa.int64()), ("bytes", pa.uint64()), ("correlation", pa.int64()),
        ("stream", pa.int32()), ("what", pa.string()), ("bytes_per_second", pa.float64()), ("pinned", pa.bool_()),
    ]
)  # fmt: skip
_WHAT = pa.array(["h2d", "d2h", "d2d"])


def events(first: int, count: int) -> pa.RecordBatch:
    """So many events, from number ``first`` on."""
    number = np.arange(first, first + count, dtype=np.int64)
    mixed = number * 2_654_435_761 % 1_000_003
    size = np.left_shift(1, mixed % 28)
    took = 1_000 + mixed
    what = pa.DictionaryArray.from_arrays(pa.array((number % 3).astype(np.int32)), _WHAT).cast(pa.string())
    columns = [
        number * 1_500 + mixed % 700, number * 1_500 + took, size.astype(np.uint64), number,
        (mixed % 8).astype(np.int32), what, size / took * 1e9, mixed % 2 == 0,
    ]  # fmt: skip
    return pa.record_batch([pa.array(column) for column in columns], schema=SCHEMA)
