"""Defaults of options: from the user's own file, and from no other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pinscope.cli.main import main, settings_file
from pinscope.store.store import Store
from tests.unit.cli.test_errors import refused
from tests.unit.store.runs import new_run


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    path = settings_file()
    path.parent.mkdir(parents=True)
    return path


def listed(capsys: pytest.CaptureFixture[str], *options: str) -> list[str]:
    assert main(["runs", "list", *options]) == 0
    return [run["id"] for run in json.loads(capsys.readouterr().out)]


def test_options_take_their_defaults_from_the_user_s_file_and_the_command_line_wins(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Store() as store:
        for number in range(3):
            store.add(new_run(f"run-{number}", tags=["x"] if number else []))
    file.write_text('[run]\nquick = true\n[runs.list]\njson = true\nrecordings = false\nlimit = 1\ntag = ["x"]\n')
    assert listed(capsys) == ["run-2"]
    assert listed(capsys, "--limit", "9") == ["run-2", "run-1"]
    assert main(["runs", "show", "run-1"]) == 0, "another command has its own"
    assert "{" not in capsys.readouterr().out[:1]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[bandwidth]\n", "there is no command 'bandwidth'"),
        ("[runs.list]\nlimits = 1\n", "[runs.list] has no 'limits'; there are: experiment, lab, status"),
        ("[runs.lists]\n", "[runs] has no 'lists'; there are: list, trend, edit, show"),
        ("runs = 1\n", "runs must be a table: [runs]"),
        ("[runs\n", "Expected ']'"),
        ('[runs.list]\nlimit = "many"\n', "Invalid value for '--limit'"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused_in_one_line(
    file: Path, text: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(text)
    assert complaint in refused(["runs", "list"], 2, capsys)


def test_a_file_in_the_working_folder_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("pinscope.toml", ".pinscope.toml", "pyproject.toml"):
        Path(name).write_text("[runs.list]\nlimit = 0\n[tool.pinscope.runs.list]\nlimit = 0\n")
    assert len(listed(capsys, "--json")) > 1
