"""``pinscope check`` and ``compare`` from end to end: check runs what the baseline has, and again what falls out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pinscope.cli.main import main
from pinscope.store.store import Store
from pinscope.units import format_seconds
from tests.integration.traces import program, traced

FASTER = 1000
"""So many times as fast a baseline is made as the machine was."""


def test_a_check_runs_the_baseline_again_and_once_more_before_it_blames(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, faster, result = (tmp_path / name for name in ("baseline.json", "faster.json", "result.json"))
    some = ["--set", "sizes=64KiB", "--set", "memory=pinned", "--set", "directions=h2d"]
    assert main(["check", "write", str(file), "bandwidth", "--lab", "host", "--quick", *some, "--count", "2"]) == 0

    assert main(["check", str(file), "--count", "1", "--tolerance", "100000%"]) == 0
    assert "no regression in 1 cell" in capsys.readouterr().out

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


@pytest.mark.usefixtures("_cupti")
def test_two_traces_are_compared_and_the_first_sentence_has_the_line_that_went(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = "for step in range(40):\n    copy(8 << 20, {}, DEVICE)\n    kernel(2_000_000)\n"
    ids = [
        traced(tmp_path, program(tmp_path, loop.format(source)))[1]["run"]["id"] for source in ("PAGEABLE", "PINNED")
    ]
    capsys.readouterr()
    assert main(["compare", "--json", *ids]) == 0
    (comparison,) = json.loads(capsys.readouterr().out)["comparisons"]
    whole = next(cell for cell in comparison["cells"] if not cell["labels"] and cell["figure"] == "seconds")
    gone = next(cell for cell in comparison["only"] if cell["labels"]["text"] == "copy(8 << 20, PAGEABLE, DEVICE)")
    saved = format_seconds(whole["a"]["value"] - whole["b"]["value"])
    assert comparison["verdict"].startswith(
        f"Gone is train.py `{gone['labels']['text']}`, which cost {format_seconds(gone['value'])}: the program takes "
    )
    assert comparison["verdict"].endswith(f", {saved} less.")
