"""The reference of JSON documents and metrics, made from the records and from the exporter."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import groupby, pairwise
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

from pydantic import AwareDatetime, BaseModel

from pinscope.experiments.registry import readers
from pinscope.live.source import History
from pinscope.monitoring.metrics import SnapshotCollector
from pinscope.planning.plan import ContextPrice, Demand, HostBudget, Origin, Pace, Sharing
from pinscope.planning.prices import Safety
from pinscope.records.base import Capability, Record
from pinscope.records.environment import Environment
from pinscope.records.figure import figures
from pinscope.records.finding import Finding, Table
from pinscope.records.run import ExperimentRun, Observation, TimelineRun, TraceRun
from pinscope.records.snapshot import Snapshot
from pinscope.records.timeline import Event
from pinscope.store.store import Imported

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
_PLAIN: Mapping[Any, str] = {
    int: "integer",
    float: "number",
    str: "text",
    bool: "true or false",
    Any: "any",
    datetime: "time (ISO 8601)",
    AwareDatetime: "time (ISO 8601)",
}


@dataclass(frozen=True)
class Key:
    """One key of a JSON object.

    Attributes:
        name: as it stands in the document.
        type: of its value, as Markdown; a record is a link to its own table.
        meaning: one or two sentences, as Markdown.
    """

    name: str
    type: str
    meaning: str

    @property
    def unit(self) -> str:
        """Of its value; empty where it has none."""
        return next((unit for end, unit in UNITS.items() if re.search(rf"(^|_){end}$", self.name)), "")


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
        for part in () if _is_mapping(kind) else get_args(kind):  # its keys are names, as of missing figures
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


def _is_mapping(kind: Any) -> bool:
    origin = get_origin(kind)
    return inspect.isclass(origin) and issubclass(origin, Mapping)


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
    found = dict(EVERYWHERE)
    for part in reversed(record.__mro__):
        if part.__module__.split(".")[0] == "pinscope":
            found |= _own_meanings(part)
    if issubclass(record, BaseModel):
        described: dict[str, Any] = {**record.model_fields, **record.model_computed_fields}
        found |= {name: meaning(field.description) for name, field in described.items() if field.description}
        found |= {figure.field: meaning(figure.help) for figure in figures(record)}
    return found


@cache
def _own_meanings(record: type) -> dict[str, str]:
    """Of a pydantic record: the string after each field. Of a dataclass: its docstring's ``Attributes``, too."""
    definition = ast.parse(textwrap.dedent(inspect.getsource(record))).body[0]
    body = definition.body if isinstance(definition, ast.ClassDef) else []
    found = {name: meaning(text) for name, text in _listed_attributes(record)}
    for field, words in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(words, ast.Expr):
            text = words.value.value if isinstance(words.value, ast.Constant) else None
            if isinstance(text, str):
                found[field.target.id] = meaning(text)
    return found


def _listed_attributes(record: type) -> list[tuple[str, str]]:
    _, _, listed = inspect.cleandoc(record.__doc__ or "").partition("Attributes:\n")
    return [(name, text) for name, text in re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", listed, re.MULTILINE)]


_FORMAT = Key("format", "integer", "Version of the document. Keys may be added without raising it.")
_FINDINGS = Key("findings", "list of [Finding](#finding)", "What was concluded.")
_VERDICT = Key("verdict", "text or null", "The answer to the question in one sentence; null where there is none.")
_HEADLINE = Key("headline", "list of [Quantity](#quantity)", "The figures that answer the question.")
_TABLES = Key("tables", "list of [Table](#table)", "All figures that were derived.")
_ORIGIN = Key("origin", "[Origin](#origin)", "Where the figure comes from.")
_FILE = (
    Key("file", "text", "The file that was written."),
    Key("bytes", "integer", "Its size."),
    Key("runs", "list of text", "Ids of the runs in it."),
)


@dataclass(frozen=True)
class Part:
    """One table of the reference.

    Attributes:
        title: its heading.
        level: of the heading.
        text: what stands above the table.
        keys: the rows.
    """

    title: str
    level: int
    text: str
    keys: Sequence[Key] = ()

    def markdown(self) -> str:
        """The heading, the text and the table."""
        parts = [f"{'#' * self.level} {self.title}", self.text, table(self.keys) if self.keys else ""]
        return "\n\n".join(part for part in parts if part)


def json_reference(listed: Collection[str]) -> str:
    """All documents and all their keys, as Markdown.

    Args:
        listed: keys of a run that ``runs list --json`` prints, beside ``host``.
    """
    return "\n\n".join(part.markdown() for part in json_parts(listed))


def json_parts(listed: Collection[str]) -> Iterator[Part]:
    """The tables in the order of the page."""
    yield from _run_parts()
    yield from _observation_parts()
    yield from _list_and_doctor(listed)
    yield from _plan_parts()
    yield from _live_parts()
    yield from _small_parts()
    yield Part("Records", 2, "These objects stand in several documents.")
    seen: list[type] = []
    for top in (ExperimentRun, TimelineRun, TraceRun, Finding, Table, Capability, Snapshot, Event):
        for record in (top, *records_in(top)):
            if record not in seen:
                seen.append(record)
    for record in seen:
        yield _record(record, 3, _RUN_KEYS if record in (ExperimentRun, TimelineRun, TraceRun) else ())


_RUN_KEYS = (
    Key("title", "text", "Title of the experiment."),
    Key("question", "text", "What the experiment asks."),
    Key("method", "text", "How the answer was measured."),
    _HEADLINE,
    _TABLES,
    _FINDINGS,
)
"""What a run's document has beside the record: what was derived from the observations."""


def _record(record: type, level: int, more: Sequence[Key] = ()) -> Part:
    words = (record.__doc__ or "").split("\n\n")[0].replace("\n", " ").replace("``", "`")
    return Part(record.__name__, level, " ".join(words.split()), [*keys_of(record), *more])


def _run_parts() -> Iterator[Part]:
    document = (
        _FORMAT,
        Key(
            "run",
            "[ExperimentRun](#experimentrun), [TimelineRun](#timelinerun) or [TraceRun](#tracerun)",
            "The run and what was concluded from it.",
        ),
        Key("observations", "list of objects", "Every reading as it was stored: see [Observations](#observations)."),
    )
    text = (
        "`pinscope run NAME --json`, `pinscope runs show ID --json`, `pinscope record --json`, "
        "`pinscope trace --json FILE` and a report in a `.json` file."
    )
    yield Part("A run", 2, text, document)
    several = (
        _FORMAT,
        Key("runs", "list of objects", "Of `pinscope run all --json`: one document for each run."),
        Key("documents", "list of objects", "Of a report of several runs: one document for each run."),
    )
    yield Part("Several runs", 3, "`pinscope run all --json`, and a report of several runs.", several)


def _observation_parts() -> Iterator[Part]:
    shared = keys_of(Observation)
    yield Part("Observations", 2, "Every observation of every experiment has these keys.", shared)
    names = {key.name for key in shared}
    for reader in readers():
        own = [key for key in keys_of(reader.kind.Observation) if key.name not in names]
        words = " ".join((reader.kind.Observation.__doc__ or "").split("\n\n")[0].split()).replace("``", "`")
        yield Part(f"Observations of {reader.kind.name}", 3, words, own)


def _list_and_doctor(listed: Collection[str]) -> Iterator[Part]:
    rows = [key for key in keys_of(ExperimentRun) if key.name in listed]
    text = (
        "A list of objects. A run that cannot be read has the status `damaged`, and `error` says why; of the other "
        "keys only `id` is known."
    )
    yield Part("`pinscope runs list --json`", 2, text, [*rows, Key("host", "text", "Name of the machine.")])
    doctor = (
        _FORMAT,
        Key("environment", f"[{Environment.__name__}](#environment)", "This machine."),
        Key("capabilities", "list of [Capability](#capability)", "What can be used here."),
        _FINDINGS,
        Key("database", "text", "Where runs are kept."),
    )
    yield Part("`pinscope doctor --json`", 2, "", doctor)


def _plan_parts() -> Iterator[Part]:
    document = (
        _FORMAT,
        Key("demand", "[Demand](#demand)", "What is to be pinned."),
        Key("page", "object", "The page table of one process on one GPU: see [Page](#page)."),
        Key("page_sizes", "list of objects", "The same by formula at each page size: see [Page](#page)."),
        Key("context", "[ContextPrice](#contextprice) or null", "What one CUDA context takes."),
        Key("strategies", "list of [Sharing](#sharing)", "Ways to share the memory among the processes."),
        Key("pinning", "list of [Pace](#pace)", "Ways to pin, the fastest first."),
        Key("recommended", "object or null", "The recommended way: see [Recommended](#recommended)."),
        Key("budget", "[HostBudget](#hostbudget)", "What is safe on this host."),
        Key("safety", "[Safety](#safety)", "How safe the plan is here: the first words of the verdict."),
        _VERDICT,
        _HEADLINE,
        _TABLES,
        _FINDINGS,
    )
    yield Part("`pinscope plan --json`", 2, "", document)
    yield _record(Demand, 3)
    page = (
        Key("page_bytes", "number", "Page size of the GPU's page table."),
        Key("entries", "integer", "How many entries the table has; only in `page_sizes`."),
        Key("table_bytes", "integer", "What the table takes of GPU memory."),
        Key("origin", "[Origin](#origin)", "Where the page size comes from; only in `page`."),
    )
    yield Part("Page", 3, "", page)
    yield _record(ContextPrice, 3)
    yield _record(Sharing, 3)
    more = (Key("seconds", "number", "For the amount that is asked for."),)
    yield _record(Pace, 3, more)
    recommended = (
        Key("strategy", "text", "Its name in the experiment `pinning_strategy`."),
        Key("chunk_bytes", "integer or null", "Length of a chunk; `null`: one piece."),
        Key("call", "text", "Python code that pins the amount this way."),
    )
    yield Part("Recommended", 3, "", recommended)
    yield _record(HostBudget, 3)
    yield _record(Safety, 3)
    yield _record(Origin, 3)


def _live_parts() -> Iterator[Part]:
    text = (
        "`pinscope live --once --json` prints one document: the keys of a [Snapshot](#snapshot) and `findings`. "
        "Without `--once` there is one document on each line, with `events` and `growing` beside them."
    )
    more = (
        _FINDINGS,
        Key("events", "list of [Event](#event)", "What happened since the line before."),
        Key("growing", "list of integer", "Pids of the holders that take more and more and give nothing back."),
    )
    yield Part("`pinscope live --json`", 2, text, more)


def _small_parts() -> Iterator[Part]:
    yield Part("`pinscope report --json` and `pinscope export --json`", 2, "", _FILE)
    yield Part("`pinscope import --json`", 2, "", keys_of(Imported))
    deleted = (Key("deleted", "text", "Id of the run."),)
    yield Part("`pinscope runs delete --json`", 2, "", deleted)
    cancelled = (
        Key("cancelled", "text", "Id of the run."),
        Key("status", "text", "What it is now: `cancelled`, or `done` if it was a recording of the live view."),
    )
    yield Part("`pinscope runs cancel --json`", 2, "", cancelled)
    docs = (
        Key("page", "text", "Name of the page."),
        Key("file", "text", "The HTML file of the page on this machine."),
        Key("pages", "list of text", "Names of all pages."),
    )
    yield Part("`pinscope docs --json`", 2, "", docs)


_Made = TypeVar("_Made", bound=Record)
_VALUES: Mapping[Any, Any] = {
    bool: True,
    int: 1,
    float: 1.0,
    str: "x",
    datetime: datetime(2026, 1, 1, tzinfo=UTC),
    Any: "x",
}


def specimen(record: type[_Made]) -> _Made:
    """Every field has a value, and every list one entry."""
    return record(**{name: _value(field.annotation) for name, field in record.model_fields.items()})


def _value(kind: Any) -> Any:
    if kind in _VALUES:
        return _VALUES[kind]
    if inspect.isclass(kind) and issubclass(kind, Record):
        return specimen(kind)
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return parts[0]
    if origin in (Union, types.UnionType, typing.Annotated):
        return _value(next(part for part in parts if part is not type(None)))
    return (_value(parts[0]),) if origin is tuple else {}  # what is left is a mapping


_GROUPS = {"pinscope_host_": "The host", "pinscope_holder_": "A holder", "pinscope_gpu_": "A GPU"}
_REST = "The exporter"
_MORE_UNITS = {**UNITS, "ratio": "share, 0 to 1"}


class MetricFacts(NamedTuple):
    """One metric: its name as it is scraped, its type, labels and help."""

    name: str
    type: str
    labels: tuple[str, ...]
    help: str

    @property
    def group(self) -> str:
        """What it is a figure of."""
        return next((title for start, title in _GROUPS.items() if self.name.startswith(start)), _REST)

    @property
    def unit(self) -> str:
        """Of its value; empty where it has none."""
        bare = self.name.removesuffix("_total")
        return next((unit for end, unit in _MORE_UNITS.items() if bare.endswith(f"_{end}")), "")


def metrics() -> list[MetricFacts]:
    """Every metric that there can be, each once, in the order in which it is exported."""
    found: dict[str, MetricFacts] = {}
    full = specimen(Snapshot)
    whole = full.model_copy(  # some figures are left out of a GPU in parts
        update={"devices": tuple(device.model_copy(update={"mig": ()}) for device in full.devices)}
    )
    for seen in (full, whole):
        for one in _collected(seen):
            found.setdefault(one.name, one)
    return list(found.values())


def metrics_reference() -> str:
    """All metrics by what they are figures of, as Markdown."""
    order = [_REST, *_GROUPS.values()]
    parts = []
    for title, members in groupby(sorted(metrics(), key=lambda one: order.index(one.group)), lambda one: one.group):
        lines = [f"## {title}", "", "| metric | type | unit | labels | meaning |", "| --- | --- | --- | --- | --- |"]
        for one in members:
            labels = ", ".join(f"`{label}`" for label in one.labels)
            lines.append(f"| `{one.name}` | {one.type} | {one.unit} | {labels} | {one.help} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _collected(seen: Snapshot) -> Iterator[MetricFacts]:
    collector = SnapshotCollector(lambda: History(latest=seen), lambda: seen.taken_at + timedelta(seconds=1))
    for family in collector.collect():
        for sample in family.samples[:1]:
            yield MetricFacts(sample.name, family.type, tuple(sample.labels), family.documentation)
