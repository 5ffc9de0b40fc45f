"""Two traces of a program: lines are known by their text; the first sentence says which went and what that saved."""

from __future__ import annotations

from typing import Any

import pytest

from pinscope.analysis.comparison import Comparison, Side, compare
from pinscope.experiments.registry import measured_run, verdict_of
from tests.data import synthetic_trace as made

COPY = 'images = images.to("cuda")'


def compared(*sides: list[dict[str, Any]]) -> Comparison:
    """Traces of these rows, a side each."""
    runs = [made.run().model_copy(update={"id": f"trace-{number}"}) for number in range(len(sides))]
    first, second = (measured_run(run, rows) for run, rows in zip(runs, sides, strict=True))
    return compare(Side("A", [first]), Side("B", [second]))


def program(seconds: float, line: int, *sites: dict[str, Any]) -> list[dict[str, Any]]:
    """A program whose other lines stand from that number on."""
    other = made.site(line, source_line="y = y.cuda()", idle_seconds=0.2, call_seconds=0.2, number=99)
    waits = made.place(
        "synchronisation", line + 9, call="cuStreamSynchronize", count=100, call_seconds=0.1, idle_seconds=0.5
    )
    return [made.program(seconds), other, waits, *sites]


def test_the_line_that_went_and_what_that_saved_stand_in_the_first_sentence() -> None:
    fixed = made.site(
        31, "pinned", source_line='images.to("cuda", non_blocking=True)', idle_seconds=0.0, call_seconds=0.01
    )

    traces = compared(program(10.0, 40, made.site(33, source_line=COPY)), program(9.1, 44, fixed))

    assert verdict_of(traces) == (
        f"Gone is train.py `{COPY}`, which cost 1.00 s: the program takes 9.10 s instead of 10.0 s."
    )
    stayed = {cell.labels["text"]: cell.verdict for cell in traces.firsts if cell.labels}
    assert stayed == {"y = y.cuda()": "same", "y.item()": "same"}


def test_a_line_that_moved_is_the_same_line() -> None:
    traces = compared(
        program(10.0, 40, made.site(33, source_line=COPY)), program(10.0, 70, made.site(55, source_line=COPY))
    )
    assert traces.alone == []
    assert verdict_of(traces) == "No line changed by more than a hundredth of the time: 10.0 s instead of 10.0 s."


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (1.0, 0.2, "costs 200 ms instead of 1.00 s: the program takes 9.20 s instead of 10.0 s"),
        (0.2, 1.0, "costs 1.00 s instead of 200 ms: the program takes 10.8 s instead of 10.0 s"),
    ],
)
def test_a_line_that_stayed_is_named_with_what_it_costs_now(before: float, after: float, words: str) -> None:
    one, other = (made.site(33, source_line=COPY, idle_seconds=seconds) for seconds in (before, after))
    traces = compared(program(10.0, 40, one), program(10.0 + after - before, 40, other))
    assert verdict_of(traces) == f"train.py `{COPY}` {words}."
