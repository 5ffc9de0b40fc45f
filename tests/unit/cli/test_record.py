"""``pinscope record``: what it refuses before anything begins, and how it shows what it keeps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pinscope.cli.main import main
from pinscope.store.bundle import read_bundle
from pinscope.store.store import Store
from tests.unit.cli import test_errors


def refused(arguments: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> str:
    """Its one line, after a command that must fail and keep nothing."""
    line = test_errors.refused(["record", *arguments], code, capsys)
    with Store() as store:
        assert store.runs(recordings=False) == []
    return line


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (
            ["--for", "soon"],
            "--for: 'soon' is not a duration; write seconds or a unit, such as 20ms, 90s, 10m, 2h or 1d",
        ),
        (["--for", "0s"], "--for 0 s: it must be more than 0 s"),
        (["--for", "31d"], "at most 30d"),
        (["--for", "30d"], "2,592,000 samples are more than one timeline holds; take --interval"),
        (["--interval", "0"], "Invalid value for '--interval'"),
        (["--pid", "4194304"], "there is no process 4194304"),
        (["--name", " "], "name: a name has 1 to 80 characters"),
        (["-o", "report.html"], "report.html: a bundle's name must end in .pinscope"),
        (["-o", "no/t.pinscope"], "there is no folder no"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_kept(
    arguments: list[str], complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert complaint in refused(arguments, 2, capsys)
    assert list(tmp_path.iterdir()) == []


def test_no_file_is_overwritten_and_none_is_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine, link = tmp_path / "mine.pinscope", tmp_path / "link.pinscope"
    mine.write_text("mine")
    link.symlink_to("nowhere")
    for there in (mine, link):
        assert "is there already" in refused(["--for", "10m", "-o", str(there)], 2, capsys)
    assert mine.read_text() == "mine"


def test_a_probe_that_cannot_be_set_is_not_possible_here(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from pinscope.errors import NotPossible
    from pinscope.live import tracker

    def refuse(self: object) -> None:
        raise NotPossible("following registered memory needs root")

    monkeypatch.setattr(tracker.Tracker, "start", refuse)
    assert refused(["--for", "1s", "--probe"], 3, capsys) == "following registered memory needs root"


def test_people_get_headline_and_next_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "t.pinscope"
    assert main(["record", "--for", "0.4s", "--interval", "0.2", "-o", str(file)]) == 0
    out, errors = capsys.readouterr()
    ((run, rows),) = read_bundle(file)
    assert "Pinned at the end" in out
    assert "live view, done" in out
    assert f"pinscope report {run.id} -o report.html" in out
    assert f"recording run {run.id} for 0.4s" in errors
    assert f"wrote {file}" in errors
    assert run.process is not None
    samples = [row["repeat"] for row in rows if row["kind"] == "host"]
    assert samples in ([0, 1, 2], [0, 1]), "a busy machine misses one"


def test_programs_get_one_document_with_every_sample(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["record", "--for", "0.2s", "--interval", "0.1", "--json", "--name", "night", "--tag", "x"]) == 0
    out, _ = capsys.readouterr()
    document = json.loads(out)
    run = document["run"]
    assert (run["experiment"], run["lab"], run["status"], run["title"]) == ("timeline", "live", "done", "Timeline")
    assert (run["name"], run["tags"], run["figure"]) == ("night", ["x"], run["headline"][0])
    assert run["params"] == {"interval_seconds": 0.1, "for_seconds": 0.2, "probe": False}
    assert len(document["observations"]) == run["observations"]
    with Store() as store:
        assert store.observations(run["id"]) == document["observations"]


def test_a_recording_that_is_full_early_says_how_long_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pinscope.runner.timeline.MOST_ROWS", 3)
    monkeypatch.setattr("pinscope.runner.timeline._check", lambda params, gpus: None)
    assert main(["record", "--for", "20s", "--interval", "0.1"]) == 0
    (said,) = [line for line in capsys.readouterr().err.splitlines() if "ended by itself" in line]
    assert said.endswith(" long and ended by itself: one timeline holds no more rows")
