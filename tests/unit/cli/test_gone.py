"""A run of an experiment that is no more, from a real bundle of version 0.1.0: kept, shown and given away as it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pinscope.cli.main import main
from pinscope.experiments.registry import GONE
from pinscope.store.bundle import read_bundle, write_bundle
from pinscope.store.store import Store

BUNDLE = Path(__file__).parents[2] / "data" / "bundles" / "gone-brim.pinscope"
OWN = "20261122-190000-5e1f00"
"""Id of a user's own such run; the one in the bundle is a recording, of another experiment now."""


@pytest.fixture
def kept(tmp_path: Path) -> str:
    """Such a run in the database, imported by the command."""
    ((run, rows),) = read_bundle(BUNDLE)
    write_bundle(tmp_path / "old.pinscope", [(run.model_copy(update={"id": OWN}), rows)])
    assert main(["import", str(tmp_path / "old.pinscope")]) == 0
    return OWN


def test_it_is_listed_and_shown_with_its_parameters_and_rows_and_what_became_of_its_kind(
    kept: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["runs", "list", "--experiment", "brim", "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert (listed["id"], listed["experiment"]) == (kept, "brim")
    assert main(["runs", "show", kept]) == 0
    shown = capsys.readouterr().out
    assert shown.count(GONE["brim"]) == 1
    assert "memory_share" in shown
    assert sum(line.startswith('{"repeat"') for line in shown.splitlines()) == 307
    assert main(["runs", "show", kept, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["observations"]) == 307


def test_it_is_exported_reported_and_deleted(kept: str, tmp_path: Path) -> None:
    for arguments in ([], ["--anonymous"]):
        file = tmp_path / f"again{len(arguments)}.pinscope"
        assert main(["export", kept, *arguments, "-o", str(file)]) == 0
        ((run, rows),) = read_bundle(file)
        assert (run.experiment, len(rows)) == ("brim", 307)
    for suffix in (".md", ".json"):
        assert main(["report", kept, "-o", str(tmp_path / f"report{suffix}")]) == 0
    assert GONE["brim"].partition(":")[0] in (tmp_path / "report.md").read_text()
    assert main(["runs", "delete", kept, "--yes"]) == 0
    with Store() as store:
        assert store.runs(recordings=False) == []


def test_it_cannot_be_run_and_what_can_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["run", "brim"], ["run", "brim", "--help"]):
        assert main(arguments) == 2
        assert GONE["brim"] in capsys.readouterr().err
