"""``pinscope fleet show``, ``outliers`` and ``baseline write``, and runs that are too old."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from pinscope.cli.main import main
from pinscope.report.comparison import read_baseline
from pinscope.report.fleet import read_fleet, render
from pinscope.store.bundle import open_bundle
from pinscope.store.recordings import recorded_observations
from pinscope.store.store import Store
from tests.data.synthetic_fleet import RECORDINGS, SyntheticFleet, base

EXPERIMENT = "pinning_strategy"


@pytest.fixture
def made() -> SyntheticFleet:
    """A fleet in the user's database, of which two GPUs are at fault."""
    made, (_, rows) = SyntheticFleet(40, 1, seed=3, kinds=("link", "huge pages")), base(EXPERIMENT)
    with Store() as store:
        store.import_runs((run, rows) for run, _ in made.runs(EXPERIMENT))
    return made


def test_outliers_are_a_line_each_and_an_exit_code(made: SyntheticFleet, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fleet", "outliers"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(made.faults) == 2
    why = {"link": "PCIe lanes in use 8, others 16", "huge pages": "transparent huge pages never, others madvise"}
    for line in lines:
        host = line.split(": ")[1].removesuffix(" GPU 0")
        assert line.endswith(why[made.faults[host]])
    with Store() as store:
        store.delete_many([f"{EXPERIMENT}-{host}-{number}" for host in made.faults for number in range(3)])
    assert main(["fleet", "outliers"]) == 0
    assert capsys.readouterr().out == ""


def test_show_writes_reports_with_all_gpus(
    made: SyntheticFleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fleet", "show", "--label", "rack", "--all"]) == 0
    assert "2 of 40 GPUs are worse" in capsys.readouterr().out
    assert main(["fleet", "show", "--json"]) == 0
    (document,) = json.loads(capsys.readouterr().out)
    assert (len(document["gpus"]), len(document["outliers"]), document["format"]) == (40, 2, 1)
    with Store() as store:
        fleet = read_fleet(store, EXPERIMENT)
    heads, *rows = csv.reader(io.StringIO(render(fleet, ".csv").decode()))
    assert len(rows) == 40
    assert sum(row[heads.index("judged")] == "outlier" for row in rows) == 2
    file = tmp_path / "fleet.html"
    assert main(["fleet", "show", EXPERIMENT, "--label", "rack", "-o", str(file)]) == 0
    page = file.read_text()
    assert "PCIe lanes in use 8, others 16" in page
    assert "By rack" in page
    assert main(["fleet", "show", EXPERIMENT, "-o", str(tmp_path / "fleet.md")]) == 2
    assert main(["fleet", "show", "bandwidth"]) == 2
    assert "no finished run of bandwidth" in capsys.readouterr().err


def test_the_fleet_gives_a_baseline_for_check(
    made: SyntheticFleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "fleet.json"
    assert main(["fleet", "baseline", "write", str(file)]) == 0
    (kept,) = read_baseline(file).experiments
    assert len(kept.runs) == 16
    assert not set(kept.runs) & {f"{EXPERIMENT}-{host}-2" for host in made.faults}
    run, rows = base(EXPERIMENT)
    with Store() as store:
        store.import_runs([(run.model_copy(update={"id": "own"}), rows)])
    assert main(["check", str(file), "--runs", "own", "--other-machine"]) == 0


def test_runs_of_an_older_pinscope_are_read_when_they_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    run, _ = base(EXPERIMENT)
    rows = recorded_observations(RECORDINGS[EXPERIMENT])
    with Store() as store:
        store.import_runs([(run.model_copy(update={"id": "old", "figures": None}), rows)])
    assert main(["fleet", "outliers"]) == 2
    assert main(["fleet", "outliers", EXPERIMENT]) == 3
    said = capsys.readouterr().err
    assert "reading 1 run that an older PinScope stored" in said
    assert "1 GPU: too few to say which is worse, 8 must be alike" in said
    assert main(["fleet", "outliers"]) == 3


def test_an_exported_run_carries_its_figures(made: SyntheticFleet, tmp_path: Path) -> None:
    file = tmp_path / "one.pinscope"
    assert main(["export", f"{EXPERIMENT}-{made.hosts[0].name}-0", "-o", str(file)]) == 0
    with open_bundle(file) as bundle:
        (run,) = bundle.runs()
    assert run.figures == base(EXPERIMENT)[0].figures


def test_runs_older_than_some_days_are_deleted(made: SyntheticFleet, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "delete"]) == 2
    assert main(["runs", "delete", "--older-than", "1s"]) == 2
    assert "120 runs would be deleted for good; add --yes" in capsys.readouterr().err
    assert main(["runs", "delete", "--older-than", "9999d", "--yes"]) == 0
    assert main(["runs", "delete", "--older-than", "1s", "--yes", "--json"]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if "120" in line]
