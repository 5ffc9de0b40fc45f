"""What a trace says of copies that need not be, of loaders' switches, and of lines in libraries."""

from __future__ import annotations

from typing import Any

import pytest

from pinscope.experiments.registry import read_run
from pinscope.records.run import Finding, Reading
from tests.data.synthetic_trace import MIB, program, row, run, site

BACK = {"source": "device", "target": "pageable", "direction": "d2h"}
TRAINER = "/opt/site-packages/transformers/trainer.py"


def read(*rows: dict[str, Any]) -> Reading:
    return read_run(run(), rows)


def told(reading: Reading, rule: str) -> list[Finding]:
    return [finding for finding in reading.findings if finding.rule == rule]


def again(number: int, size: int = 900 * MIB, **values: Any) -> dict[str, Any]:
    return row("sent_again", number=number, count=90, bytes=size, **{"sampled_count": 50, **values})


def values(finding: Finding) -> list[Any]:
    return [figure.value for figure in finding.evidence]


def test_a_line_that_sends_the_same_again_is_named_with_what_that_takes_at_most() -> None:
    reading = read(program(), site(33, source="pinned"), again(33))
    (finding,) = told(reading, "data-sent-again")
    assert values(finding) == [90, 900 * MIB, 50, pytest.approx(0.9)]
    assert finding.severity == "note"  # the weights may not fit on the GPU
    lines = {row[0]: row for row in next(table for table in reading.tables if table.title.startswith("Lines")).rows}
    assert "keep it on the GPU" in lines["train.py:33"]
    assert lines["train.py:33"][1] is None  # at most is not what is known to be saved


def test_a_few_bytes_that_cost_nothing_are_not_named() -> None:
    small = again(33, size=MIB)
    assert not told(read(program(1000.0), site(33), small), "data-sent-again")


def test_a_round_trip_is_named_once_with_both_lines() -> None:
    back = row("brought_back", number=34, count=90, bytes=900 * MIB, sampled_count=50, sent_by=33)
    reading = read(program(), site(33), site(34, **BACK, idle_seconds=4.0), again(33), back)
    (finding,) = told(reading, "data-brought-back")
    assert values(finding) == [90, 900 * MIB, 50, pytest.approx(3.6)]
    assert {"train.py:33", "train.py:34"} <= set(finding.title.split())
    assert finding.severity == "note"  # something on the GPU may write to it
    assert not told(reading, "data-sent-again")


def test_under_accelerate_the_advice_is_what_accelerate_has_for_it() -> None:
    hooks = {"library_file": "/opt/site-packages/accelerate/utils/modeling.py", "library_line": 353}
    (finding,) = told(read(program(), site(33, **hooks), again(33)), "data-sent-again")
    assert finding.title.startswith("train.py:33 → modeling.py:353 ")
    assert "device_map" in finding.advice


def loader(number: int, line: int = 12, **values: Any) -> dict[str, Any]:
    given = {"pins_batches": False, "workers": 4, "file": "/srv/train.py", "count": 100}
    return row("loader", number=number, line=line, **{**given, **values})


def received(line: int, **values: Any) -> dict[str, Any]:
    """Copies of what the workers of a DataLoader send."""
    return site(line, **{"received_count": 100, **values})


SWITCH = "pin_memory=True at train.py:12"


def said(reading: Reading) -> str:
    return " ".join([reading.verdict or "", *(f"{each.detail} {each.advice}" for each in reading.findings)])


def test_the_switch_of_the_loader_is_the_advice_where_it_saves_something() -> None:
    reading = read(program(), received(33), loader(33))
    assert reading.verdict is not None
    assert reading.verdict.startswith(f"Set {SWITCH} for train.py:33: saves about ")
    assert SWITCH in told(reading, "pageable-copies")[0].advice


def test_under_trainer_the_switch_is_its_own() -> None:
    library = {"library_file": TRAINER, "library_line": 700}
    reading = read(program(), received(33, **library), loader(33, **library))
    (finding,) = told(reading, "pageable-copies")
    assert "dataloader_pin_memory=True" in finding.advice
    assert reading.verdict is not None
    assert reading.verdict.startswith(
        "Set dataloader_pin_memory=True (TrainingArguments) for train.py:33 → trainer.py:7"
    )


def test_without_workers_the_loop_itself_would_pin_so_that_no_saving_is_promised() -> None:
    reading = read(program(), site(33), loader(33, workers=0))
    assert reading.verdict is not None
    assert reading.verdict.startswith("Pin what train.py:33 copies")
    (finding,) = told(reading, "pageable-copies")
    assert f"num_workers and {SWITCH}" in finding.detail
    assert "pin_memory=True at" not in finding.title


def test_no_switch_is_named_where_it_would_not_help() -> None:
    for copies, made in [
        (received(33), loader(34)), (received(33), loader(33, pins_batches=True)),
        (received(33), loader(33, count=40)), (received(33, idle_seconds=0.0, call_seconds=0.0), loader(33)),
        (site(33), loader(33)),
    ]:  # fmt: skip
        assert "pin_memory=True at" not in said(read(program(), copies, made))


def test_a_line_that_is_known_by_bytes_and_order_is_said_to_be_about_there() -> None:
    (finding,) = told(read(program(), site(33, by_order_count=100)), "pageable-copies")
    assert finding.title.startswith("train.py:33 (about) ")
