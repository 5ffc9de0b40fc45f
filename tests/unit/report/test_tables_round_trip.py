"""JSON, CSV and Parquet give back the stored rows exactly."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinscope.errors import BadInput
from pinscope.records.run import parse_run
from pinscope.report.facts import Document
from pinscope.report.write import RUN_COLUMNS, render, run_document
from tests.data import synthetic

Row = dict[str, Any]
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")

NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=20)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "repeat": st.integers(0, 2**62),
            "warmup": st.booleans(),
            "bytes": st.integers(-(2**63), 2**63 - 1),
            "device_seconds": st.none() | NUMBERS,
            "memory": st.none() | WORDS,
        }
    ),
    min_size=1,
    max_size=8,
)


def document(rows: list[Row]) -> Document:
    """A document whose rows belong to no experiment: tables do not care what they mean."""
    return replace(synthetic.document("bandwidth"), charts=[], rows=rows)


def read_csv(content: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(content.decode(), newline="")))


def stored(cells: Mapping[str, str]) -> Row:
    """A CSV line as the row it came from."""
    return {
        "repeat": int(cells["repeat"]),
        "warmup": {"true": True, "false": False}[cells["warmup"]],
        "bytes": int(cells["bytes"]),
        "device_seconds": float(cells["device_seconds"]) if cells["device_seconds"] else None,
        "memory": cells["memory"],
    }


@given(ROWS)
@settings(deadline=None, max_examples=60)
def test_csv_parquet_and_json_give_back_every_value(rows: list[Row]) -> None:
    for cells, row in zip(read_csv(render([document(rows)], ".csv")), rows, strict=True):
        text = row["memory"] or ""
        shielded = f"'{text}" if text.startswith(FORMULA_STARTS) else text
        assert stored(cells) == {**row, "memory": shielded}
        assert str(stored(cells)["device_seconds"]) == str(row["device_seconds"])  # also -0.0
    table = pq.read_table(io.BytesIO(render([document(rows)], ".parquet")))
    assert table.drop_columns(list(RUN_COLUMNS)).to_pylist() == rows
    assert json.loads(render([document(rows)], ".json"))["observations"] == rows


def test_no_text_begins_a_formula_in_csv() -> None:
    for start in FORMULA_STARTS:
        row = {"repeat": 0, "warmup": False, f"{start}label": f"{start}cmd()"}
        (cells,) = read_csv(render([document([row])], ".csv"))
        assert cells[f"'{start}label"] == f"'{start}cmd()"


def test_every_row_names_its_run_experiment_and_lab() -> None:
    content = [synthetic.document("bandwidth", lab="host"), synthetic.document("overlap")]

    cells = read_csv(render(content, ".csv"))
    table = pq.read_table(io.BytesIO(render(content, ".parquet"))).to_pylist()

    expected = [(d.run.id, d.run.experiment, d.run.lab) for d in content for _ in d.rows]
    assert [tuple(row[name] for name in RUN_COLUMNS) for row in cells] == expected
    assert [tuple(row[name] for name in RUN_COLUMNS) for row in table] == expected


def test_what_one_run_has_and_another_has_not_stays_empty() -> None:
    content = [document([{"repeat": 0, "a": 1.5}]), document([{"repeat": 1, "b": "x"}])]

    assert [(row["a"], row["b"]) for row in read_csv(render(content, ".csv"))] == [("1.5", ""), ("", "x")]
    table = pq.read_table(io.BytesIO(render(content, ".parquet")))
    assert table.select(["a", "b"]).to_pylist() == [{"a": 1.5, "b": None}, {"a": None, "b": "x"}]


@pytest.mark.parametrize("rows", [[{"x": 1}, {"x": "one"}], [{"x": 2**53 + 1}, {"x": 0.5}]])
def test_parquet_refuses_a_column_that_mixes_kinds_or_would_be_rounded(rows: list[Row]) -> None:
    with pytest.raises(BadInput, match="'x' mixes kinds"):
        render([document(rows)], ".parquet")


def test_parquet_carries_the_runs_in_its_metadata() -> None:
    whole = synthetic.document("bandwidth")

    metadata = pq.read_schema(io.BytesIO(render([whole], ".parquet"))).metadata

    assert [parse_run(run) for run in json.loads(metadata[b"pinscope"])] == [whole.run]


def test_the_json_document_holds_run_conclusions_and_rows() -> None:
    whole = synthetic.document("bandwidth")

    written = run_document(whole)

    assert list(written) == ["format", "run", "observations"]
    assert written["format"] == 1
    assert parse_run(written["run"]) == whole.run.model_copy(update={"verdict": whole.reading.verdict})
    assert written["run"]["question"] == whole.question
    for part in ("headline", "findings", "tables"):
        assert len(written["run"][part]) == len(getattr(whole.reading, part)) > 0
    assert json.loads(json.dumps(written)) == written


def test_several_runs_are_one_json_file() -> None:
    both = [synthetic.document("bandwidth"), synthetic.document("overlap")]

    written = json.loads(render(both, ".json"))

    assert [item["run"]["id"] for item in written["runs"]] == [item.run.id for item in both]
