"""Rows that are no observations are refused in one line, whatever made them."""

from __future__ import annotations

from typing import Any

import pytest

from pinscope.errors import BadInput, UnknownName
from pinscope.experiments.registry import (
    EXPERIMENTS,
    KEPT,
    checked_rows,
    draw_run,
    find,
    find_reader,
    method,
    read_run,
    readers,
)
from pinscope.store.recordings import recorded_observations, recorded_runs
from tests.data import synthetic, synthetic_timeline


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"device_seconds": None}, "a pass without device_seconds"),
        ({"pinned_copy_seconds": None}, "a pass without pinned_copy_seconds"),
        ({"direction": "sideways"}, "field 'direction' does not fit"),
    ],
)
def test_rows_that_lack_what_a_reading_needs_are_refused(changes: dict[str, Any], complaint: str) -> None:
    run = synthetic.run("overlap")
    rows = [{**row, **changes} for row in synthetic.overlap_rows() if row["kind"] == "pass"]
    for use in (read_run, draw_run):
        with pytest.raises(BadInput, match=f"these are not observations of overlap: {complaint}"):
            use(run, rows)


def test_a_run_of_an_experiment_from_the_future_is_named() -> None:
    with pytest.raises(UnknownName, match="no experiment 'teleport'"):
        read_run(synthetic.run("bandwidth").model_copy(update={"experiment": "teleport"}), [])


def test_a_run_that_ended_early_has_a_verdict_only_where_one_was_stored() -> None:
    rows, run = checked_rows("overlap", synthetic.overlap_rows(repeats=2, chunks=8)), synthetic.run("overlap")
    verdict = read_run(run, rows).verdict
    assert verdict
    for status in ("cancelled", "failed", "interrupted"):
        early = run.model_copy(update={"status": status})
        assert read_run(early, rows).verdict is None
        assert read_run(early.model_copy(update={"verdict": "as stored"}), rows).verdict == verdict


def test_what_is_kept_is_read_but_cannot_be_run() -> None:
    kept = {reader.name for reader in KEPT}
    runnable = {entry.name for entry in EXPERIMENTS}
    assert kept == {"timeline", "trace"}
    assert not kept & runnable
    assert {reader.name for reader in readers()} == kept | runnable
    assert find_reader("timeline").kind.title == "Timeline"
    for name, command in (("timeline", "record"), ("trace", "trace")):
        with pytest.raises(UnknownName, match=f"{name} is no experiment that can be run: `pinscope {command}` keeps"):
            find(name)


def test_every_kind_of_run_has_words_for_a_report_and_says_and_draws_nothing_of_no_rows() -> None:
    for reader in readers():
        kind = reader.kind
        assert kind.name == reader.name
        assert all((kind.title, kind.question.endswith("?"), method(kind)))
        assert kind.Params.model_json_schema()["properties"]
        run = synthetic.run(kind.name)
        assert list(reader.charts(run, [])) == []
        reading = reader.read(run, [])
        assert (reading.verdict, reading.headline, reading.tables, reading.findings) == (None, (), (), ())


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"available_bytes": None}, "field 'available_bytes' does not fit"),
        ({"pinned_bytes": -1}, "field 'pinned_bytes' does not fit"),
        ({"taken_at": "yesterday"}, "field 'taken_at' does not fit"),
        ({"kind": "rumour"}, "field 'kind' does not fit"),
    ],
)
def test_rows_that_no_timeline_has_are_refused(changes: dict[str, Any], complaint: str) -> None:
    rows = [{**row, **changes} for row in synthetic_timeline.growing(samples=3) if row["kind"] == "host"]
    for use in (read_run, draw_run):
        with pytest.raises(BadInput, match=f"these are not observations of timeline: {complaint}"):
            use(synthetic_timeline.run(), rows)


def test_a_fault_in_a_reading_is_not_laid_at_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def faulty(*_: object) -> None:
        raise KeyError("a name that nobody wrote")

    monkeypatch.setattr("pinscope.experiments.bandwidth.reading.of", faulty)
    with pytest.raises(KeyError):
        read_run(synthetic.run("bandwidth"), [])


def test_rows_of_a_copy_that_took_no_time_are_refused() -> None:
    runs = [run for run in recorded_runs() if run.experiment == "registration"]
    run, rows = next((run, [copy]) for run in runs for copy in recorded_observations(run.id) if copy["step"] == "copy")
    with pytest.raises(BadInput, match="copies that ended before they had begun"):
        read_run(run, [{**row, "ended_seconds": row["begun_seconds"]} for row in rows])
