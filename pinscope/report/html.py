"""A run as one HTML file that needs nothing else: no network, no fonts, no other file.

Plotly and the raw data are compressed inside the page (2 MB instead of 6) and unpacked by the browser's own
DecompressionStream (Chrome 80, Firefox 113, Safari 16.4 and later). A content security policy forbids the page
every connection.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, cast

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
from pinscope.report import comparison, facts, fleet
from pinscope.report.comparison import Compared
from pinscope.report.facts import Document, environment_facts
from pinscope.report.write import json_pieces
from pinscope.text import escaped, visible
from pinscope.units import format_precision, format_value

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; font-src data:"
)


def render_html(documents: Sequence[Document]) -> Iterator[bytes]:
    """The page, UTF-8, a piece at a time; several runs stand one after the other."""
    return _page(
        "report.html.jinja",
        documents=documents,
        environment_facts=environment_facts,
        raw_data=lambda document: _packed(json_pieces([document])),
    )


def comparison_html(compared: Compared) -> bytes:
    """The page of comparisons, one after the other."""
    answers = [
        _Answer(
            f"{each.experiment}: {' against '.join(reversed(each.called))}",
            verdict_of(each),
            (*comparison.machines(each), *draw(each), *comparison.cells(each)),
        )
        for each in compared.comparisons
    ]
    raw, raw_data = "All cells of all comparisons, in SI units", comparison.render(compared, ".json")
    return _answers_html("comparison", answers, raw, raw_data, compared.left_out)


def fleet_html(found: Fleet, label: str | None = None) -> bytes:
    """The page of a fleet; ``label``: by which it is mapped."""
    worse, *others = fleet.outlier_table(found, label), fleet.spread_table(found), fleet.gpu_table(found, label)
    figures = worse, *draw_fleet(found, label), *others
    answer = _Answer(f"{found.experiment} on {len(found.gpus):,} GPUs", fleet.verdict(found), figures)
    return _answers_html("fleet", [answer], "All GPUs, and how each was judged", fleet.render(found, ".json"))


class _Answer(NamedTuple):
    """One of a page: its parts are tables, of which empty ones are left out, and charts."""

    title: str
    verdict: str
    parts: Iterable[Any]


def _answers_html(
    kind: str, answers: Sequence[_Answer], raw: str, raw_data: bytes, left_out: Sequence[str] = ()
) -> bytes:
    """The page of answers; ``raw``: what the JSON has in it that goes with them."""
    content = {"kind": kind, "answers": answers, "raw": raw, "raw_data": _packed([raw_data]), "left_out": left_out}
    return b"".join(_page("answers.html.jinja", **content))


def _page(name: str, **content: Any) -> Iterator[bytes]:
    page = _template(name).generate(
        facts=facts,
        policy=CONTENT_SECURITY_POLICY,
        version=pinscope.__version__,
        plotly=_packed_plotly(),
        templates=_script_json({scheme: template(scheme).to_plotly_json() for scheme in _PAGE_SCHEMES}),
        figure=_figure,
        format_precision=format_precision,
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
    yield Markup(base64.b64encode(packed + packer.flush()).decode())  # noqa: S704 - likewise


@cache
def _packed_plotly() -> str:
    return "".join(_packed([get_plotlyjs().encode()]))
