"""A finding's code reaches every reader as it was written."""

from __future__ import annotations

from dataclasses import replace
from html import unescape

import pytest

from pinscope.cli.outcome import print_findings
from pinscope.records.run import Finding
from pinscope.report.facts import Document
from pinscope.report.write import render, run_document
from tests.data import synthetic

CODE = 'def pinned_buffer(nbytes):\n    """<b>&amp;</b> `*_`"""\n    return nbytes < 2**30\n'


@pytest.fixture
def finding() -> Finding:
    return Finding(rule="rule", severity="note", title="Title", detail="Detail.", evidence=(), advice="Do.", code=CODE)


@pytest.fixture
def document(finding: Finding) -> Document:
    whole = synthetic.document("overlap")
    return replace(whole, reading=whole.reading.model_copy(update={"findings": (finding,)}))


def test_every_format_shows_it_as_it_was_written(
    document: Document, finding: Finding, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"```python\n{CODE.rstrip()}\n```\n" in render([document], ".md").decode()
    html = render([document], ".html").decode()
    assert "<b>&amp;</b>" not in html
    assert unescape(html.partition("<pre><code>")[2].partition("</code></pre>")[0]) == CODE
    assert run_document(document)["run"]["findings"][0]["code"] == CODE
    print_findings([finding])
    assert CODE in capsys.readouterr().out


def test_a_finding_without_code_shows_no_empty_box(document: Document, finding: Finding) -> None:
    bare = document.reading.model_copy(update={"findings": (finding.model_copy(update={"code": None}),)})
    assert "<pre>" not in render([replace(document, reading=bare)], ".html").decode()
