"""Traces of a program against others: the program as a whole, and its lines, known by their text, not their number."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import Annotated

from pinscope.analysis.cells import Label, Value
from pinscope.analysis.comparison import Comparison, LoneCell, exact
from pinscope.analysis.read_rows import Row, grouped
from pinscope.analysis.statistics import Summary, summarize
from pinscope.text import shortened
from pinscope.tracing.sites import WORTH, line_name
from pinscope.tracing.trace.answer import lines_in
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
    """The lines that went, or the one that changed most, and what that saved.

    A program that was traced once a side is as long as that run was: what a line costs counts from a hundredth of it
    on, of what both have that much more or less. Of several traces a side, what these do not tell apart is the same.
    """
    whole = comparison.whole
    if whole is None:
        return "Nothing was recorded that could be compared."
    a, b = whole.a.value, whole.b.value
    seconds = f"{format_seconds(b)} instead of {format_seconds(a)}"
    if whole.verdict == "same" and a != b:
        return f"The traces do not tell the program's times apart: {seconds}."
    lines = [(cost, line) for cost, line in comparison.causes(whole) if abs(cost) >= WORTH * a]
    if not lines:
        return f"No line changed by more than a hundredth of the time: {seconds}."
    first = lines[0][1]
    words = f"{first.labels['file']} `{shortened(first.labels['text'], MOST_LETTERS)}`"
    if isinstance(first, LoneCell):
        alike = [cost for cost, line in lines if isinstance(line, LoneCell)]
        verb, more = ("are", f" (and {len(alike) - 1} more)") if len(alike) > 1 else ("is", "")
        change, total = "New" if first.is_new else "Gone", format_seconds(abs(sum(alike)))
        words = f"{change} {verb} {words}{more}, which cost {total}"
    else:
        words = f"{words} costs {format_seconds(first.b.value)} instead of {format_seconds(first.a.value)}"
    return f"{words}: the program takes {seconds}, {format_seconds(abs(a - b))} {'less' if b <= a else 'more'}."
