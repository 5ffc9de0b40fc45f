"""Runs and comparisons as Markdown, which needs no package beside the base."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from pinscope.experiments.registry import verdict_of
from pinscope.records.run import Table
from pinscope.report import comparison, facts
from pinscope.report.comparison import Compared
from pinscope.report.facts import Document, environment_facts
from pinscope.text import one_line

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
        title = f"{of.experiment}: {of.called[1]} against {of.called[0]}"
        lines += [f"# {plain(title)}\n", f"**{plain(verdict_of(of))}**\n"]
        for table in (*comparison.machines(of), *comparison.cells(of)):
            lines += _table(table, "##")
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
    if run.observations:
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
