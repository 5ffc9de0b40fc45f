"""Tables for a terminal: whatever its width, nothing is cut off."""

from __future__ import annotations

import pytest

from pinscope.cli.terminal import INDENT, lay_out
from pinscope.records.run import ExperimentRun
from pinscope.units import format_value
from tests.data.recorded import RECORDED, reading

COLUMNS = ("strategy", "time to pin it all", "rate", "pays")
ROWS = (
    ("huge pages, threads touch, register", "527 ms", "32.6 GB/s", "yes"),
    ("one cudaHostAlloc", "4.67 s", "3.68 GB/s", "not at any of the sizes"),
)
NUMBERS = (1, 2)


def test_where_there_is_room_a_row_is_a_line() -> None:
    table = lay_out(COLUMNS, ROWS, NUMBERS, room=120)
    assert table == lay_out(COLUMNS, ROWS, NUMBERS)
    assert table.headings == ("strategy                             time to pin it all       rate  pays",)
    assert table.body[0] == "huge pages, threads touch, register              527 ms  32.6 GB/s  yes"


def test_headings_are_wrapped_before_cells() -> None:
    table = lay_out(COLUMNS, ROWS, NUMBERS, room=80)
    assert len(table.headings) > 1
    assert len(table.body) == len(ROWS)


def test_lines_fit_and_figures_stay_whole() -> None:
    for room in [30, 40, 52, 60, 72, 80, 100]:
        table = lay_out(COLUMNS, ROWS, NUMBERS, room)
        lines = (*table.headings, *table.body)
        assert max(map(len, lines)) <= room
        for figure in ("527 ms", "32.6 GB/s", "4.67 s", "3.68 GB/s"):
            assert any(figure in line for line in lines)
        assert sorted(" ".join(table.body).split()) == sorted(" ".join(cell for row in ROWS for cell in row).split())


def test_a_row_that_does_not_fit_goes_on_in_an_indented_line() -> None:
    table = lay_out(("memory", "rate", "spread", "repeats"), [("pinned", "55.6 GB/s", "0.015 %", "60")], (1, 2, 3), 28)
    assert table.body == ("pinned  55.6 GB/s  0.015 %", f"{INDENT}     60")
    assert table.headings == ("memory       rate   spread", f"{INDENT}repeats")


def test_only_a_word_longer_than_any_id_is_broken() -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    table = lay_out(("", ""), [("Commit", commit), ("Run", "20261121-035956-f72895")], room=34)
    assert table.headings == ()
    assert "".join(table.body).replace(" ", "") == f"Commit{commit}Run20261121-035956-f72895"
    assert max(map(len, table.body)) <= 34


def test_letters_that_take_two_columns_are_counted_so() -> None:
    table = lay_out(("host", "n"), [("計算機", "1"), ("node", "2")], (1,))
    assert table.body == ("計算機  1", "node    2")


@pytest.mark.xdist_group("readings")
@pytest.mark.parametrize("step", [4, 1])
def test_every_table_of_the_recordings_fits_a_usual_terminal(step: int) -> None:
    for name in [name for name, run in RECORDED.items() if isinstance(run, ExperimentRun)][::step]:
        tables = reading(name).tables
        assert tables
        for table in tables:
            numbers = [place for place, unit in enumerate(table.units) if unit != "text"]
            rows = [
                [format_value(value, unit) for value, unit in zip(row, table.units, strict=True)] for row in table.rows
            ]
            drawn = lay_out(table.columns, rows, numbers, 80)
            assert max(map(len, (*drawn.headings, *drawn.body))) <= 80
