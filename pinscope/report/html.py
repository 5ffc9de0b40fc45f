"""A run as one HTML file that needs nothing else: no network, no fonts, no other file.

Plotly and the raw data are compressed inside the page (2 MB instead of 6) and unpacked by the browser's own
DecompressionStream (Chrome 80, Firefox 113, Safari 16.4 and later). A content security policy forbids the page
every connection.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup
from plotly.io.json import to_json_plotly
from plotly.offline import get_plotlyjs

import pinscope
from pinscope.analysis.outliers import Fleet
from pinscope.charts.comparison import draw
from pinscope.charts.fleet import draw as draw_fleet
from pinscope.charts.marks import Chart
from pinscope.charts.theme import SCHEMES, SchemeName, template
from pinscope.experiments.registry import verdict_of
from pinscope.records.run import Table
from pinscope.report import comparison, facts, fleet
from pinscope.report.comparison import Compared
from pinscope.report.facts import Document, environment_facts
from pinscope.report.write import json_pieces
from pinscope.text import escaped, one_line, visible
from pinscope.units import format_value

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; font-src data:"
)


def render_html(documents: Sequence[Document], with_rows: bool = True) -> Iterator[bytes]:
    """The page, UTF-8, a piece at a time; several runs stand one after the other.

    Args:
        with_rows: with all observations to take out.
    """
    return _page(
        "report.html.jinja",
        with_rows=with_rows,
        documents=documents,
        environment_facts=environment_facts,
        raw_data=lambda document: _packed(json_pieces([document])),
    )


def comparison_html(compared: Compared) -> bytes:
    """The page of comparisons, one after the other."""
    page = _page(
        "comparison.html.jinja",
        compared=compared,
        report=comparison,
        verdict_of=verdict_of,
        draw=draw,
        raw_data=_packed([comparison.render_json(compared)]),
    )
    return b"".join(page)


def fleet_html(found: Fleet, label: str | None = None) -> bytes:
    """The page of a fleet; ``label``: by which it is mapped."""
    page = _page(
        "fleet.html.jinja",
        fleet=found,
        verdict=fleet.verdict(found),
        tables=[fleet.outlier_table(found, label), fleet.spread_table(found), fleet.gpu_table(found, label)],
        charts=draw_fleet(found, label),
        raw_data=_packed([fleet.render(found, ".json")]),
    )
    return b"".join(page)


def _page(name: str, **content: Any) -> Iterator[bytes]:
    page = _template(name).generate(
        facts=facts,
        policy=CONTENT_SECURITY_POLICY,
        version=pinscope.__version__,
        plotly=_packed_plotly(),
        templates=_script_json({scheme: template(scheme).to_plotly_json() for scheme in _PAGE_SCHEMES}),
        figure=_figure,
        **content,
    )
    return map(str.encode, page)


@cache
def _template(name: str) -> Template:
    """What reports are made from; it is compiled once, which takes as long as to write a small report."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_visible,
    )
    environment.filters["value"] = format_value
    return environment.get_template(name)


def _visible(value: Any) -> Any:
    """What the page writes, our own markup apart."""
    return visible(value) if type(value) is str else value


_PAGE_SCHEMES: tuple[SchemeName, ...] = tuple(name for name in SCHEMES if name != "neutral")


def _figure(chart: Chart) -> Markup:
    """A figure as JSON without its template: the page lays its own, light or dark, over it."""
    figure: dict[str, Any] = chart.figure.to_plotly_json()
    layout = {name: value for name, value in figure["layout"].items() if name != "template"}
    return _script_json({"data": figure["data"], "layout": layout})


def _script_json(value: Mapping[str, Any]) -> Markup:
    """JSON that may stand in a script element: no ``<`` can end it or open a comment."""
    return Markup(escaped(cast("str", to_json_plotly(value))).replace("<", "\\u003c"))  # noqa: S704 - escaped right here


def _packed(content: Iterable[bytes]) -> Iterator[Markup]:
    """Base64 of the gzip of content, both in pieces; equal contents give equal text."""
    packer, packed = zlib.compressobj(wbits=zlib.MAX_WBITS | 16), b""  # with gzip's header, which names no time
    for piece in content:
        packed += packer.compress(piece)
        if whole := len(packed) // 3 * 3:  # three bytes are four letters
            yield Markup(base64.b64encode(packed[:whole]).decode())  # noqa: S704 - letters and digits
            packed = packed[whole:]
    yield Markup(base64.b64encode(packed + packer.flush()).decode())  # noqa: S704


@cache
def _packed_plotly() -> str:
    return "".join(_packed([get_plotlyjs().encode()]))


_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~$&])")


def plain(text: str) -> str:
    """Text that Markdown shows as it stands, on one line: nothing of it becomes markup or HTML."""
    return _SPECIAL.sub(r"\\\1", one_line(text))


def render_markdown(documents: Sequence[Document]) -> bytes:
    """One section per run; several begin with a table of their verdicts."""
    lines = [line for document in documents for line in _run(document)]
    if len(documents) > 1:
        rows = [(f"{document.title}: {facts.place(document.run)}", facts.verdict(document)) for document in documents]
        lines[:0] = ["# Verdicts\n", _lines(("Run", "Verdict"), [":---", ":---"], rows)]
    return "\n".join(lines).encode()


def comparison_markdown(compared: Compared) -> bytes:
    """A section for each comparison."""
    lines = list[str]()
    for of in compared.comparisons:
        lines.append(f"# {plain(f'{of.experiment}: {of.called[1]} against {of.called[0]}')}\n")
        lines.append(f"**{plain(verdict_of(of))}**\n")
        for part in (*comparison.machines(of), *comparison.cells(of)):
            if isinstance(part, str):
                lines += [f"{plain(part)}\n"] if part else []
            elif part.rows:
                lines += _table(part, "##")
    return "\n".join([*lines, *(f"{plain(words)}\n" for words in compared.left_out)]).encode()


def _run(document: Document) -> Iterator[str]:
    run, reading = document.run, document.reading
    yield f"# {plain(document.title)}: {plain(facts.place(run))}\n"
    yield f"{plain(document.question)}\n"
    for caveat in facts.caveats(run):
        yield f"> {plain(caveat)}\n"
    yield "## Answer\n"
    if reading.verdict:
        yield f"**{plain(reading.verdict)}**\n"
    for table in facts.answer_tables(reading):
        yield from _table(table)
    if reading.headline:
        yield from _pairs(
            ("Quantity", "Value"), [(quantity.name, facts.quantity_text(quantity)) for quantity in reading.headline]
        )
    elif not reading.verdict:
        yield "Nothing was measured that an answer could rest on.\n"
    yield from _findings(document)
    if facts.further_tables(reading):
        yield "## Tables\n"
        for table in facts.further_tables(reading):
            yield from _table(table)
    yield "## Run\n"
    yield from _pairs(("", ""), facts.run_facts(run))
    yield "## Parameters\n"
    yield from _pairs(("", ""), facts.parameter_facts(document))
    yield "## Machine\n"
    yield from _pairs(("", ""), environment_facts(run.environment))
    yield f"## Method\n\n{plain(document.method)}\n"
    if notes := facts.further_notes(run):
        yield "## Notes\n"
        yield "\n".join(f"- {plain(note)}" for note in notes) + "\n"
    if document.charts:
        yield "Charts are in the HTML report of this run, every reading in its JSON, CSV and Parquet files.\n"


def _findings(document: Document) -> Iterator[str]:
    findings = facts.by_severity(document.reading.findings)
    if not findings:
        return
    yield "## Findings\n"
    for finding in findings:
        yield f"### {facts.SEVERITY_WORDS[finding.severity]}: {plain(finding.title)}\n"
        yield f"{plain(finding.detail)}\n"
        if finding.evidence:
            yield "\n".join(f"- {plain(q.name)}: {plain(facts.quantity_text(q))}" for q in finding.evidence) + "\n"
        yield f"**What to do:** {plain(finding.advice)}\n"
        if finding.code:
            yield f"```python\n{finding.code.rstrip()}\n```\n"


def _table(table: Table, level: str = "###") -> Iterator[str]:
    yield f"{level} {plain(table.title)}\n"
    columns, rows, numbers = facts.barred(table)
    rules = ["---:" if column in numbers else ":---" for column in range(len(columns))]
    yield _lines(columns, rules, rows)
    if table.note:
        yield f"{plain(table.note)}\n"


def _pairs(heads: Sequence[str], pairs: Sequence[tuple[str, str]]) -> Iterator[str]:
    yield _lines(heads, [":---", ":---"], pairs)


def _lines(heads: Sequence[str], rules: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; ends with an empty line."""
    body = [[plain(cell) for cell in row] for row in rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in ([plain(h) for h in heads], rules, *body)) + "\n"
