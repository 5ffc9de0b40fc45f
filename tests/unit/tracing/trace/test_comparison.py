"""Two traces of a program: lines are known by their text; the first sentence says which went and what that saved."""

from __future__ import annotations

from typing import Any

import pytest

from pinscope.analysis.comparison import Comparison, Side, compare
from pinscope.experiments.registry import measured_run, verdict_of
from tests.data import synthetic_trace as made

COPY = 'images = images.to("cuda")'


Rows = list[dict[str, Any]]


def compared(before: Rows | list[Rows], after: Rows | list[Rows]) -> Comparison:
    """Traces of these rows, one or several a side."""
    sides = [side if isinstance(side[0], list) else [side] for side in (before, after)]
    runs = [made.run().model_copy(update={"id": f"trace-{number}"}) for number in range(9)]
    return compare(
        *(Side(name, [measured_run(runs.pop(), rows) for rows in side]) for name, side in zip("AB", sides, strict=True))
    )


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
        f"Gone is train.py `{COPY}`, which cost 1.00 s: the program takes 9.10 s instead of 10.0 s, 900 ms less."
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
        (1.0, 0.2, "costs 200 ms instead of 1.00 s: the program takes 9.20 s instead of 10.0 s, 800 ms less"),
        (0.2, 1.0, "costs 1.00 s instead of 200 ms: the program takes 10.8 s instead of 10.0 s, 800 ms more"),
    ],
)
def test_a_line_that_stayed_is_named_with_what_it_costs_now(before: float, after: float, words: str) -> None:
    one, other = (made.site(33, source_line=COPY, idle_seconds=seconds) for seconds in (before, after))
    traces = compared(program(10.0, 40, one), program(10.0 + after - before, 40, other))
    assert verdict_of(traces) == f"train.py `{COPY}` {words}."


def test_several_lines_that_went_are_counted_together() -> None:
    gone = [made.site(number, source_line=f"x{number}.cuda()", idle_seconds=0.4, number=number) for number in (33, 34)]
    traces = compared(program(10.0, 40, *gone), program(9.2, 40))
    assert verdict_of(traces) == (
        "Gone are train.py `x33.cuda()` (and 1 more), which cost 800 ms: "
        "the program takes 9.20 s instead of 10.0 s, 800 ms less."
    )


def test_of_several_traces_a_side_what_they_do_not_tell_apart_is_not_named() -> None:
    def traces(*seconds: float) -> list[Rows]:
        return [program(10 + took, 40, made.site(33, source_line=COPY, idle_seconds=took)) for took in seconds]

    assert verdict_of(compared(traces(1.0, 1.5, 2.0), traces(1.1, 1.4, 1.6))) == (
        "The traces do not tell the program's times apart: 11.4 s instead of 11.5 s."
    )
    assert "costs 100 ms instead of" in verdict_of(compared(traces(1.0, 1.01, 1.02), traces(0.1, 0.1, 0.1)))
