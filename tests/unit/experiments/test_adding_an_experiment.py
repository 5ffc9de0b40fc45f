"""Adding an experiment is one folder and one line of the registry: CONTRIBUTING.md's example, taken at its word.

The example is put into a copy of PinScope, and then runs there through the whole path on the host model.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pinscope.units import format_bytes
from tests.unit.test_architecture import modules, violations

ROOT = Path(__file__).parents[3]
FOLDER = "pinscope/experiments/pin_once"
FILES = tuple(f"{FOLDER}/{name}.py" for name in ("charts", "experiment", "findings", "reading", "ways"))
REGISTRY = "pinscope/experiments/registry.py"

FORM = """
import json
from streamlit.testing.v1 import AppTest

app = AppTest.from_file("app.py", default_timeout=60)
app.switch_page("pinscope/dashboard/experiments.py").run()
app.segmented_control(key="experiment").set_value("pin_once").run()
print(json.dumps({
    "errors": [error.value for error in (*app.exception, *app.error)],
    "question": [header.value for header in app.header],
    "fields": [field.label for field in (*app.text_input, *app.number_input)],
    "buttons": [button.label for button in app.button if not button.disabled],
}))
"""


COMMANDS = """
import io, json, sys
from contextlib import redirect_stdout
from pinscope.cli.main import main

printed, run = [], ""
for command in json.loads(sys.argv[1]):
    with redirect_stdout(io.StringIO()) as out:
        assert main([run if word == "RUN" else word for word in command]) == 0, command
    printed.append(out.getvalue())
    if "pin_once" in command and "--json" in command:
        run = json.loads(out.getvalue())["run"]["id"]
print(json.dumps(printed))
"""
"""RUN is the one that was measured before."""


def blocks() -> dict[str, str]:
    """The example's code blocks, by the file that the first line of each names."""
    found = re.findall(r"```python\n# (\S+)\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.S)
    return dict(found)


class Copy:
    """A copy of PinScope with the example in it, and what was run there."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "copy"
        shutil.copytree(  # with what is compiled already
            ROOT / "pinscope", self.root / "pinscope", ignore=shutil.ignore_patterns("notebooks")
        )
        shutil.copytree(ROOT / ".streamlit", self.root / ".streamlit")
        for name in ("app.py", "pyproject.toml"):
            shutil.copy(ROOT / name, self.root)
        self._variables = {
            **os.environ,
            "PYTHONPATH": str(self.root),
            "PINSCOPE_DATABASE": f"sqlite:///{folder / 'runs.db'}",
        }

    def add(self, example: Mapping[str, str]) -> None:
        """Do what CONTRIBUTING.md says: one new folder, and its name among those of the registry."""
        (self.root / FOLDER).mkdir()
        for name in FILES:
            (self.root / name).write_text(example[name])
        lines = (self.root / REGISTRY).read_text().splitlines()
        opening = next(place for place, line in enumerate(lines) if line.startswith("_FOLDERS"))
        lines.insert(lines.index(")", opening), example[REGISTRY].rstrip())
        (self.root / REGISTRY).write_text("\n".join(lines) + "\n")

    def changes(self) -> set[str]:
        """Files of the copy that the original lacks or has otherwise."""
        found = set()
        for path in (self.root / "pinscope").rglob("*.py"):
            name = str(path.relative_to(self.root))
            original = ROOT / name
            if not original.exists() or original.read_text() != path.read_text():
                found.add(name)
        return found

    def python(self, *arguments: str) -> str:
        """Standard output of this interpreter in the copy; it must end well."""
        done = subprocess.run(
            [sys.executable, *arguments], cwd=self.root, env=self._variables, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def pinscope(self, *commands: Sequence[str]) -> list[str]:
        """Standard output of each command of the copy, all in one process."""
        printed: list[str] = json.loads(self.python("-c", COMMANDS, json.dumps(commands)))
        return printed


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    made = Copy(tmp_path_factory.mktemp("adding"))
    made.add(blocks())
    return made


@pytest.fixture(scope="module")
def shown(copy: Copy, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Two helps, a run of the example, and that run as the list, the command that shows it, and two reports have it."""
    folder = tmp_path_factory.mktemp("reports")
    html, csv = (folder / name for name in ("report.html", "rows.csv"))
    experiments, parameters, ran, listed, run, *_ = copy.pinscope(
        ["run", "--help"], ["run", "pin_once", "--help"],
        ["run", "pin_once", "--lab", "host", "--quick", "--json", "--set", "sizes=64KiB,1MiB"],
        ["runs", "list", "--json"], ["runs", "show", "RUN", "--json"],
        ["report", "RUN", "-o", str(html)], ["report", "RUN", "-o", str(csv)],
    )  # fmt: skip
    return {
        "experiments": experiments, "parameters": parameters, "ran": ran, "list": listed, "run": run,
        "html": html.read_text(), "csv": csv.read_text(),
    }  # fmt: skip


@pytest.fixture(scope="module")
def ran(shown: dict[str, str]) -> dict[str, Any]:
    """What a run of the example printed."""
    document: dict[str, Any] = json.loads(shown["ran"])
    return document


def test_it_is_one_folder_and_one_line_of_the_registry(copy: Copy) -> None:
    assert set(blocks()) == {*FILES, REGISTRY}
    assert copy.changes() == {*FILES, REGISTRY}
    added = {
        line
        for line in (copy.root / REGISTRY).read_text().splitlines()
        if line not in (ROOT / REGISTRY).read_text().splitlines()
    }
    assert added == {'    "pin_once",'}


def test_it_keeps_the_rules_of_the_house(copy: Copy) -> None:
    assert violations(modules(copy.root)) == []
    copy.python("-m", "ruff", "check", "--no-cache", *FILES, REGISTRY)
    copy.python("-m", "ruff", "format", "--no-cache", "--check", *FILES, REGISTRY)


@pytest.mark.release
def test_its_types_are_right(copy: Copy) -> None:
    copy.python("-m", "mypy", *FILES, REGISTRY)


def test_its_parameters_become_options_and_form_fields(copy: Copy, shown: dict[str, str]) -> None:
    assert "Does it pay to pin a buffer for each copy?" in shown["experiments"]
    assert "Sizes by comma, such as" in " ".join(shown["parameters"].split())
    form = json.loads(copy.python("-c", FORM).splitlines()[-1])
    assert form["errors"] == []
    assert form["question"][0].startswith("Does it pay to pin a buffer for each copy")
    assert any(label.startswith("Buffer sizes") for label in form["fields"])
    assert any(label.startswith("Start") for label in form["buttons"])


def test_it_runs_and_is_stored(ran: dict[str, Any], shown: dict[str, str]) -> None:
    run, rows = ran["run"], ran["observations"]
    assert (run["experiment"], run["status"], run["params"]["sizes"]) == ("pin_once", "done", [2**16, 2**20])
    assert {row["bytes"] for row in rows} == {2**16, 2**20}
    assert all(0 < row["pin_seconds"] < row["wall_seconds"] for row in rows)
    listed = json.loads(shown["list"])
    assert (listed[0]["id"], listed[0]["experiment"]) == (run["id"], "pin_once")
    assert json.loads(shown["run"]) == ran


def test_it_is_read(ran: dict[str, Any]) -> None:
    headline = {quantity["name"]: quantity["value"] for quantity in ran["run"]["headline"]}
    assert set(headline) == {f"Pinned each time ÷ once, {format_bytes(2**20)}"}
    assert all(value > 0 for value in headline.values())
    (table,) = ran["run"]["tables"]
    assert len(table["rows"]) == 2 * 3


def test_it_is_drawn_in_its_report(ran: dict[str, Any], shown: dict[str, str]) -> None:
    for words in (
        "Pin once",
        "A copy, over its size",
        "What a copy of 1 MiB takes",
        "Does it pay to pin",
        ran["run"]["id"],
    ):
        assert words in shown["html"]
    assert "pin_seconds" in shown["csv"].splitlines()[0]
