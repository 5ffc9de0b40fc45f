"""What a comparison of many rows may take: the whole command, with the start of Python."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pinscope.store.bundle import write_bundle
from pinscope.store.recordings import recorded_observations, recorded_runs
from pinscope.store.store import Store

ROWS = 100_000
MOST_MIB = 300
MOST_SECONDS = 2.0
LOOP, LOOP_SECONDS = 20_000_000, 0.25
"""A sum and what it takes of an idle processor: others on the same core make all slower alike."""


@pytest.fixture
def two_runs(tmp_path: Path) -> tuple[str, list[str]]:
    """A database with two runs of so many rows, and bundles of them."""
    run = next(run for run in recorded_runs() if run.experiment == "bandwidth")
    rows = recorded_observations(run.id)
    many = [rows[number % len(rows)] | {"repeat": number // len(rows), "warmup": False} for number in range(ROWS)]
    url, bundles = f"sqlite:///{tmp_path / 'many.db'}", list[str]()
    with Store(url) as store:
        for name in ("before", "after"):
            own = run.model_copy(
                update={"id": name, "recording": False, "observations": ROWS, "attachments": (), "name": None}
            )
            store.import_runs([(own, many)])
            bundles.append(str(tmp_path / f"{name}.pinscope"))
            write_bundle(Path(bundles[-1]), [(own, many)])
    return url, bundles


def usage(url: str, *sides: str) -> tuple[float, float]:
    """Processor seconds and MiB of a comparison."""
    command = [sys.executable, "-m", "pinscope", "compare", *sides]
    with subprocess.Popen(command, env=os.environ | {"PINSCOPE_DATABASE": url}, stdout=subprocess.DEVNULL) as child:
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def test_two_runs_of_100_000_rows_are_compared_within_two_seconds_of_the_processor_and_300_mib(
    two_runs: tuple[str, list[str]],
) -> None:
    url, bundles = two_runs
    for sides in (("before", "after"), bundles):
        begun = time.process_time()
        sum(range(LOOP))
        is_slow = (time.process_time() - begun) / LOOP_SECONDS
        seconds, mib = usage(url, *sides)
        assert seconds < MOST_SECONDS * max(is_slow, 1)
        assert mib < MOST_MIB
