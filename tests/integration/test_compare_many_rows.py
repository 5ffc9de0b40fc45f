"""What a comparison of many rows may take: processor seconds and memory of the whole command, with Python's start."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from pinscope.records.run import Run
from pinscope.store.bundle import render_bundle, write_bundle
from pinscope.store.recordings import recorded_observations, recorded_runs
from pinscope.store.store import Store

ROWS = 100_000
MOST_SECONDS = 2.0
"""It takes 0.8 to 1.8 on two cores whose speed changes by half: two fifths are imports (Pydantic's records, NumPy, and
SQLAlchemy unless all are bundles), two fifths reading 87 MB of text, the rest cells and findings."""
RECORDED = next(run for run in recorded_runs() if run.experiment == "bandwidth")
pytestmark = pytest.mark.alone


def usage(url: str, sides: list[str], times: int, **variables: str) -> tuple[float, float]:
    """Processor seconds and MiB of a comparison, the least of so many: whatever else runs here makes each longer."""
    env = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | variables
    used = []
    for _ in range(times):
        command = [sys.executable, "-m", "pinscope", "compare", *sides]
        with subprocess.Popen(command, env=env | {"PINSCOPE_DATABASE": url}, stdout=subprocess.DEVNULL) as child:
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
        assert child.returncode == 0
        used.append((usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024))
    return min(used)


def named(name: str, rows: int) -> Run:
    """The recorded run under another name."""
    changes = {"id": name, "recording": False, "observations": rows, "attachments": (), "name": None}
    return RECORDED.model_copy(update=changes)


def test_two_runs_of_100_000_rows_are_compared_within_two_seconds_and_300_mib(tmp_path: Path) -> None:
    rows = recorded_observations(RECORDED.id)
    many = [rows[number % len(rows)] | {"repeat": number // len(rows), "warmup": False} for number in range(ROWS)]
    url, bundles = f"sqlite:///{tmp_path / 'many.db'}", list[str]()
    with Store(url) as store:
        for name in ("before", "after"):
            store.import_runs([(named(name, ROWS), many)])
            bundles.append(str(tmp_path / f"{name}.pinscope"))
            write_bundle(bundles[-1], [(named(name, ROWS), many)])
    for sides in (["before", "after"], bundles):
        seconds, mib = usage(url, sides, times=3)
        assert seconds < MOST_SECONDS
        assert mib < 300


def test_a_hundred_bundles_are_compared_within_20_seconds_without_a_database(tmp_path: Path) -> None:
    bundle = zipfile.ZipFile(
        io.BytesIO(render_bundle([(named("run-00", RECORDED.observations), recorded_observations(RECORDED.id))]))
    )
    members = {name: bundle.read(name) for name in bundle.namelist()}
    for number in range(100):
        folder = tmp_path / ("before", "after")[number % 2]
        folder.mkdir(exist_ok=True)
        with zipfile.ZipFile(folder / f"{number}.pinscope", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as copy:
            for name, content in members.items():
                is_rows = name.endswith(".jsonl")
                own = f"run-{number:02}"
                copy.writestr(
                    name.replace("run-00", own), content if is_rows else content.replace(b"run-00", own.encode())
                )
    sides = [str(tmp_path / name) for name in ("before", "after")]
    (tmp_path / "sqlalchemy.py").write_text("raise AssertionError('it takes a third of a second to import')\n")
    first = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    assert usage(f"sqlite:///{tmp_path / 'no.db'}", sides, times=1, PYTHONPATH=first)[0] < 20
