"""Cells are made from rows as their class declares, and all that is shown of them follows from the declaration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import pytest

from pinscope.analysis.cells import (
    Label,
    Value,
    best_of,
    cell_rows,
    cells,
    count,
    every_combination,
    key,
    labels_of,
    mean,
    values_of,
)
from pinscope.analysis.statistics import Summary

MIB = 2**20


@dataclass(frozen=True)
class Timed:
    bytes: Annotated[int, Label("size", "bytes")]
    way: Annotated[str, Label("way", words=str.upper)]
    wall_seconds: Annotated[Summary, Value("time", "seconds", "less")]
    cpu_seconds: Annotated[float | None, Value("processor time", "seconds", "less", make=mean)]
    wrong_count: Annotated[int, Value("wrong", "count", "less", make=count, row="wrong_words")]

    @property
    def bytes_per_second(self) -> Annotated[float, Value("rate", "bytes/second", "more")]:
        return self.bytes / self.wall_seconds.median


def rows(way: str, size: int, seconds: Sequence[float], **more: Any) -> list[dict[str, Any]]:
    row = {"way": way, "bytes": size, "warmup": False, "cpu_seconds": 0.5, "wrong_words": 0} | more
    return [{**row, "wall_seconds": value} for value in seconds]


def test_rows_of_one_combination_become_one_cell_and_warm_ups_none() -> None:
    made = cells(Timed, [*rows("plain", MIB, [1, 2, 3]), *rows("plain", MIB, [9], warmup=True), *rows("pin", MIB, [4])])
    assert [(cell.way, cell.wall_seconds.median, cell.wall_seconds.count) for cell in made] == [
        ("plain", 2.0, 3),
        ("pin", 4.0, 1),
    ]
    assert made[0].bytes_per_second == MIB / 2


def test_a_value_that_no_row_has_is_unknown_and_not_zero() -> None:
    first, second = cells(Timed, [*rows("plain", 8, [1], cpu_seconds=None), *rows("pin", 8, [1, 1], wrong_words=3)])
    assert (first.cpu_seconds, second.cpu_seconds, second.wrong_count) == (None, 0.5, 2)


def test_labels_values_and_what_follows_from_them_are_declared_once() -> None:
    assert list(labels_of(Timed)) == ["bytes", "way"]
    assert {name: (value.unit, value.better) for name, value in values_of(Timed).items()} == {
        "wall_seconds": ("seconds", "less"),
        "cpu_seconds": ("seconds", "less"),
        "wrong_count": ("count", "less"),
        "bytes_per_second": ("bytes/second", "more"),
    }


def test_the_table_of_all_cells_comes_from_the_declaration() -> None:
    table = every_combination(cells(Timed, rows("plain", MIB, [1, 2, 3])), note="Medians.")
    assert dict(zip(table.columns, table.rows[0], strict=True)) == {
        "size": MIB,
        "way": "PLAIN",
        "time": 2.0,
        "processor time": 0.5,
        "wrong": 0,
        "rate": MIB / 2,
        "±": None,
        "repeats": 3,
    }
    assert table.units == ("bytes", "text", "seconds", "seconds", "count", "bytes/second", "share", "count")


def test_a_frame_has_units_in_its_column_names_and_the_ends_of_intervals() -> None:
    (made,) = cell_rows(cells(Timed, rows("plain", MIB, range(1, 12))))
    assert list(made) == [
        "bytes", "way", "wall_seconds", "wall_seconds.low", "wall_seconds.high", "wall_seconds.repeats", "cpu_seconds",
        "wrong_count", "bytes_per_second",
    ]  # fmt: skip
    assert made["wall_seconds.low"] < made["wall_seconds"] == 6.0 < made["wall_seconds.high"]


def test_a_figure_has_a_key_that_stays_the_same_whatever_the_size() -> None:
    (cell,) = cells(Timed, rows("plain", MIB, [1]))
    assert key(cell, "rate") == "plain.rate"


@pytest.mark.parametrize(
    ("seconds", "best"),
    [({"a": 1.0, "b": 1.05, "c": 1.3}, ["b", "a"]), ({"a": 1.0, "b": 1.2, "c": 3.0}, ["a"]), ({}, [])],
    ids=["as good, and thriftier", "clearly fastest", "none"],
)
def test_of_ways_that_are_as_good_the_thriftiest_comes_first(seconds: dict[str, float], best: list[str]) -> None:
    cost = {"a": 2.0, "b": 1.0, "c": 0.1}
    timed = [row for way, value in seconds.items() for row in rows(way, MIB, [value] * 8, cpu_seconds=cost[way])]
    found = best_of(cells(Timed, timed), lambda cell: cell.wall_seconds, lambda cell: cell.cpu_seconds or 0.0)
    assert [cell.way for cell in found] == best
