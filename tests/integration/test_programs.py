"""Programs run as without a trace: a sample of those in tests/data/programs. ``scripts/compare-programs`` runs all."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.data.beside_python import Interpreter, Program, compare_all, compared, programs
from tests.data.fake_cupti import ROOT

SAMPLE = frozenset({
    "-x", "a .pth file prints", "inspect.stack", "stdin is closed", "the parent-death signal",
    "os.environ cleared, and a child", "sys.settrace to the end", "os.open replaced", "SIGALRM from outside",
    "a json beside the script",
})  # fmt: skip
"""One of each kind that once differed."""
MANUAL = ROOT / "docs" / "trace-limits.md"
ODD = Program(
    "", "odd", "import sys; print('out'); print('error', file=sys.stderr); open('file', 'w').close(); sys.exit(3)"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Short: sockets lie in it."""
    path = tmp_path / "p"
    path.mkdir()
    return path


def test_a_sample_of_programs_runs_as_without_a_trace_but_for_what_the_manual_says(folder: Path, library: Path) -> None:
    here = Interpreter.at(sys.executable)
    sample = [entry for entry in programs() if entry.name in SAMPLE and here.can_run(entry)]
    assert {entry.name for entry in sample} == SAMPLE
    wrong = [
        f"{program.kind}: {program.name}: {differences or 'differs no more'}"
        for program, differences in compare_all(sample, here, folder, library)
        if bool(differences) != here.has_known_difference(program)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_manual_has_each_kind_of_difference_and_no_other() -> None:
    _, _, section = MANUAL.read_text().partition("## What differs from python")
    rows = [line.split(" | ")[0] for line in section.partition("\n## ")[0].splitlines() if line.startswith("| ")]
    assert {row.removeprefix("| ") for row in rows[2:]} == {entry.differs for entry in programs()} - {None}


def test_the_table_has_at_least_250_programs() -> None:
    assert len(list(programs())) >= 250


def test_whatever_another_start_changes_is_seen(folder: Path, library: Path) -> None:
    other = folder / "other.py"
    other.write_text("""
import os
print("out and more")
os.write(2, b"another error")
open("file", "w").write("x")
open("other", "w").close()
open(os.environ["TMPDIR"] + "/left", "w").close()
os.kill(os.getpid(), 15)
""")
    differences = compared(ODD, Interpreter.at(sys.executable), folder / "0", library, traced=(str(other),))
    assert {difference.what for difference in differences} == {
        "stdout", "stderr", "file here/file", "file here/other", "file tmp/left", "exit code",
    }  # fmt: skip


def test_a_program_whose_two_runs_are_the_same_leaves_no_folder(folder: Path, library: Path) -> None:
    assert not compared(ODD, Interpreter.at(sys.executable), folder / "0", library, traced=())
    assert not list(folder.iterdir())
