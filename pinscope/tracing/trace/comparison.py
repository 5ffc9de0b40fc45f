"""Traces of a program against others: the program as a whole, and its lines, known by their text, not their number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Annotated

from pinscope.analysis.cells import Label, Value
from pinscope.analysis.comparison import Comparison, exact
from pinscope.analysis.read_rows import Row, grouped
from pinscope.analysis.statistics import Summary, summarize
from pinscope.tracing.sites import WORTH, line_name
from pinscope.tracing.trace.costs import lines_in
from pinscope.tracing.trace.reading import Traced
from pinscope.units import format_seconds

MOST_LETTERS = 60
"""Of the text of a line in a sentence."""


@dataclass(frozen=True)
class ProgramCell:
    """The program: from its first copy or kernel to the last, and what it copied from or to pageable memory."""

    seconds: Annotated[Summary, Value("first copy or kernel to the last", "seconds", "less")]
    pageable_bytes: Annotated[Summary, Value("large copies of pageable memory", "bytes", "less")]


@dataclass(frozen=True)
class LineCell:
    """All that a text does in a file, on however many lines."""

    file: Annotated[str, Label("file")]
    text: Annotated[str, Label("line")]
    seconds: Annotated[Summary, Value("cost", "seconds", "less")]
    idle_seconds: Annotated[float | None, Value("GPU idle", "seconds", "less")]
    call_seconds: Annotated[float | None, Value("CUDA calls", "seconds", "less")]


def cells_of(traced: Traced | None) -> Iterator[ProgramCell | LineCell]:
    """The program and its lines; none while it runs."""
    if traced is None:
        return
    seen = traced.seen
    yield ProgramCell(summarize([seen.seconds]), exact(float(sum(site.row["bytes"] for site in seen.pageable))))
    for (file, text), lines in grouped(lines_in(seen), lambda line: _name(line.row)).items():
        yield LineCell(
            file,
            text,
            summarize([sum(line.seconds for line in lines)]),
            sum(line.parts.get("GPU idle", 0.0) for line in lines) or None,
            sum(line.parts.get("CUDA calls", 0.0) for line in lines) or None,
        )


def _name(row: Row) -> tuple[str, str]:
    """A file without its folder, and the text of a line; its number where there is no text."""
    text = " ".join((row["source_line"] or "").split())
    return PurePath(row["file"] or "").name, text or line_name(row)


def verdict(comparison: Comparison) -> str:
    """The line that went, or that changed most, and what the program takes without it.

    A program that was traced once a side is as long as that run was: what a line costs counts from a hundredth of it
    on, of what both have that much more or less.
    """
    whole = next(
        (cell for cell in comparison.cells if cell.kind == ProgramCell.__name__ and cell.figure == "seconds"), None
    )
    if whole is None:
        return "Nothing was recorded that could be compared."
    seconds = f"{format_seconds(whole.b.value)} instead of {format_seconds(whole.a.value)}"
    changes = sorted(_changes(comparison), key=lambda change: -abs(change[0]))
    least = WORTH * whole.a.value
    saves = whole.b.value <= whole.a.value
    fitting = [words for change, words in changes if abs(change) >= least and (change < 0) == saves]
    if not fitting:
        return f"No line changed by more than a hundredth of the time: {seconds}."
    return f"{fitting[0]}: the program takes {seconds}."


def _changes(comparison: Comparison) -> Iterator[tuple[float, str]]:
    """By how many seconds a line costs more, and what became of it."""
    for lone in comparison.alone:
        if "text" in lone.labels:
            cost, word = format_seconds(lone.value), "Gone" if lone.first else "New"
            yield (-lone.value if lone.first else lone.value), f"{word} is {_line(lone.labels)}, which cost {cost}"
    for cell in comparison.firsts:
        if "text" in cell.labels:
            costs = f"costs {format_seconds(cell.b.value)} instead of {format_seconds(cell.a.value)}"
            yield cell.b.value - cell.a.value, f"{_line(cell.labels)} {costs}"


def _line(labels: Mapping[str, str]) -> str:
    text = labels["text"]
    return f"{labels['file']} `{text if len(text) <= MOST_LETTERS else text[: MOST_LETTERS - 1] + '…'}`"
