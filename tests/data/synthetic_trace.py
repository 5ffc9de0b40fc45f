"""Rows of traces that no GPU made: lines that copy, pin and wait."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from pinscope.analysis.read_rows import Attached, EachPart
from pinscope.records.run import TraceRun
from pinscope.records.trace_row import TraceRow
from tests.unit.store.runs import environment

MIB = 2**20


def run(**params: Any) -> TraceRun:
    """A trace of a program, with the rates of pinned copies that an H200 has."""
    given = {"program": ["train.py"], "stacks": True, "pinned_h2d": 50e9, "pinned_d2h": 50e9, "pinned_from": "run x"}
    return TraceRun(
        id="20300101-000000-tracee", status="done", params={**given, **params}, environment=environment(),
        created_at=datetime(2030, 1, 1, tzinfo=UTC),
    )  # fmt: skip


def row(kind: str, **values: Any) -> dict[str, Any]:
    """A row as it is stored."""
    made = TraceRow.model_validate({"kind": kind, "repeat": 0, "warmup": False, **values})
    return made.model_dump(mode="json", exclude_none=True)


def program(seconds: float = 10.0, copies: int = 100, kernels: int = 100, **values: Any) -> dict[str, Any]:
    return row("program", seconds=seconds + 3, active_seconds=seconds, copies=copies, kernels=kernels, **values)


def site(line: int, source: str = "pageable", target: str = "device", **values: Any) -> dict[str, Any]:
    """100 copies of 10 MiB, which hold CPU and GPU for 1 s."""
    given = {
        "number": line, "device": 0, "direction": "d2h" if source == "device" else "h2d", "source": source,
        "target": target, "count": 100, "bytes": 1000 * MIB, "median_bytes": 10.0 * MIB, "largest_bytes": 10 * MIB,
        "large_count": 100, "copy_seconds": 0.9, "call_seconds": 1.0, "idle_seconds": 1.0, "file": "/srv/train.py",
        "line": line, "function": "main", "source_line": "x.cuda()", "stack": "main (train.py)",
    }  # fmt: skip
    return row("site", **{**given, **values})


def place(kind: str, line: int, **values: Any) -> dict[str, Any]:
    """An allocation or a synchronisation."""
    return row(kind, file="/srv/train.py", line=line, function="main", source_line="y.item()", **values)


def host_call(line: int, call: str, **values: Any) -> dict[str, Any]:
    """100 calls of a library that keep the CPU for 1 s, while no GPU does anything for 0.6 s."""
    given = {"count": 100, "bytes": 1000 * MIB, "call_seconds": 1.0, "host_seconds": 1.0, "idle_seconds": 0.6}
    return place("host_call", line, call=call, **{**given, **values})


def attached(**tables: list[dict[str, Any]]) -> Attached:
    """Attachments of a trace, in parts of two rows, from rows that name what is not usual."""
    usual: dict[str, dict[str, Any]] = {
        "copies": {
            "at_ns": 0, "took_ns": 1000, "call_at_ns": -1, "call_took_ns": -1, "bytes": MIB, "direction": "h2d",
            "source": "pageable", "target": "device", "device": 0, "stream": 7, "site": 33, "idle_ns": 0,
        },
        "kernels": {"at_ns": 0, "took_ns": 1000, "device": 0, "stream": 7},
        "calls": {
            "at_ns": 0, "took_ns": 1000, "call": "cudaMemcpyAsync", "thread": 1, "file": "/srv/train.py", "line": 33,
        },
        "pinned": {"at_ns": 0, "change_bytes": MIB},
    }  # fmt: skip
    whole = {name: [{**usual[name], **given} for given in rows] for name, rows in tables.items()}

    def read(name: str, wanted: EachPart) -> Iterator[pa.Table]:
        for number, first in enumerate(range(0, len(whole[name]), 2)):
            if wanted(number):
                table = pa.Table.from_pylist(whole[name][first : first + 2])
                texts = [field.name for field in table.schema if field.type == pa.string()]
                for text in texts:
                    table = table.set_column(
                        table.schema.get_field_index(text), text, table.column(text).dictionary_encode()
                    )
                yield table

    return Attached({name: len(rows) for name, rows in whole.items()}, read)
