"""What PinScope reads in a recording, as text that a person can compare: one line a figure, row, point or sentence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pinscope.charts.marks import Chart
from pinscope.records.run import Quantity, Reading
from pinscope.report.facts import Document

FOLDER = Path(__file__).parent / "golden"
"""A file a recording, written by ``scripts/write-verdicts``."""
_MOST_POINTS = 60
"""Of a trace with more, so many are written, evenly."""


def golden_text(document: Document) -> str:
    """Verdict, headline, tables, findings and charts of a document, numbers to nine digits."""
    return "".join(f"{line}\n" for line in (*_reading(document.reading), *_charts(document)))


def _reading(reading: Reading) -> Iterator[str]:
    yield f"verdict: {reading.verdict}"
    for figure in reading.headline:
        yield f"headline: {_quantity(figure)}"
    for table in reading.tables:
        yield f"table: {table.title} | {_words(table.columns)}"
        yield from (f"  {_words(row)}" for row in table.rows)
        yield f"  note: {table.note}"
    for finding in reading.findings:
        yield f"finding: {finding.severity} {finding.rule}: {finding.title}"
        yield f"  detail: {finding.detail}"
        yield from (f"  evidence: {_quantity(figure)}" for figure in finding.evidence)
        yield f"  advice: {finding.advice}"
        yield from (f"  code: {line}" for line in (finding.code or "").splitlines())


def _charts(document: Document) -> Iterator[str]:
    for chart in document.charts:
        yield f"chart: {chart.key}: {chart.title}"
        yield f"  caption: {chart.caption}"
        yield f"  alt: {chart.alt}"
        yield from _drawn(chart)


def _drawn(chart: Chart) -> Iterator[str]:
    figure: dict[str, Any] = chart.figure.to_plotly_json()
    for name, axis in sorted(figure["layout"].items()):
        if name.startswith(("xaxis", "yaxis")):
            yield f"  {name}: {_words((axis.get('title', {}).get('text'), axis.get('type'), axis.get('range')))}"
    for note in figure["layout"].get("annotations", ()):
        yield f"  written: {_word(note.get('text'))}"
    for trace in figure["data"]:
        yield f"  drawn: {trace['type']} {_word(trace.get('name'))}"
        points = max((len(trace[axis]) for axis in ("x", "y", "z") if trace.get(axis) is not None), default=0)
        step = max(1, -(-points // _MOST_POINTS))
        for axis in ("x", "y", "z", "error_y", "customdata", "text"):
            values = trace.get(axis)
            values = values.get("array") if isinstance(values, dict) else values
            if values is not None and not isinstance(values, str):
                yield f"    {axis}, {len(values)}: {_words(list(values)[::step])}"


def _quantity(figure: Quantity) -> str:
    return _words((figure.name, figure.value, figure.unit, figure.spread, figure.repeats, figure.reason))


def _words(values: Any) -> str:
    return " | ".join(map(_word, values))


def _word(value: Any) -> str:
    if isinstance(value, float):  # the last digits differ between processors
        return f"{value:.9g}"
    if isinstance(value, str):
        return value.replace("\n", "\\n")
    if hasattr(value, "tolist"):
        return _word(value.tolist())
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_word, value))}]"
    return "–" if value is None else str(value)
