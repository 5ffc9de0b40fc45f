"""Rows as columns say what rows one by one say, and refuse what those refuse."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from pinscope.analysis import columns as module
from pinscope.analysis.cells import labels_of, values_of
from pinscope.analysis.columns import Columns, parsed
from pinscope.errors import BadInput
from pinscope.experiments.registry import EXPERIMENTS, checked_rows, find, measured_run, read_run
from pinscope.records.run import Run
from pinscope.store.recordings import recorded_observations, recorded_runs

pytestmark = pytest.mark.xdist_group("readings")  # recordings are read from their bundles once


class AsStored(list[Mapping[str, Any]]):
    """Rows as a database has them."""

    def lines(self) -> Iterator[bytes]:
        for first in range(0, len(self), 500):
            yield "\n".join(json.dumps(row, separators=(",", ":")) for row in self[first : first + 500]).encode()


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows are many."""
    monkeypatch.setattr(module, "FEW", 0)


def smallest(experiment: str) -> Run:
    """Its recording with the fewest rows."""
    return min((run for run in recorded_runs() if run.experiment == experiment), key=lambda run: run.observations)


def figures(run: Run, rows: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """Labels and values of its cells."""
    cells = measured_run(run, rows).cells
    return [[getattr(cell, name) for name in (*labels_of(type(cell)), *values_of(type(cell)))] for cell in cells]


@pytest.mark.parametrize("run", [smallest(entry.name) for entry in EXPERIMENTS], ids=lambda run: run.experiment)
def test_a_recording_reads_alike_by_rows_and_by_columns(run: Run, few: None) -> None:
    rows = recorded_observations(run.id)[:1500]
    columns = checked_rows(run.experiment, AsStored(rows))
    assert isinstance(columns, Columns) is (run.experiment != "registration")  # it checks several fields at once
    by_row = checked_rows(run.experiment, rows)
    assert [dict(row) for row in columns] == [dict(row) for row in by_row]
    assert read_run(run, columns) == read_run(run, by_row)
    assert figures(run, columns) == figures(run, by_row)


BANDWIDTH = find("bandwidth").kind.Observation


@pytest.fixture
def row() -> dict[str, Any]:
    """Of bandwidth."""
    return recorded_observations(smallest("bandwidth").id)[0]


@pytest.mark.parametrize(
    "change",
    [
        {"bytes": 0},
        {"bytes": 2**64},
        {"bytes": "4096"},
        {"bytes": None},
        {"memory": "paged"},
        {"repeat": 2**63},
        {"wall_seconds": 0.0},
        {"wall_seconds": None},
        {"wall_seconds": float("nan")},
        {"wall_seconds": float("-inf")},
        {"h2d_seconds": float("nan")},
        {"host_nodes": "\ud800"},
        {"host_nodes": "0,1"},
        {"host_nodes": '0","backing":"thp'},
        {"warmup": [True]},
    ],
    ids=str,
)
def test_a_row_that_does_not_fit_among_many_leaves_all_to_be_read_one_by_one(
    change: dict[str, Any], row: dict[str, Any], few: None
) -> None:
    assert parsed(BANDWIDTH, AsStored([row] * 20)) is not None
    assert parsed(BANDWIDTH, AsStored([*[row] * 9, row | change, *[row] * 10])) is None


def test_a_row_that_lacks_what_may_be_unknown_but_must_be_said_leaves_all_to_be_read_one_by_one(
    row: dict[str, Any], few: None
) -> None:
    said = row | {"d2h_seconds": None}
    lacking = {name: value for name, value in said.items() if name != "d2h_seconds"}
    assert parsed(BANDWIDTH, AsStored([said] * 20)) is not None
    assert parsed(BANDWIDTH, AsStored([*[said] * 9, lacking, *[said] * 10])) is None
    with pytest.raises(BadInput, match="d2h_seconds"):
        checked_rows("bandwidth", AsStored([*[said] * 9, lacking, *[said] * 10]))


def test_rows_whose_fields_come_in_another_order_are_left_to_be_read_one_by_one(row: dict[str, Any], few: None) -> None:
    turned = dict(reversed(row.items()))
    assert parsed(BANDWIDTH, AsStored([turned] * 20)) is not None
    assert parsed(BANDWIDTH, AsStored([*[row] * 9, turned, *[row] * 10])) is None


def test_two_times_of_names_as_long_that_change_places_are_left_to_be_read_one_by_one(
    row: dict[str, Any], few: None
) -> None:
    said = row | {"h2d_seconds": 1e-6, "d2h_seconds": 2e-6}
    places = {"h2d_seconds": "d2h_seconds", "d2h_seconds": "h2d_seconds"}
    turned = {places.get(name, name): said[places.get(name, name)] for name in said}
    assert parsed(BANDWIDTH, AsStored([turned] * 20)) is not None
    assert parsed(BANDWIDTH, AsStored([*[said] * 9, turned, *[said] * 10])) is None


def test_a_text_that_is_no_unicode_is_left_to_be_read_one_by_one(row: dict[str, Any], few: None) -> None:
    class Damaged(AsStored):
        def lines(self) -> Iterator[bytes]:
            yield from (text.replace(b'"host_nodes":null', b'"host_nodes":"\xff"', 1) for text in super().lines())

    rows = [row | {"host_nodes": None}] * 20
    assert parsed(BANDWIDTH, AsStored(rows)) is not None
    assert parsed(BANDWIDTH, Damaged(rows)) is None


@pytest.mark.parametrize("name", ["lost_records", "more_samples", "long_sessions", "odd_seconds_"])
def test_a_newer_field_whose_name_is_like_that_of_a_time_is_read(name: str, row: dict[str, Any], few: None) -> None:
    assert parsed(BANDWIDTH, AsStored([row | {name: number} for number in range(20)])) is not None


def test_a_field_that_rows_of_an_older_version_lack_has_its_default(row: dict[str, Any], few: None) -> None:
    optional = [name for name, field in BANDWIDTH.model_fields.items() if not field.is_required()]
    older = [{name: value for name, value in row.items() if name not in optional}] * 20
    columns = parsed(BANDWIDTH, AsStored(older))
    assert optional
    assert columns is not None
    assert [dict(read) for read in columns] == [dict(read) for read in checked_rows("bandwidth", older)]


def test_rows_that_lack_what_their_kind_needs_are_left_to_be_read_one_by_one(few: None) -> None:
    rows = recorded_observations(smallest("overlap").id)[:200]
    kind = find("overlap").kind.Observation
    assert parsed(kind, AsStored(rows)) is not None
    lacking = [row | {"device_seconds": None} if number == 0 else row for number, row in enumerate(rows)]
    assert parsed(kind, AsStored(lacking)) is None


@pytest.mark.parametrize("name", ["COMBINATIONS_READ", "ROWS_READ", "DEVICES_READ"])
def test_more_than_a_reading_rests_on_is_left_to_be_read_one_by_one(
    name: str, row: dict[str, Any], few: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = AsStored([row | {"device": number} for number in range(9)])
    assert parsed(BANDWIDTH, many) is not None
    monkeypatch.setattr(module, name, 8)
    assert parsed(BANDWIDTH, many) is None


def test_rows_that_are_missing_are_not_read_as_columns(row: dict[str, Any], few: None) -> None:
    class Missing(AsStored):
        def __len__(self) -> int:
            return 21

    assert parsed(BANDWIDTH, Missing([row] * 20)) is None
