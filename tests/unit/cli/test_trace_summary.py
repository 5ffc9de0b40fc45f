"""What the terminal says when a traced program has ended."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest

from pinscope.cli.trace_summary import print_summary
from pinscope.report.facts import open_document
from tests.data.synthetic_trace import MIB, place, program, row, run, site

GPU = row("device", device=0, kernels=400, busy_seconds=5.0)
SOURCE = "batch = torch.as_tensor(images, dtype=torch.float32, device=torch.device('cuda:0')).contiguous()"
ORDINARY = [
    program(peak_bytes=3 << 30, peak_at_seconds=1.5), GPU, site(33),
    *(site(line, "pinned", idle_seconds=0.4, source_line=SOURCE) for line in range(50, 60)),
    place("synchronisation", 9, call="cuStreamSynchronize", count=400, call_seconds=0.1, idle_seconds=2.0,
          first_seconds=0.0),
    *(place("allocation", line, call="cuMemHostAlloc", count=96, bytes=96 * MIB, call_seconds=1.5, left_count=0,
            left_bytes=0, at_peak_bytes=600 * MIB) for line in range(60, 65)),
    *(row("size", direction="h2d", most_bytes=256 * 4**step, count=4000, bytes=4000) for step in range(8)),
]  # fmt: skip


def printed(
    rows: list[dict[str, Any]], columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    print_summary(open_document(run(), rows))
    return re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().err).rstrip("\n").split("\n")


def test_the_answer_of_an_ordinary_program_fits_25_lines_of_100_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = printed(ORDINARY, 100, capsys, monkeypatch)
    assert len(lines) <= 25
    assert [line for line in lines if len(line) > 100] == []
    drawn = "\n".join(lines)
    for part in ("GPU idle: after waits", "→ pin once", "Most pinned memory at once: 2.93 GiB", "256 B", "--what-if"):
        assert part in drawn


def test_the_answer_of_eight_ranks_fits_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = [{"process": 4711 + rank, "rank": rank} for rank in range(8)]
    rows = [row("process", process=4711 + rank, active_seconds=10.0, copies=1, kernels=1) for rank in range(8)] + [
        {**each, **rank} for rank in ranks for each in (GPU, site(33))
    ]
    assert len(printed([program(), *rows], 100, capsys, monkeypatch)) <= 25


@pytest.mark.parametrize("process", [{}, {"process": 4711, "rank": 12}], ids=["one process", "a rank"])
def test_a_terminal_of_80_columns_shows_each_line_with_its_figures_whole(
    process: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = site(40, file="/srv/prepare_batches.py", large_count=0, median_bytes=64.0, count=200_000, **process)
    lines = printed([program(), GPU, site(33, **process), small], 80, capsys, monkeypatch)
    drawn = "\n".join(lines)
    name = " (rank 12)" if process else ""
    for cell in (f"train.py:33{name}", f"prepare_batches.py:40{name}", "200,000 copies", "1.00 s", "979 ms"):
        assert re.search(rf"(?m)(^| ){re.escape(cell)}( |,|$)", drawn)
    assert [line for line in lines if len(line) > 80 and "pinscope trace --what-if" not in line] == []


def test_what_no_line_shows_is_said_below_the_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = "\n".join(printed([program(unrecorded=1), GPU, site(33)], 100, capsys, monkeypatch))
    assert "1 child process used CUDA" in drawn
    assert "makes 100 copies" not in drawn  # the finding of line 33, which stands in the table
