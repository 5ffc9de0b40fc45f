"""A test marked ``pinscope``, in a pytest of a user's own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.data.fake_cupti import PRELUDE

TESTS = """
import pytest

@pytest.mark.pinscope(pageable="1MiB")
def test_copies_too_much():
    for _ in range(20):
        copy(1 << 20, PAGEABLE, DEVICE)
    kernel(1000)

@pytest.mark.pinscope(pageable="1MiB", idle="50%")
def test_copies_pinned():
    for _ in range(20):
        copy(1 << 20, PINNED, DEVICE)
    kernel(1000)

def test_that_nobody_marked():
    copy(1 << 20, PAGEABLE, DEVICE)
"""


def pytest_there(folder: Path, *options: str) -> list[str]:
    """Lines of the summary."""
    own = ("-p", "no:pinscope", "-p", "pinscope.python.pytest_plugin", "-p", "no:cacheprovider", "--strict-markers")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rfs", "-c", os.devnull, "--rootdir", folder, *own, *options, folder],
        capture_output=True, text=True, check=False, cwd=folder,
    )  # fmt: skip
    return done.stdout.splitlines()


@pytest.mark.usefixtures("_cupti")
def test_a_marked_test_fails_where_it_copies_more_than_its_limit_and_names_the_line(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(PRELUDE + TESTS)
    lines = pytest_there(tmp_path)
    assert lines[-1].startswith("1 failed, 2 passed")
    (why,) = [line for line in lines if line.startswith("pageable=1MiB: ")]
    line = PRELUDE.count("\n") + 7
    assert why == f"pageable=1MiB: 20 MiB were copied from or to pageable memory (test_mine.py:{line})"


def test_where_nothing_can_be_recorded_a_marked_test_runs_and_is_skipped_unless_it_fails(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(
        "import pytest\n@pytest.mark.pinscope(pageable='1MiB')\ndef test_mine(): print('it ran')\n"
    )
    lines = pytest_there(tmp_path, "-s")
    assert "it ran" in "".join(lines)
    assert any(line.startswith("SKIPPED") and "no limit was checked" in line for line in lines)
