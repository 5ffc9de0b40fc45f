"""Whoever has read the folder of one experiment knows where all stands in every other."""

from __future__ import annotations

from pathlib import Path

import pytest

import pinscope.experiments

ROOT = Path(pinscope.experiments.__file__).parent
FOLDERS = sorted(path.parent for path in ROOT.glob("*/experiment.py"))
FILES = {"experiment.py", "ways.py", "reading.py", "findings.py", "charts.py"}
BESIDE = ("cuda_", "torch_", "child_", "code_")
"""What touches a GPU library, what a child process runs, and code to paste."""


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_folder_has_the_five_files_and_no_others(folder: Path) -> None:
    others = {path.name for path in folder.glob("*.py")} - FILES
    assert not [name for name in others if not name.startswith(BESIDE)]


def test_the_folders_are_those_of_the_registry() -> None:
    from pinscope.experiments.registry import EXPERIMENTS

    assert {folder.name for folder in FOLDERS} == {entry.name for entry in EXPERIMENTS}
