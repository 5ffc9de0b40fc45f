"""``pinscope check`` from end to end: it runs what the baseline has, and again what falls out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pinscope.cli.main import main
from pinscope.store.store import Store

FASTER = 1000
"""So many times as fast a baseline is made as the machine was."""


def test_a_check_runs_the_baseline_again_and_once_more_before_it_blames(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, faster, result = (tmp_path / name for name in ("baseline.json", "faster.json", "result.json"))
    some = ["--set", "sizes=64KiB", "--set", "memory=pinned", "--set", "directions=h2d"]
    assert main(["check", "write", str(file), "bandwidth", "--lab", "host", "--quick", *some, "--count", "2"]) == 0

    assert main(["check", str(file), "--count", "1", "--tolerance", "100000%"]) == 0
    assert "no regression in 1 cell." in capsys.readouterr().out

    baseline = json.loads(file.read_text())
    for cell in baseline["experiments"][0]["cells"]:
        for figure in cell["figures"].values():
            figure["runs"] = [_times(run, figure["unit"]) for run in figure["runs"]]
    faster.write_text(json.dumps(baseline))
    assert main(["check", str(faster), "--count", "1", "-o", str(result)]) == 1
    said = capsys.readouterr()
    assert "fell out: measured once more" in said.err
    assert "instead of" in said.out
    (experiment,) = json.loads(result.read_text())["experiments"]
    runs = experiment["comparison"]["sides"][1]["runs"]
    with Store() as store:
        stored = store.runs(recordings=False)
    assert len(runs) == 1 + 3
    assert len(stored) == 2 + 1 + 4
    assert stored[0].params == stored[-1].params


def _times(run: list[Any], unit: str) -> list[Any]:
    factor = {"seconds": 1 / FASTER, "bytes/second": FASTER}.get(unit, 1)
    return [run[0] * factor, run[1]]
