"""The command ``runs trend``: a figure over the stored runs of a machine."""

from __future__ import annotations

from typing import Annotated

from pinscope.analysis.trend import series_words, step_words, verdict
from pinscope.cli.main import AsJson, argument, option
from pinscope.cli.terminal import complain, print_json, print_line, print_prose, terminal_columns
from pinscope.report.trend import runs_like, trend_document, trend_of
from pinscope.store.store import Store
from pinscope.units import format_count, format_heights, format_value

UNKNOWN_COLUMNS = 78
"""Runs in the small chart where nobody says how wide it may be; the newest ones."""


def trend(
    experiment: Annotated[str, argument("EXPERIMENT", "Whose runs.")],
    figure: Annotated[str | None, argument("[FIGURE]", "Its key, such as pinned.h2d.rate; default: the first.")] = None,
    like: Annotated[
        str | None, option("ID", "Runs like this one; default: like the newest, on this machine if it has runs.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show a figure over all stored runs of a machine: where it steps, and what changed in the machine there.

    Runs are alike where machine, lab and parameters are the same. A step is named where it cannot be chance; that takes
    9 runs at least."""
    with Store() as store:
        runs, others = runs_like(store, experiment, like)
        course = trend_of(store, runs, figure)
    if as_json:
        print_json(trend_document(course, others))
        return
    values, columns = course.values, terminal_columns() or UNKNOWN_COLUMNS
    print_line(f"{course.figure.name} · {series_words(course.runs)}")
    low, high = min(values), max(values)
    print_line(format_heights([1 + 7 * (value - low) / ((high - low) or 1.0) for value in values[-columns:]]))
    places = {step.place for step in course.steps}
    if marks := "".join("▲" if place in places else " " for place in range(len(values)))[-columns:].rstrip():
        print_line(marks)
    ends = " to ".join(format_value(value, course.figure.unit) for value in (low, high))
    print_line(f"{format_count(len(values), 'run')}, {ends}")
    for step in course.steps:
        print_prose(f"▲ {step_words(step, course.figure.unit)}", hanging="  ")
    if not course.steps:
        print_prose(verdict(course))
    if others:
        complain(f"{others} further runs of {experiment} have another machine, lab or parameters: --like ID")
    if course.left_out:
        complain(course.left_out)
