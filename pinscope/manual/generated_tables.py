"""Tables that pages ask for: of all experiments, of the recorded runs, and of the findings."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping

from pinscope.analysis.kind import Kind
from pinscope.analysis.texts import Texts
from pinscope.errors import UnknownName
from pinscope.experiments.registry import EXPERIMENTS, find_reader, method, readers, split_page
from pinscope.records.finding import Reading, Table
from pinscope.records.parameters import Inputs
from pinscope.records.run import ExperimentRun, Run
from pinscope.report.facts import place
from pinscope.report.parameters import form_parameters
from pinscope.store.recordings import folder, recorded_runs, recording_name
from pinscope.units import format_bytes, format_seconds, format_value

RECORDED_ON = "NVIDIA H200"
"""The GPU whose recorded runs are in the table of experiments."""
FIRES = "findings.json"
"""Rule → names of the recordings on which it fires. ``scripts/write-verdicts`` makes the file anew."""


def experiments_table() -> str:
    """One row an experiment: what it asks, whether it needs a GPU, and what its recorded run took. As Markdown."""
    lines = [
        f"| experiment | question | without a GPU | took, on the recorded {RECORDED_ON[7:]} | pinned at most |",
        "| --- | --- | --- | --- | --- |",
    ]
    recorded = {run.experiment: run for run in recorded_runs() if run.gpu and run.gpu.name == RECORDED_ON}
    for entry in EXPERIMENTS:
        experiment, run = entry.experiment, recorded.get(entry.name)
        without = "no" if experiment.labs.get("host") else "yes"
        link = f"[{experiment.name}](experiments/{experiment.name}.md)"
        pinned = format_bytes(run.budget.pinned_bytes) if isinstance(run, ExperimentRun) else ""
        lines.append(f"| {link} | {experiment.question} | {without} | {_took(run) if run else ''} | {pinned} |")
    return "\n".join(lines)


def _took(run: Run) -> str:
    return format_seconds((run.finished_at - run.created_at).total_seconds() if run.finished_at else None)


def recordings_table() -> str:
    """One row a recording: what pages call it, where it was measured, and how to open it. As Markdown."""
    lines = ["| recorded run | measured on | day | open it with |", "| --- | --- | --- | --- |"]
    for run in sorted(recorded_runs(), key=recording_name):
        link = f"[{recording_name(run)}](experiments/{run.experiment}.md)"
        lines.append(f"| {link} | {place(run)} | {run.created_at:%Y-%m-%d} | `pinscope runs show {run.id}` |")
    return "\n".join(lines)


def findings_reference() -> str:
    """A section for each kind of run, a table of its rules, as Markdown."""
    fires = json.loads((folder() / FIRES).read_text("utf-8"))
    return "\n\n".join(f"## {reader.kind.title}\n\n{_table(reader.texts, fires)}" for reader in readers())


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


def experiment_page(name: str, body: str, *, has_picture: bool) -> str:
    """Question, method and chart, the body, then the parameters and where the raw data is explained.

    Args:
        name: of the experiment.
        body: how to read it and what to do, as Markdown; may be empty.
        has_picture: whether ``pictures/NAME.png`` exists.
    """
    return "\n\n".join(part for part in _parts(find_reader(name).kind, body.strip(), has_picture) if part) + "\n"


def _parts(kind: Kind, body: str, has_picture: bool) -> Iterator[str]:
    yield f"# {kind.title}"
    yield f"**{kind.question}**"
    if has_picture:
        yield f"![{kind.title}: a recorded run](../pictures/{kind.name}.png)"
    yield split_page(body)[1].strip()
    yield f"## Method\n\n{method(kind)}"
    labs = next((entry.experiment.labs for entry in EXPERIMENTS if entry.name == kind.name), {})
    yield "\n".join(f"It does not run on the host model: {reason}." for reason in [labs.get("host")] if reason)
    if labs:
        yield (
            f"## Parameters\n\nSet one with `pinscope run {kind.name} --set NAME=VALUE`. The defaults are those of a "
            f"run on a GPU; `pinscope run {kind.name} --help` shows those of a run on this machine."
        )
        yield _parameters(kind.Params)
    anchor = f"observations-of-{kind.name}"
    yield f"## Raw data\n\nThe keys of an observation are in the [JSON reference](../reference/json.md#{anchor})."


def _parameters(params: type[Inputs]) -> str:
    lines = ["| parameter | meaning | default | with `--quick` |", "| --- | --- | --- | --- |"]
    presets = params.preset("cuda", False), params.preset("cuda", True)
    for parameter in form_parameters(params):
        usual, less = (parameter.default(getattr(preset, parameter.name)) for preset in presets)
        meaning = f"{parameter.description} {parameter.takes}"
        lines.append(_row((f"`{parameter.name}`", meaning, usual, less if less != usual else "")))
    return "\n".join(lines)


QUOTED = re.compile(r'\[([^][]*)\]\(([^()\s]+) "([\w-]+): ([^"]+)"\)')
"""Text, target, recording and figure."""
_INTO = " > "
"""From a table into its row, and to its column; a bar would end a cell of the page's own table."""


def renewed(page: str, readings: Mapping[str, Reading]) -> str:
    """The page with every quoted figure as this version reads it.

    Args:
        page: Markdown.
        readings: of the recordings, by :func:`~pinscope.store.recordings.recording_name`.

    Raises:
        UnknownName: no such recording or figure, or several different ones of that name.
    """

    def renew(match: re.Match[str]) -> str:
        _, target, recording, name = match.groups()
        if recording not in readings:
            raise UnknownName(f"no recording {recording}")
        try:
            return f'[{figure(readings[recording], name)}]({target} "{recording}: {name}")'
        except UnknownName as error:
            raise UnknownName(f"{recording}: {error}") from None

    return QUOTED.sub(renew, page)


def figure(reading: Reading, name: str) -> str:
    """A figure as a page shows it, with its unit; a ratio as ``6.50 times``. Errors as of :func:`renewed`."""
    title, *cells = name.split(_INTO)
    figures = _cells(reading, title, cells) if cells else _quantities(reading, title)
    if len(figures) != 1:
        raise UnknownName(f"{len(figures)} figures are called {name!r}; one is needed")
    return figures.pop()


def _quantities(reading: Reading, name: str) -> set[str]:
    """Those of the headline; only if it has none of that name, those of all findings."""
    evidence = [quantity for finding in reading.findings for quantity in finding.evidence]
    for named in ([quantity for quantity in part if quantity.name == name] for part in (reading.headline, evidence)):
        if named:
            return {_text(quantity.value, quantity.unit) for quantity in named}
    return set()


def _cells(reading: Reading, title: str, cells: list[str]) -> set[str]:
    *labels, column = cells
    tables = [table for table in reading.tables if table.title == title and column in table.columns]
    return {_text(value, unit) for table in tables for value, unit in _column(table, labels, column)}


def _column(table: Table, labels: list[str], column: str) -> list[tuple[float | int | str | bool | None, str]]:
    """Cells of a column in the rows that begin with these labels, with their unit."""
    place = table.columns.index(column)
    values = []
    for row in table.rows:
        first = [format_value(value, unit) for value, unit in zip(row, table.units, strict=True)][: len(labels)]
        if first == labels:
            values.append((row[place], table.units[place]))
    return values


def _text(value: float | int | str | bool | None, unit: str) -> str:
    return format_value(value, unit).replace(" ×", " times")
