"""What works where only PinScope's base is installed: no Streamlit, Plotly, pandas or jinja2."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BLOCKED = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("streamlit", "starlette", "plotly", "pandas", "jinja2", "markupsafe"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "block").mkdir()
    (tmp_path / "block" / "sitecustomize.py").write_text(BLOCKED)
    return {**os.environ, "PYTHONPATH": f"{tmp_path / 'block'}", "PINSCOPE_DATABASE": f"sqlite:///{tmp_path}/runs.db"}


def pinscope(environment: dict[str, str], *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pinscope", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return done


def test_a_run_is_measured_listed_shown_and_written(environment: dict[str, str], tmp_path: Path) -> None:
    chosen = ("--lab", "host", "--quick", "--set", "sizes=64KiB", "--set", "repeats=8", "--json")
    run = json.loads(pinscope(environment, "run", "bandwidth", *chosen).stdout)["run"]
    assert run["verdict"]
    assert run["id"][:15] in pinscope(environment, "runs", "list").stdout
    assert run["verdict"].split()[0] in pinscope(environment, "runs", "show", run["id"]).stdout
    for suffix in ("csv", "json", "parquet"):
        pinscope(environment, "report", run["id"], "-o", str(tmp_path / f"run.{suffix}"))
        assert (tmp_path / f"run.{suffix}").stat().st_size


@pytest.mark.parametrize(
    "command", ["doctor", "live --once --json", "plan --pinned 64GiB", "record --for 1s", "docs quick-start --text"]
)
def test_a_node_without_a_dashboard_has(environment: dict[str, str], command: str) -> None:
    assert pinscope(environment, *command.split()).stdout


def test_what_a_command_lacks_it_says_with_the_line_that_installs_it(
    environment: dict[str, str], tmp_path: Path
) -> None:
    listed = json.loads(pinscope(environment, "runs", "list", "--json").stdout)
    for arguments in (("dashboard",), ("report", listed[0]["id"], "-o", str(tmp_path / "run.html"))):
        (line,) = pinscope(environment, *arguments, code=3).stderr.splitlines()
        assert "not installed here; run: " in line
        assert "dashboard" in line or "streamlit" in line
