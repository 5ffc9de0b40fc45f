"""Programs run as without a trace: a sample of those in tests/data/programs. ``scripts/compare-programs`` runs all."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.data.beside_python import Interpreter, Program, compare_all, compared, programs
from tests.data.fake_cupti import ROOT, built

SAMPLE = frozenset({
    "-X int_max_str_digits", "-X pycache_prefix", "-X warn_default_encoding", "-x", "a .pth file prints",
    "arguments of 1 MiB in all", "warnings.warn at stacklevel 2", "inspect.stack", "how deep a recursion goes",
    "a script by ./", "a folder with a slash at its end", "stdin is closed", "the parent-death signal",
    "env with PYTHONPATH empty", "os.environ cleared, and a child", "sys.settrace to the end",
    "time.sleep replaced by what returns at once", "os.open replaced", "len replaced", "SIGALRM from outside",
    "a json beside the script", "sys.excepthook is None",
})  # fmt: skip
"""One of each kind that once differed; they take 20 s."""
MANUAL = ROOT / "docs" / "trace-limits.md"
ODD = Program(
    "", "odd", "import sys; print('out'); print('error', file=sys.stderr); open('file', 'w').close(); sys.exit(3)"
)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("cupti"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Short: sockets lie in it."""
    path = tmp_path / "p"
    path.mkdir()
    return path


def test_a_sample_of_programs_runs_as_without_a_trace_but_for_what_the_manual_says(folder: Path, library: Path) -> None:
    here = Interpreter.at(sys.executable)
    sample = [each for each in programs() if each.name in SAMPLE and here.can_run(each)]
    assert {each.name for each in sample} == SAMPLE
    wrong = [
        f"{program.kind}: {program.name}: {differences or 'differs no more'}"
        for program, differences in compare_all(sample, here, folder, library)
        if bool(differences) != here.has_known_difference(program)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_manual_has_each_kind_of_difference_and_no_other() -> None:
    _, _, section = MANUAL.read_text().partition("## What differs from python")
    rows = [line.split(" | ")[0] for line in section.partition("\n## ")[0].splitlines() if line.startswith("| ")]
    assert {row.removeprefix("| ") for row in rows[2:]} == {each.differs for each in programs()} - {None}


def test_the_table_has_at_least_250_programs() -> None:
    assert len(list(programs())) >= 250


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ("print('more')", ["stdout"]),
        ("sys.stderr.write('more')", ["stderr"]),
        ("open('other', 'w').close()", ["file here/other"]),
        ("open('file', 'w').write('x')", ["file here/file"]),
        ("open(os.environ['TMPDIR'] + '/left', 'w').close()", ["file tmp/left"]),
        ("os.chmod('file', 0o600)", ["file here/file"]),
        ("os._exit(4)", ["exit code"]),
        ("os.kill(os.getpid(), 15)", ["exit code"]),
        ("", []),
    ],
)
def test_whatever_another_start_changes_is_seen(change: str, what: list[str], folder: Path, library: Path) -> None:
    other = folder / "other.py"
    other.write_text(
        "import os, runpy, sys\n"
        "try: runpy.run_path(sys.argv[1], run_name='__main__')\n"
        f"finally: sys.stdout.flush(); {change or 'pass'}\n"
    )
    differences = compared(ODD, Interpreter.at(sys.executable), folder / "0", library, traced=(str(other),))
    assert [each.what for each in differences] == what


def test_a_program_whose_two_runs_are_the_same_leaves_no_folder(folder: Path, library: Path) -> None:
    assert not compared(ODD, Interpreter.at(sys.executable), folder / "0", library, traced=())
    assert not list(folder.iterdir())
