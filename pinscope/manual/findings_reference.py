"""The reference of findings: every rule of the experiments with its words, when it fires, and on which recording."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from pinscope.analysis.texts import Texts
from pinscope.experiments.registry import readers, texts_of
from pinscope.records.finding import Reading
from pinscope.store.recordings import folder

FIRES = "findings.json"
"""Rule → names of the recordings on which it fires. ``scripts/write-verdicts`` makes the file anew."""


def findings_reference() -> str:
    """A section for each kind of run, a table of its rules, as Markdown."""
    fires = json.loads((folder() / FIRES).read_text("utf-8"))
    parts = []
    for reader in readers():
        if texts := texts_of(reader.name):
            parts += [f"## {reader.kind.title}", _table(texts, fires)]
    return "\n\n".join(parts)


def fires_on(readings: Mapping[str, Reading]) -> dict[str, list[str]]:
    """What the file says, of readings by name of their recording."""
    pairs = {(finding.rule, name) for name, reading in readings.items() for finding in reading.findings}
    return {rule: sorted(name for other, name in pairs if other == rule) for rule, _ in sorted(pairs)}


def _table(texts: Texts, fires: Mapping[str, list[str]]) -> str:
    lines = ["| rule | when | what it says | advice | fires on |", "| --- | --- | --- | --- | --- |"]
    for key, text in texts.items():
        rule = key.partition("/")[0]
        on = ", ".join(f"[{name}](../experiments/{name.partition('-')[0]}.md)" for name in fires.get(rule, ()))
        lines.append(_row((f"`{key}`, {text.severity}", text.when, text.title, text.advice, on or "no recording")))
    return "\n".join(lines)


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
