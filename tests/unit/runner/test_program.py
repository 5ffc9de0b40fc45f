"""Which Python runs the program that words behind ``pinscope trace`` name."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pinscope.runner.program import find_program

OWN = Path(sys.executable)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of another environment, in a folder with a space in its name."""
    folder = tmp_path_factory.mktemp("an environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return folder / "bin" / "python"


def script(folder: Path, first: str, name: str = "launch") -> Path:
    path = folder / name
    path.write_text(f"{first}\nprint()\n")
    path.chmod(0o755)
    return path


def test_an_interpreter_is_asked_and_runs_what_stands_behind_it(python: Path, tmp_path: Path) -> None:
    path = script(tmp_path, "")
    typed = (str(python), "-W", "ignore", "-mjson.tool", "x")
    module, file = find_program(typed), find_program([str(python), str(path)])
    assert (module.typed, module.command) == (typed, typed)
    assert module.python == f"{python}, {sys.version_info[0]}.{sys.version_info[1]}"
    assert (file.file, file.python) == (str(path), module.python)
    assert any(each.startswith(str(python.parents[1])) for each in file.path)
    assert not any("pinscope" in each for each in file.path)


@pytest.mark.parametrize("first", ["#!{}", "#!{} -sB", "#!/bin/sh\n'''exec' \"{}\" \"$0\" \"$@\"\n' '''"])
def test_a_script_runs_in_the_environment_that_it_was_installed_in(first: str, python: Path, tmp_path: Path) -> None:
    plain = "exec" not in first
    if plain:
        (tmp_path / "bin").symlink_to(python.parent)  # the kernel takes no space in this line
    named = tmp_path / "bin" / "python" if plain else python
    path = script(python.parent, first.format(named))
    found = find_program([str(path), "x"])
    assert found.command == (str(named), *(["-sB"] if "-sB" in first else []), str(path), "x")
    assert found.typed == (str(path), "x")
    linked = tmp_path / "linked"
    linked.symlink_to(path)  # as pipx and uv do
    assert found.python == find_program([str(linked)]).python is not None


def test_what_is_not_there_is_what_the_shell_would_start(
    python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{python.parent}{os.pathsep}{os.environ['PATH']}")
    assert find_program(["python", "-c", "pass"]).command == (str(python), "-c", "pass")
    script(tmp_path, "", "launch")
    script(python.parent, f"#!{python}", "launch")
    command = find_program(["launch"]).command  # with the options of this interpreter between
    assert (command[0], command[-1]) == (sys.executable, "launch")


def test_other_scripts_run_in_pinscope_s_python(python: Path, tmp_path: Path) -> None:
    for first in ("", "#!/usr/bin/env python3", f"#!{python}", "#!'", f"#!{shutil.which('sh')}"):
        path = script(tmp_path, first)
        found = find_program([str(path), "x"])
        assert (found.command[0], found.command[-2:]) == (sys.executable, [str(path), "x"])
        assert (found.python, found.path) == (None, ())
