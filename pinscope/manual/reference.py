"""The reference of JSON documents and metrics, made from the records and from the exporter."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
import textwrap
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from itertools import pairwise
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import AwareDatetime, BaseModel

import pinscope
from pinscope.analysis.read_rows import Kind
from pinscope.analysis.texts import Texts
from pinscope.experiments.contract import AnyExperiment
from pinscope.experiments.registry import EXPERIMENTS, find_reader, method, readers, split_page
from pinscope.monitoring.server import GPU, GPU_LABELS, HOLDER, HOLDER_GPU, HOLDER_LABELS, HOST, LINK, OTHERS
from pinscope.planning.plan import Demand, HostBudget, Safety, Sharing
from pinscope.planning.prices import ContextPrice, Origin, Pace
from pinscope.records.base import Capability
from pinscope.records.figure import figures
from pinscope.records.run import ExperimentRun, Finding, Observation, Run, Table, TimelineRun, TraceRun
from pinscope.records.snapshot import Snapshot
from pinscope.records.timeline import Event
from pinscope.report.facts import parameter_defaults, place
from pinscope.store.recordings import folder, recorded_runs, recording_name
from pinscope.units import format_bytes, format_seconds

UNITS: Mapping[str, str] = {
    "bytes_per_second": "bytes/second",
    "bytes": "bytes",
    "seconds": "seconds",
    "hertz": "hertz",
    "celsius": "°C",
    "share": "share, 0 to 1",
}
"""End of a key → the unit of its value."""
EVERYWHERE: Mapping[str, str] = {
    "missing": "Key → why it is `null` or empty.",
    "estimates": "Key → why the figure is not exact, and how it may be wrong.",
}
"""Keys that mean the same in every record, and need no words of their own there."""
DOCUMENTED = (
    *(ExperimentRun, TimelineRun, TraceRun, Finding, Table, Capability, Snapshot, Event),
    *(Demand, ContextPrice, Sharing, Pace, HostBudget, Safety, Origin),
)
"""Records that a document is or lists."""
_PLAIN: Mapping[Any, str] = {
    int: "integer",
    float: "number",
    str: "text",
    bool: "true or false",
    Any: "any",
    datetime: "time (ISO 8601)",
    AwareDatetime: "time (ISO 8601)",
}


class Key(NamedTuple):
    """One key of a JSON object: its name, the type of its value (a record is a link to its table) and what it means, as
    Markdown."""

    name: str
    type: str
    meaning: str

    @property
    def unit(self) -> str:
        """Unit of its value; empty where it has none."""
        return unit_of(self.name, UNITS)


def unit_of(name: str, units: Mapping[str, str]) -> str:
    """What the end of a name says of the unit of its value; empty if nothing."""
    return next((unit for end, unit in units.items() if f"_{name}".endswith(f"_{end}")), "")


def keys_of(record: type) -> list[Key]:
    """All keys of a record's JSON, in the order in which they are written."""
    meanings = _meanings(record)
    return [Key(name, _type(kind), meanings.get(name, "")) for name, kind in _fields(record)]


def records_in(record: type) -> Iterator[type]:
    """The records that stand in a record's JSON, at any depth, each once and in order."""
    seen: list[type] = []

    def walk(kind: Any) -> Iterator[type]:
        if _is_record(kind) and kind not in seen:
            seen.append(kind)
            yield kind
            for _, inner in _fields(kind):
                yield from walk(inner)
        origin = get_origin(kind)
        if not (inspect.isclass(origin) and issubclass(origin, Mapping)):  # its keys are names, as of missing figures
            for part in get_args(kind):
                yield from walk(part)

    for _, kind in _fields(record):
        yield from walk(kind)


def table(keys: Sequence[Key]) -> str:
    """The keys as a table in Markdown."""
    lines = ["| key | type | unit | meaning |", "| --- | --- | --- | --- |"]
    lines += [f"| `{key.name}` | {key.type} | {key.unit} | {key.meaning} |" for key in keys]
    return "\n".join(lines)


def meaning(docstring: str) -> str:
    """A docstring as one line of Markdown that fits into a cell: of JSON, ``None`` is ``null``."""
    text = " ".join(docstring.split())
    text = re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", r"`\1`", text)
    text = text.replace("``None``", "`null`").replace("``", "`").replace("|", r"\|")
    return text[:1].upper() + text[1:]


def _is_record(kind: Any) -> bool:
    return inspect.isclass(kind) and (issubclass(kind, BaseModel) or dataclasses.is_dataclass(kind))


def _fields(record: Any) -> list[tuple[str, Any]]:
    if issubclass(record, BaseModel):
        computed = [(name, field.return_type) for name, field in record.model_computed_fields.items()]
        return [*((name, field.annotation) for name, field in record.model_fields.items()), *computed]
    kinds = typing.get_type_hints(record)
    return [(field.name, kinds[field.name]) for field in dataclasses.fields(record)]


def _type(kind: Any) -> str:
    if kind in _PLAIN:
        return _PLAIN[kind]
    if _is_record(kind):
        return f"[{kind.__name__}](#{kind.__name__.lower()})"
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return ", ".join(f"`{word}`" for word in parts)
    if origin in (Union, types.UnionType):
        some = " or ".join(_type(part) for part in parts if part is not type(None))
        return f"{some} or null" if type(None) in parts else some
    if origin is typing.Annotated:
        return _type(parts[0])
    return f"list of {_type(parts[0])}" if origin is tuple else "object"  # what is left is a mapping


def _meanings(record: type) -> dict[str, str]:
    """Field → what its docstring says; a field that a class takes over keeps the words it had there."""
    meanings = dict(EVERYWHERE)
    for part in reversed(record.__mro__):
        if part.__module__.split(".")[0] == "pinscope":
            meanings |= _own_meanings(part)
    if issubclass(record, BaseModel):
        described: dict[str, Any] = {**record.model_fields, **record.model_computed_fields}
        meanings |= {name: meaning(field.description) for name, field in described.items() if field.description}
        meanings |= {figure.field: meaning(figure.help) for figure in figures(record)}
    return meanings


@cache
def _own_meanings(record: type) -> dict[str, str]:
    """Of a pydantic record: the string after each field. Of a dataclass: its docstring's ``Attributes``, too."""
    definition = ast.parse(textwrap.dedent(inspect.getsource(record))).body[0]
    body = definition.body if isinstance(definition, ast.ClassDef) else []
    _, _, listed = inspect.cleandoc(record.__doc__ or "").partition("Attributes:\n")
    attributes = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", listed, re.MULTILINE)
    meanings = {name: meaning(text) for name, text in attributes}
    for field, words in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(words, ast.Expr):
            text = words.value.value if isinstance(words.value, ast.Constant) else None
            if isinstance(text, str):
                meanings[field.target.id] = meaning(text)
    return meanings


def documented_records() -> Iterator[type]:
    """The records that the documents consist of, and those that stand in them, each once."""
    seen: dict[type, None] = {}
    for top in DOCUMENTED:
        seen |= dict.fromkeys((top, *records_in(top)))
    yield from seen


def json_reference() -> str:
    """The keys of all observations and records, as Markdown; those of the documents stand on the page itself."""
    shared = keys_of(Observation)
    text = "Every observation of every experiment has these keys."
    parts = ["## Observations", text, table(shared)]
    for reader in readers():
        own = [key for key in keys_of(reader.kind.Observation) if key not in shared]
        parts += _section(f"Observations of {reader.kind.name}", reader.kind.Observation, own)
    parts += ["## Records", "These objects stand in several documents."]
    for record in documented_records():
        parts += _section(record.__name__, record, keys_of(record))
    return "\n\n".join(parts)


def _section(title: str, record: type, keys: Sequence[Key]) -> tuple[str, str, str]:
    words = " ".join((record.__doc__ or "").split("\n\n")[0].split())
    return f"### {title}", words.replace("``", "`"), table(keys)


_GROUPS = {"pinscope_host_": "The host", "pinscope_holder_": "A holder", "pinscope_gpu_": "A GPU"}


class MetricFacts(NamedTuple):
    """One metric: its name as it is scraped, its type, labels and help."""

    name: str
    type: str
    labels: tuple[str, ...]
    help: str

    def line(self) -> str:
        """A row of its table."""
        unit = unit_of(self.name.removesuffix("_total"), {**UNITS, "ratio": UNITS["share"]})
        labels = ", ".join(f"`{label}`" for label in self.labels)
        return f"| `{self.name}` | {self.type} | {unit} | {labels} | {self.help} |"


def metrics() -> Iterator[MetricFacts]:
    """Every metric that there can be, each once."""
    for name, (words, labels) in OTHERS.items():
        yield MetricFacts(name, "counter" if name.endswith("_total") else "gauge", labels, words)
    for group, labels in (
        (HOST, ()),
        (HOLDER, HOLDER_LABELS),
        (HOLDER_GPU, (*HOLDER_LABELS, "gpu")),
        ((*GPU, *LINK), GPU_LABELS),
    ):
        for figure in group:
            yield MetricFacts(figure.metric or "", "gauge", labels, figure.help)


def metrics_reference() -> str:
    """All metrics by what they are figures of, as Markdown."""
    groups: dict[str, list[str]] = {title: [] for title in ("The exporter", *_GROUPS.values())}
    for metric in metrics():
        group = next((title for start, title in _GROUPS.items() if metric.name.startswith(start)), "The exporter")
        groups[group].append(metric.line())
    head = "| metric | type | unit | labels | meaning |\n| --- | --- | --- | --- | --- |"
    return "\n\n".join("\n".join((f"## {title}", "", head, *lines)) for title, lines in groups.items())


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
    for experiment in (entry.experiment for entry in EXPERIMENTS if entry.name == kind.name):
        if reason := experiment.labs.get("host"):
            yield f"It does not run on the host model: {reason}."
        yield f"## Parameters\n\nSet one with `pinscope run {kind.name} --set NAME=VALUE`."
        yield _parameters(experiment)
    anchor = f"observations-of-{kind.name}"
    yield f"## Raw data\n\nThe keys of an observation are in the [JSON reference](../reference/json.md#{anchor})."


def _parameters(experiment: AnyExperiment) -> str:
    lines = [
        "| parameter | meaning | default | with `--quick` | on the host model |",
        "| --- | --- | --- | --- | --- |",
    ]
    for parameter, defaults in parameter_defaults(experiment):
        texts = (defaults.get(when, "") for when in ("default", "--quick", "host model"))
        lines.append(_row((f"`{parameter.name}`", f"{parameter.description} {parameter.takes}", *texts)))
    return "\n".join(lines)


def python_reference() -> str:
    """What ``import pinscope`` offers, as Markdown: functions with what they take, classes with what they have."""
    return "\n\n".join(_python_section(name) for name in pinscope.__all__ if name != "__version__")


def _python_section(name: str) -> str:
    offered = getattr(pinscope, name)
    if inspect.isclass(offered):
        bases = [base for base in reversed(offered.__mro__) if base.__module__.startswith("pinscope")]
        own = {
            key: value for base in bases for key, value in sorted(vars(base).items()) if key[0] != "_" and value.__doc__
        }
        title = name
        parts = [_words(offered), *(f"{name}.{_call(key, value)}\n{_words(value)}" for key, value in own.items())]
    else:
        function = offered if inspect.isfunction(offered) else type(offered).__call__  # a room that may be called
        title, parts = f"{name}()", [f"{_call(name, function)}\n{_words(function)}"]
    text = "\n\n".join(parts)
    return f"## pinscope.{title}\n\n```text\n{text}\n```"


def _call(name: str, offered: Any) -> str:
    """How it is called; of what is only read its name."""
    if not inspect.isfunction(offered):
        return name
    signature = inspect.signature(offered)
    taken = [parameter for parameter in signature.parameters.values() if parameter.name != "self"]
    plain = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in taken]
    return f"{name}{signature.replace(parameters=plain, return_annotation=inspect.Signature.empty)}"


def _words(offered: Any) -> str:
    text = re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", r"\1", inspect.getdoc(offered) or "")
    return textwrap.indent(text.replace("``", ""), "  ")


def command_reference(root: Any) -> str:
    """All commands as Markdown.

    Args:
        root: the command ``pinscope``, as Typer made it.
    """
    parts = [_command_section("pinscope", root)]
    parts += [_command_section(name, command) for name, command in commands(root)]
    return "\n\n".join(parts)


def commands(root: Any, above: str = "pinscope") -> Iterator[tuple[str, Any]]:
    """Name, such as ``pinscope runs list``, and command: those that can be carried out."""
    for name, command in root.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{above} {name}")
        else:
            yield f"{above} {name}", command


def _command_section(name: str, command: Any) -> str:
    context = command.make_context(name, [], resilient_parsing=True, terminal_width=100)
    return f"## {name}\n\n```text\n{context.get_help()}\n```"
