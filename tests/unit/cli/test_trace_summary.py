"""What the terminal says when a traced program has ended."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest

from pinscope.cli.trace_summary import print_summary
from pinscope.report.facts import open_document
from tests.data.synthetic_trace import place, program, row, run, site

GPU = row("device", device=0, kernels=400, busy_seconds=5.0)
WAIT = place(
    "synchronisation", 9, call="cuStreamSynchronize", count=400, call_seconds=0.1, idle_seconds=2.0, first_seconds=0.0
)
OLDER = {name: value for name, value in WAIT.items() if name != "first_seconds"}


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        (
            [GPU, site(33), WAIT],
            "Of 10.0 s GPU compute was busy 5.00 s (50.0 %), idle 1.00 s for copies and 2.00 s after waits; what "
            "the CPU did in the other 2.00 s (20.0 %) was not recorded.",
        ),
        (
            [{**GPU, "busy_seconds": 7.0}, site(33), WAIT],
            "Of 10.0 s GPU compute was busy 7.00 s (70.0 %), idle 1.00 s for copies and 2.00 s after waits.",
        ),
        (
            [GPU, {**GPU, "device": 1, "repeat": 1}, site(33)],
            "Of 10.0 s GPU compute was busy 5.00 s (50.0 %) on GPU 0, 5.00 s (50.0 %) on GPU 1.",
        ),
        ([GPU, site(33), OLDER], "Of 10.0 s GPU compute was busy 5.00 s (50.0 %)."),
    ],
    ids=["with a rest", "without", "two GPUs", "of an earlier version"],
)
def test_it_says_what_became_of_the_time(
    rows: list[dict[str, Any]], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_summary(open_document(run(), [program(), *rows], with_charts=False))
    assert line in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("process", [{}, {"process": 4711, "rank": 12}], ids=["one process", "a rank"])
def test_a_terminal_of_80_columns_shows_each_line_with_its_figures_whole(
    process: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    small = site(40, file="/srv/prepare_batches.py", large_count=0, median_bytes=64.0, count=200_000, **process)
    print_summary(open_document(run(), [program(), GPU, site(33, **process), small], with_charts=False))
    lines = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().err).split("\n")
    drawn = "\n".join(lines)
    for cell in ("train.py:33", "prepare_batches.py:40", "200,000", "1000 MiB", "1.00 s", "979 ms", "small copies"):
        assert re.search(rf"(?m)(^| ){re.escape(cell)}( |$)", drawn)
    assert [line for line in lines if len(line) > 80 and "pinscope trace --what-if" not in line] == []
