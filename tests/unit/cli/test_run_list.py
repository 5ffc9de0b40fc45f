"""The list of runs: one line a run, with what came out of it."""

from __future__ import annotations

import pytest

from pinscope.cli import runs as runs_module
from pinscope.cli.runs import answer, print_runs
from pinscope.records.run import Progress
from pinscope.store.tables import DamagedRun
from tests.data import synthetic

VERDICT = (
    "Pinned copies are 5 times as fast as pageable ones: 50.0 against 10.0 GB/s at 1 GiB, and faster from 4 KiB on."
)


@pytest.mark.parametrize("width", [40, 80, 160, 300])
def test_each_run_is_one_line_that_fits_the_terminal(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runs_module, "terminal_columns", lambda: width)
    runs = [synthetic.run("bandwidth", id=f"20300102-030405-{number}a", verdict=VERDICT) for number in range(3)]
    runs.append(synthetic.run("overlap", id="a-recording", recording=True, verdict=VERDICT))
    assert print_runs(runs)
    lines = capsys.readouterr().out.rstrip().split("\n")
    assert [line.split()[0] for line in lines if line] == [
        "id", *(run.id for run in runs[:3]), "Recordings,", "id", "a-recording",
    ]  # fmt: skip
    assert all(len(line) <= width for line in lines) or width == 40
    assert ("Synthetic GPU" in lines[1]) == (width >= runs_module.WIDE)
    assert (VERDICT in lines[1]) == (width == 300)


def test_a_line_in_a_file_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    assert print_runs([synthetic.run("bandwidth", verdict=VERDICT)])
    assert VERDICT in capsys.readouterr().out


def test_a_damaged_run_says_why_and_how_it_is_removed(capsys: pytest.CaptureFixture[str]) -> None:
    assert print_runs([DamagedRun("broken", "it is not JSON")])
    printed = capsys.readouterr()
    assert "damaged: it is not JSON" in printed.out
    assert "pinscope runs delete broken" in printed.err


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"status": "done", "verdict": VERDICT}, VERDICT),
        ({"status": "done", "observations": 1200}, "done: 1,200 observations"),
        ({"status": "failed", "error": "no memory left"}, "failed: no memory left"),
        ({"status": "cancelled"}, "cancelled"),
        ({"status": "cancelled", "verdict": VERDICT}, f"cancelled: {VERDICT}"),
        ({"status": "running", "progress": Progress(fraction=0.25, message="h2d")}, "running: 25.0 % h2d"),
    ],
)
def test_a_run_without_a_verdict_says_what_kept_it_from_one(changes: dict[str, object], expected: str) -> None:
    assert answer(synthetic.run("bandwidth", **changes)) == expected
