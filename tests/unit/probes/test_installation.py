"""What PinScope tells a user to type exists where it stands."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import get_args

import pytest

from pinscope.probes import capabilities
from pinscope.probes.capabilities import EXTRAS, Extra, install_command, uninstall_command

ROOT = Path(__file__).parents[3]
PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""
BACKEND = """
from pathlib import Path

def prepare_metadata_for_build_editable(folder, config_settings=None):
    place = Path(folder, "stand_in-1.dist-info")
    place.mkdir()
    (place / "METADATA").write_text("Metadata-Version: 2.1\\nName: stand-in\\nVersion: 1\\nProvides-Extra: torch\\n")
    return place.name

def build_wheel(*arguments): ...
def build_editable(*arguments): ...
"""


def test_the_extras_are_those_of_the_project() -> None:
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(EXTRAS) == set(get_args(Extra)) == set(known) - {"dev"}
    assert {name: tuple(known[name]) for name in EXTRAS} == EXTRAS


@pytest.mark.parametrize("extra", get_args(Extra))
def test_a_clone_is_installed_by_its_own_path_with_the_python_that_runs(extra: Extra) -> None:
    python, *words, place = shlex.split(install_command(extra))
    assert python == sys.executable
    assert words == ["-m", "pip", "install", "-e"]
    folder, _, name = place.partition("[")
    assert (Path(folder) / "pyproject.toml").samefile(ROOT / "pyproject.toml")
    assert name.rstrip("]") in EXTRAS
    assert os.access(python, os.X_OK)


def test_pip_understands_what_is_advised(tmp_path: Path) -> None:
    """With a package that is here: a project of the same form, without dependencies and without an index."""
    folder = tmp_path / "a clone"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "backend.py").write_text(BACKEND)
    command = [*shlex.split(install_command("torch", folder)), "--dry-run", "--no-index", "--no-deps"]
    done = subprocess.run([*command, "--no-build-isolation"], capture_output=True, text=True, check=False)
    assert "Would install stand-in-1" in done.stdout, done.stderr


def test_elsewhere_the_packages_themselves_are_named(tmp_path: Path) -> None:
    assert shlex.split(install_command("cuda13", tmp_path))[-2:] == list(EXTRAS["cuda13"])


def test_a_path_that_a_shell_would_take_apart_is_quoted(tmp_path: Path) -> None:
    folder = tmp_path / "it's; a $(clone)"
    folder.mkdir()
    (folder / "pyproject.toml").touch()
    assert shlex.split(install_command("torch", folder))[-1] == f"{folder}[torch]"


def test_an_environment_without_pip_gets_the_command_of_the_tool_that_makes_such(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(capabilities.importlib.util, "find_spec", lambda name: None)
    assert uninstall_command("cupy-cuda12x") == f"uv pip uninstall --python {shlex.quote(sys.executable)} cupy-cuda12x"


def test_no_advice_names_a_package_that_no_index_has() -> None:
    found = [
        path.name for path in (ROOT / "pinscope").rglob("*.py")
        if re.search(r"pip install|pinscope\[[a-z0-9]+\]", path.read_text())
    ]  # fmt: skip
    assert found == []
