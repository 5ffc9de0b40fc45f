"""Baselines as files, and the result of a check as JUnit XML and JSON."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from pinscope.analysis.check import Baseline, Checked, baseline_of, check
from pinscope.errors import BadInput, PathExists
from pinscope.report.comparison import check_document, read_baseline, write_baseline, write_result
from tests.data.simulated_runs import Host, as_it_is


def slow(memory: str, size: int) -> float:
    """Two copies take twice as long."""
    return 2.0 if memory == "pinned" and size == 4096 else 1.0


@pytest.fixture(scope="module")
def host() -> Host:
    """With copies of two sizes."""
    made = Host(3)
    made.cells = [cell for cell in made.cells if cell[2] <= 2**14 and cell[0] in ("pinned", "mapped")]
    return made


@pytest.fixture(scope="module")
def baseline(host: Host) -> Baseline:
    return baseline_of([host.run() for _ in range(5)])


@pytest.fixture(scope="module")
def checked(host: Host, baseline: Baseline) -> Checked:
    return check(baseline.experiments[0], host.side("now", 2, slow).runs)


def test_a_baseline_is_the_same_after_its_file_and_has_a_line_a_cell(baseline: Baseline, tmp_path: Path) -> None:
    file = tmp_path / "baseline.json"
    write_baseline(file, baseline)
    assert read_baseline(file) == baseline
    assert sum(line.startswith('{"kind"') for line in file.read_text().splitlines()) == 12
    with pytest.raises(PathExists):
        write_baseline(file, baseline)


@pytest.mark.parametrize("text", ["", "{}", '{"format": 99, "experiments": []}', "[1]"])
def test_another_file_is_refused_in_one_line(text: str, tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text(text)
    with pytest.raises(BadInput, match="is no baseline") as refused:
        read_baseline(file)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot read"):
        read_baseline(tmp_path / "none.json")


def test_junit_has_a_case_a_cell_and_a_failure_a_regression(checked: Checked, tmp_path: Path) -> None:
    file = tmp_path / "result.xml"
    write_result(file, [checked])
    (suite,) = ET.fromstring(file.read_text())  # noqa: S314 - written a line above
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("12", "3", "0")
    failing = {case.get("name") for case in suite if case.find("failure") is not None}
    assert failing == {f"pinned, {way}, 4 KiB" for way in ("h2d", "d2h", "bidirectional")}


def test_the_document_says_whether_it_passed(checked: Checked, host: Host, baseline: Baseline) -> None:
    document = check_document([checked])
    assert json.loads(json.dumps(document, allow_nan=False))["passed"] is False
    assert len(document["experiments"][0]["regressions"]) == 3
    equal = check(baseline.experiments[0], host.side("now", 2, as_it_is).runs)
    assert check_document([equal])["passed"] is True
