"""Runs and rows for the tests of the store, on the environment of this machine."""

from __future__ import annotations

import io
import itertools
import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from pinscope.probes.environment import capture_environment
from pinscope.records.base import Budget
from pinscope.records.environment import Environment
from pinscope.records.run import Run, parse_run
from pinscope.store.bundle import BundleReader
from pinscope.store.documents import DamagedRun, StoredRow
from pinscope.store.store import Store

ROOT = Path(__file__).parents[3]
_numbers = itertools.count()
_begin = datetime.now(UTC)


@cache
def environment() -> Environment:
    """This machine, read once."""
    return capture_environment()


def new_run(run_id: str | None = None, **changes: Any) -> Run:
    """A run as it is when it starts; each one a second later than the one before."""
    number = next(_numbers)
    fields = {
        "id": run_id or f"run-{number}",
        "experiment": "bandwidth",
        "lab": "host",
        "device": 0,
        "status": "running",
        "quick": True,
        "params": {"sizes": [4096, 2**40], "precision": 0.1},
        "budget": Budget(pinned_bytes=2**20, pageable_bytes=0, device_bytes=2**20, seconds=1.5),
        "environment": environment(),
        "created_at": _begin + timedelta(seconds=number),
    }
    return parse_run(fields | changes)


def damaged_runs(store: Store) -> list[DamagedRun]:
    """Those that cannot be read."""
    return [run for run in store.listed() if isinstance(run, DamagedRun)]


def parse_bundle(data: bytes, name: str) -> list[tuple[Run, list[StoredRow]]]:
    """The runs of a bundle with their observations; ``name`` is used in messages only."""
    with BundleReader(io.BytesIO(data), name) as bundle:
        return [(run, list(rows)) for run, rows in bundle.items()]


def new_rows(count: int, first: int = 0) -> list[dict[str, Any]]:
    """Observations whose repeats count up from ``first``; thirds have no short decimal form."""
    return [
        {"repeat": number, "warmup": number == 0, "memory": "pinned", "device_seconds": number / 3, "h2d_seconds": None}
        for number in range(first, first + count)
    ]


def repeats(rows: Sequence[dict[str, Any]]) -> list[int]:
    """The numbers of the rows."""
    return [row["repeat"] for row in rows]


def in_another_process(url: str, program: str) -> subprocess.Popen[str]:
    """Start a program that has ``store`` open."""
    begin = "from pinscope.store.store import Store\nfrom pinscope.records.run import Progress\nstore = Store()\n"
    return subprocess.Popen(
        [sys.executable, "-c", begin + textwrap.dedent(program)],
        env={**os.environ, "PINSCOPE_DATABASE": url, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
