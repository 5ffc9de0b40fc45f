"""PinScope started from a folder that somebody filled with traps: nothing in it is executed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from pinscope.experiments.registry import EXPERIMENTS
from tests.faults.campaign import WHOLE, Campaign, whole_only
from tests.faults.child import TREE, run_pinscope

TRAP = """
import os
with open({mark!r}, "a") as file:
    file.write(__file__ + " in " + " ".join(__import__("sys").orig_argv[1:6]) + chr(10))
"""
KEPT = {"os", "sys", "__main__", "pinscope"}
"""What a trap itself needs; PinScope is a folder."""
SMALL = {
    "bandwidth": ("sizes=64KiB", "repeats=8", "time_limit=0.1", "memory=pinned", "directions=h2d", "copiers=engine"),
    "overlap": ("chunk=64KiB",), "page_tables": ("total=16MiB",),
    "registration": ("shared=8MiB", "processes=2"), "allocation": ("sizes=64KiB",), "pinning_strategy": ("size=8MiB",),
    "access": ("size=4MiB",), "pressure": ("cap=64MiB", "file=4MiB", "step_seconds=0.2"),
}  # fmt: skip
HOST = [entry.experiment.name for entry in EXPERIMENTS if entry.experiment.labs.get("host") is None]


@pytest.fixture
def hostile(tmp_path: Path) -> tuple[Path, Path]:
    """The folder, and the file in which each trap that was executed stands."""
    folder, mark = tmp_path / "hostile", tmp_path / "executed"
    packages = [path.parent for path in (TREE / "pinscope").rglob("__init__.py")]
    names = {str(package.relative_to(TREE) / "__init__") for package in packages}
    names |= {str(path.relative_to(TREE).with_suffix("")) for path in (TREE / "pinscope").rglob("*.py")}
    names |= (set(sys.stdlib_module_names) | set(metadata.packages_distributions())) - KEPT
    names |= {"sitecustomize", "usercustomize"}
    for name in names:
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(TRAP.format(mark=str(mark)))
    return folder, mark


def commands() -> Iterator[tuple[str, ...]]:
    """Those that start children first."""
    for name in HOST if WHOLE else ("bandwidth",):
        sets = SMALL.get(name, ())
        yield ("run", name, "--lab", "host", "--quick", *(word for each in sets for word in ("--set", each)))
    if WHOLE:
        yield ("live", "--once", "--no-gpu")
        yield ("doctor",)
        yield ("record", "--for", "1s", "--interval", "0.2")
        yield ("plan", "--pinned", "1GiB")
        yield ("runs", "list")


def test_hostile_working_folder(campaign: Campaign, hostile: tuple[Path, Path], tmp_path: Path) -> None:
    """Once as the command is installed, once as ``python -m pinscope`` (there without the folder ``pinscope``)."""
    folder, mark = hostile
    database = {"PINSCOPE_DATABASE": f"sqlite:///{tmp_path / 'runs.sqlite'}"}
    for command in commands():
        done = run_pinscope(*command, folder=folder, environment=database)
        campaign.count("surroundings")
        if done.exit_code or mark.exists():
            campaign.fail(f"{' '.join(command)}: exit {done.exit_code}; {_executed(mark)}; {done.stderr[-300:]}")
    (folder / "pinscope").rename(tmp_path / "pinscope")
    for command in commands() if WHOLE else ():
        started = subprocess.run(
            [sys.executable, "-m", "pinscope", *command], cwd=folder,
            env={**os.environ, "PYTHONPATH": str(TREE), **database}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        campaign.count("surroundings")
        if started.returncode or mark.exists():
            campaign.fail(f"python -m pinscope {' '.join(command)}: {_executed(mark)}; {started.stderr[-300:]}")


@whole_only
@pytest.mark.parametrize("server", [("exporter", "--port", "0", "--no-gpu"), ("dashboard", "--port", "18537")])
def test_hostile_working_folder_of_a_server(
    campaign: Campaign, hostile: tuple[Path, Path], server: tuple[str, ...]
) -> None:
    folder, mark = hostile
    done = run_pinscope(*server, folder=folder, time_limit=8.0)
    campaign.count("surroundings")
    if not done.timed_out or done.traceback or mark.exists():
        campaign.fail(f"{' '.join(server)}: exit {done.exit_code}; {_executed(mark)}; {done.stderr[-300:]}")


def _executed(mark: Path) -> str:
    """What was executed, once."""
    if not mark.exists():
        return "nothing executed"
    text = mark.read_text()
    mark.unlink()
    return f"executed: {text[:300]}"
