"""The command ``check``: exit codes, files, and what it takes in place of new runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pinscope.cli.main import main
from tests.unit.report.test_comparison import H100, H200, IDS


@pytest.fixture
def baseline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    file = tmp_path / "baseline.json"
    assert main(["check", "write", str(file), "--runs", H200]) == 0
    assert capsys.readouterr().out.endswith(f"Wrote {file}. Check against it: pinscope check {file}\n")
    return str(file)


def test_a_machine_that_is_as_good_passes(baseline: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = tmp_path / "result.xml"
    assert main(["check", baseline, "--runs", IDS["pinning_strategy-h200"], "-o", str(result)]) == 0
    assert "no regression in 10 cells, but a figure worse by 5.0 % would not show" in capsys.readouterr().out
    assert 'tests="10" failures="0" skipped="10"' in result.read_text()


def test_another_machine_is_refused_with_3_and_every_key_unless_it_is_allowed(
    baseline: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", baseline, "--runs", H100]) == 3
    refused = capsys.readouterr().err
    assert "GPU NVIDIA H200 → NVIDIA H100 80GB HBM3" in refused
    assert refused.endswith("--other-machine checks all the same\n")
    assert main(["check", baseline]) == 3
    assert "machine" in capsys.readouterr().err  # before anything runs


def test_what_is_worse_ends_with_1_and_a_line_each(
    baseline: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    faster = json.loads(Path(baseline).read_text())
    for cell in faster["experiments"][0]["cells"]:
        for figure in cell["figures"].values():
            factor = 1000 if figure["unit"] == "bytes/second" else 1 / 1000
            figure["runs"] = [[value * factor, off] for value, off in figure["runs"]]
    (tmp_path / "faster.json").write_text(json.dumps(faster))
    arguments = ["check", str(tmp_path / "faster.json"), "--runs", H200]
    assert main(arguments) == 1
    lines = capsys.readouterr().out.splitlines()
    assert main([*arguments, "--json"]) == 1
    (document,) = json.loads(capsys.readouterr().out)["experiments"]
    assert {item["line"] for item in document["regressions"]} <= set(lines)
    assert document["regressions"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["-o", "result.txt"], ".xml, .json"),
        (["--tolerance", "much"], "much"),
        (["--only", "pinned"], "LABEL=VALUE"),
        (["--only", "colour=red", "--runs", H200], "no label 'colour'"),
        (["--runs", IDS["scatter-h200"]], "nothing was checked"),
    ],
)
def test_bad_input_ends_with_2(
    arguments: list[str], why: str, baseline: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", baseline, *arguments]) == 2
    assert why in capsys.readouterr().err


def test_a_baseline_of_nothing_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "write", str(tmp_path / "none.json")]) == 2
    assert "--runs or --trace" in capsys.readouterr().err
