"""What a report is made from: a run and all that was derived from it, and the facts of it and of its machine as people
read them."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pinscope.analysis.models import KINDS
from pinscope.analysis.read_rows import NOTHING_ATTACHED, Attached, Row
from pinscope.experiments.contract import AnyExperiment, Params
from pinscope.experiments.registry import GONE, checked_rows, draw_run, find, find_reader, method, read_run
from pinscope.records.base import Budget
from pinscope.records.environment import (
    PACKET_PAYLOAD_BYTES,
    Device,
    Environment,
    HugePages,
    Iommu,
    Limits,
    Link,
    LinkErrors,
)
from pinscope.records.parameters import Inputs
from pinscope.records.run import (
    HOST_MODEL_NOTE,
    LAB_TITLES,
    ExperimentRun,
    Finding,
    Quantity,
    Reading,
    Run,
    Severity,
    Status,
    Table,
    TraceRun,
)
from pinscope.text import one_line
from pinscope.units import exact_bytes, format_bandwidth, format_bar, format_bytes, format_seconds, format_value

if TYPE_CHECKING:
    from pinscope.charts.marks import Chart


@dataclass(frozen=True)
class Document:
    """One run, ready to be written.

    Attributes:
        run: the run.
        title: of the experiment.
        question: what the experiment asks.
        method: how the answer was measured, a few sentences.
        reading: what the run tells.
        charts: its figures, each drawn when it is looked at.
        rows: its observations as stored, in the order in which they were measured.
        parameter_schema: JSON schema of the experiment's parameters (``Params.model_json_schema()``), for their
            titles and units; without it parameters are listed by name and plain value.
        attached: the single events that it carries; read while a report of them is written.
    """

    run: Run
    title: str
    question: str
    method: str
    reading: Reading
    charts: Sequence[Chart]
    rows: Sequence[Mapping[str, Any]]
    parameter_schema: Mapping[str, Any] = field(default_factory=dict)
    attached: Attached = NOTHING_ATTACHED


def open_document(run: Run, rows: Sequence[Row], attached: Attached = NOTHING_ATTACHED) -> Document:
    """The run with its reading and its charts; both are empty for a run without rows.

    ``attached``: the attachments of the run. Of a kind that is no more, the question says what became of it, and
    nothing is read from its rows. Where they rest on the first observations only, a note of the run says so.

    Raises:
        UnknownName: this version does not know the run's kind.
        BadInput: the rows are not observations of that kind; of the charts, when they are looked at.
    """
    nothing = Reading(headline=(), tables=(), findings=())
    if run.experiment in GONE:
        return Document(run, run.experiment, GONE[run.experiment], "", nothing, (), rows)
    kind = find_reader(run.experiment).kind
    read = checked_rows(run.experiment, rows)
    if read.cut:
        note = f"The figures and charts rest on the first {len(read):,} of {len(rows):,} observations: {read.cut}."
        run = run.model_copy(update={"notes": (*run.notes, note)})
    return Document(
        run=run,
        title=kind.title,
        question=kind.question,
        method=method(kind),
        reading=read_run(run, read) if read else nothing,
        charts=draw_run(run, read, attached) if read else [],
        rows=rows,
        parameter_schema=kind.Params.model_json_schema(),
        attached=attached,
    )


_UNITS = ("bytes", "seconds", "share")
"""Units to be named; others stand in a parameter's description."""


@dataclass(frozen=True)
class Parameter:
    """One parameter.

    Attributes:
        name: as ``--set`` takes it.
        schema: its JSON schema.
    """

    name: str
    schema: Mapping[str, Any]

    @property
    def title(self) -> str:
        """As people read it."""
        return str(self.schema["title"])

    @property
    def description(self) -> str:
        """What it means."""
        return str(self.schema["description"])

    @property
    def unit(self) -> str:
        """``bytes``, ``seconds`` or ``share``; empty for any other."""
        unit = self.schema.get("unit", "")
        return unit if unit in _UNITS else ""

    @property
    def choices(self) -> tuple[str, ...]:
        """The words to choose from, if any."""
        return tuple(self.schema.get("enum") or self.items.get("enum") or ())

    @property
    def items(self) -> Mapping[str, Any]:
        """The JSON schema of each value of a parameter that takes several; else empty."""
        items: Mapping[str, Any] = self.schema.get("items", {})
        return items

    @property
    def takes(self) -> str:
        """How a value is written, as a sentence."""
        if self.choices:
            how_many, comma = ("One", "") if "enum" in self.schema else ("Any", ", by comma")
            named = all(f"{word}:" in self.description for word in self.choices)
            return f"{how_many} of {'these' if named else ', '.join(self.choices)}{comma}."
        return _TAKES.get((self.schema.get("type", ""), self.unit), "")

    def default(self, value: Any) -> str:
        """A default as it is shown: ``all of these`` where every choice is taken."""
        return "all of these" if len(self.choices) > 1 and tuple(value) == self.choices else self.written(value)

    def written(self, value: Any) -> str:
        """A value as ``--set`` takes it."""
        if isinstance(value, tuple | list):
            return ",".join(map(self.written, value))
        if isinstance(value, bool):
            return "on" if value else "off"
        if self.unit == "bytes":
            return exact_bytes(value).replace(" ", "")
        return f"{value * 100:g}%" if self.unit == "share" else f"{value:g}s" if self.unit == "seconds" else str(value)


_TAKES: Mapping[tuple[str, str], str] = {
    ("integer", "bytes"): "A size, such as 64MiB.",
    ("array", "bytes"): "Sizes by comma, such as 64KiB,1MiB.",
    ("number", "share"): "A percentage, such as 5%.",
    ("number", "seconds"): "A time, such as 2s.",
    ("integer", ""): "A whole number.",
    ("array", ""): "Whole numbers by comma.",
    ("boolean", ""): "on or off.",
}
"""JSON type and unit → how a value is written."""


def form_parameters(params: type[Inputs]) -> list[Parameter]:
    """The experiment's own first, those common to all experiments last."""
    schemas = params.model_json_schema()["properties"]
    every = [Parameter(name, schema) for name, schema in schemas.items()]
    return sorted(every, key=lambda parameter: parameter.name in Params.model_fields)


def parameter_defaults(experiment: AnyExperiment) -> Iterator[tuple[Parameter, dict[str, str]]]:
    """Each parameter in the order of the form, and its ``default`` on a GPU, for people; where that differs, the one
    with ``--quick`` and the one on the ``host model``."""
    preset, has_model = experiment.Params.preset, experiment.labs.get("host") is None
    presets = {"default": preset("cuda", False), "--quick": preset("cuda", True)}
    presets |= {"host model": preset("host", False)} if has_model else {}
    for parameter in form_parameters(experiment.Params):
        texts = {when: parameter.default(getattr(params, parameter.name)) for when, params in presets.items()}
        yield parameter, {when: text for when, text in texts.items() if when == "default" or text != texts["default"]}


def run_command(run: ExperimentRun, names: Iterable[str]) -> str:
    """``pinscope run`` for a run like this one, with these of its parameters."""
    parameters = {parameter.name: parameter for parameter in form_parameters(find(run.experiment).experiment.Params)}
    place = ["--device", str(run.device)] if run.device else []
    size = ["--quick"] if run.quick else []
    given = [word for name in names for word in ("--set", f"{name}={parameters[name].written(run.params[name])}")]
    return shlex.join(["pinscope", "run", run.experiment, "--lab", run.lab, *place, *size, *given])


Fact = tuple[str, str]
"""A name, and what is said of it."""

IOMMU_WORDS: Mapping[Iommu, str] = {
    "off": "none visible to this system",
    "passthrough": "passes addresses through",
    "translating": "translates each address",
}
_SWITCH = {True: "on", False: "off"}
_BAR1_COVERS = {True: ", covers all of the memory", False: ", covers a part of the memory", None: ""}


def environment_facts(environment: Environment) -> list[Fact]:
    """The machine, its software and its limits; what is missing says why."""
    huge, limits = environment.huge_pages, environment.limits
    packages = ", ".join(f"{name} {version}" for name, version in environment.packages.items())
    return [
        ("Host", environment.host),
        ("System", f"{environment.os}, kernel {environment.kernel}, {environment.architecture}"),
        ("Processor", f"{_known(environment, 'cpu')}; {environment.cpus} usable"),
        ("NUMA nodes", _numa(environment)),
        ("Virtualization", _known(environment, "virtualization", unknown="none seen")),
        ("Page size", format_bytes(environment.page_bytes)),
        ("Transparent huge pages", _known(huge, "transparent")),
        *_if_recorded(huge, "Compaction for huge pages", "defrag"),
        ("Huge page pool", _known(huge, "hugetlb_total_pages", lambda pages: _huge_pool(huge, pages))),
        ("Memory", f"{format_bytes(limits.host_available_bytes)} available of {format_bytes(limits.host_total_bytes)}"),
        ("Control group headroom", _limit(limits, "cgroup_headroom_bytes")),
        ("Lockable memory", _limit(limits, "memlock_headroom_bytes")),
        ("Shared memory free", _limit(limits, "shm_free_bytes", "n/a")),
        ("Driver", _known(environment, "driver")),
        ("CUDA version of the driver", _known(environment, "cuda_driver")),
        *_if_recorded(environment, "Kernel module", "kernel_module"),
        *_if_recorded(environment, "Multi-Process Service", "mps", _SWITCH.__getitem__),
        *_if_recorded(environment, "Confidential computing", "confidential_computing", _SWITCH.__getitem__),
        ("Python", f"{environment.python}; {packages}" if packages else environment.python),
        *(
            (f"GPU {device.index}{name}", text)
            for device in environment.devices
            for name, text in (("", device.name), *((f": {name}", text) for name, text in gpu_facts(device)))
        ),
    ]


def version_text(environment: Environment) -> str:
    """PinScope's version and commit."""
    return f"{environment.pinscope_version}, commit {_known(environment, 'pinscope_commit')}"


def gpu_facts(device: Device) -> list[Fact]:
    """A GPU, one fact a line; without what a run of an older version did not record."""
    before = "Link errors before the run" if device.link_errors_after else "Link errors"
    return [
        ("Link now", _known(device, "link", _link_now)),
        ("Link at best", _known(device, "link", _link_at_best)),
        ("Memory", _memory(device)),
        ("NUMA node", _known(device, "numa_node")),
        ("Compute capability", _known(device, "compute_capability")),
        ("PCI address", _known(device, "pci_bus_id")),
        *_packet(device),
        *_if_recorded(device, "IOMMU", "iommu", IOMMU_WORDS.__getitem__),
        *_if_recorded(device, "BAR1 (resizable BAR)", "bar1_bytes", lambda size: _bar1(device, size)),
        *_if_recorded(device, "Persistence mode", "persistence_mode", _SWITCH.__getitem__),
        *((before, _errors(errors)) for errors in [device.link_errors] if errors),
        *(("Link errors after the run", _errors(errors)) for errors in [device.link_errors_after] if errors),
    ]


def link_text(link: Link | None, *, at_best: bool = False) -> str:
    """``PCIe Gen5 x16`` as the link is trained now, or as it can be at best; ``n/a`` where that is not known."""
    if link is None:
        return "n/a"
    if link.kind == "nvlink-c2c":
        return "NVLink-C2C"
    trained = (link.generation_max, link.width_max) if at_best else (link.generation_now, link.width_now)
    generation, width = ("?" if part is None else part for part in trained)
    return "n/a" if trained == (None, None) else f"PCIe Gen{generation} x{width}"


def _known(
    record: Environment | Device | HugePages | Limits,
    field: str,
    words: Callable[[Any], str] = str,
    unknown: str = "n/a",
) -> str:
    """A field in words, or that it is unknown and why."""
    value = getattr(record, field)
    if value is not None:
        return words(value)
    return f"{unknown} ({record.missing[field]})" if record.missing.get(field) else unknown


def _if_recorded(
    record: Environment | Device | HugePages, name: str, field: str, words: Callable[[Any], str] = str
) -> list[Fact]:
    """The fact; nothing where a run of an older version did not record it."""
    is_recorded = getattr(record, field) is not None or field in record.missing
    return [(name, _known(record, field, words))] if is_recorded else []


def _limit(limits: Limits, field: str, unknown: str = "no limit") -> str:
    """A limit in bytes; where there is none, the reason says more than the word."""
    value = getattr(limits, field)
    return limits.missing.get(field, unknown) if value is None else format_bytes(value)


def _numa(environment: Environment) -> str:
    if not environment.nodes:
        return _known(environment, "numa_nodes")
    nodes = (
        f"node {node.number}: processors {node.processors or 'none'}, "
        f"{format_bytes(node.available_bytes)} available of {format_bytes(node.memory_bytes)}"
        for node in environment.nodes
    )
    return f"{len(environment.nodes)}; {'; '.join(nodes)}"


def _huge_pool(huge: HugePages, pages: int) -> str:
    free = "n/a" if huge.hugetlb_free_pages is None else f"{huge.hugetlb_free_pages:,}"
    return f"{free} free of {pages:,} pages of {format_bytes(huge.hugetlb_page_bytes)}"


def _memory(device: Device) -> str:
    return f"{format_bytes(device.memory_free_bytes)} free of {format_bytes(device.memory_total_bytes)}"


def _link_now(link: Link) -> str:
    now = link_text(link)
    return now if now in ("n/a", link_text(link, at_best=True)) else f"{now} (an idle link slows down to save power)"


def _link_at_best(link: Link) -> str:
    """``PCIe Gen5 x16, at most 57.6 GB/s of payload each way``."""
    return (
        f"{link_text(link, at_best=True)}, at most {format_bandwidth(link.limit_bytes_per_second)} of payload each way"
    )


def _packet(device: Device) -> list[Fact]:
    if device.link is None or device.link.kind != "pcie":
        return []
    size = device.link.max_payload_bytes
    reason = device.missing.get("link.max_payload_bytes")
    assumed = f"{format_bytes(PACKET_PAYLOAD_BYTES)}, assumed" + (f" ({reason})" if reason else "")
    return [("Largest packet payload", assumed if size is None else f"{format_bytes(size)}, as the GPU is set")]


def _bar1(device: Device, size: int) -> str:
    return format_bytes(size) + _BAR1_COVERS[device.bar1_covers_memory]


def _errors(errors: LinkErrors) -> str:
    """Counts; kinds that are not known for the same reason share it."""
    counts = [
        f"{getattr(errors, kind):,} {words}" for kind, words in KINDS.items() if getattr(errors, kind) is not None
    ]
    unknown: dict[str, list[str]] = {}
    for kind, reason in errors.missing.items():
        unknown.setdefault(reason, []).append(KINDS[kind])
    return "; ".join([*counts, *(f"n/a: {', '.join(kinds)} ({reason})" for reason, kinds in unknown.items())])


SEVERITY_WORDS: Mapping[Severity, str] = {
    "critical": "✕ Critical",
    "warning": "⚠ Warning",
    "note": "ℹ Note",
    "good": "✓ Good",
}
"""Severity → word with a sign, the worst first: never shown by colour alone."""

FIRST = 3
"""Figures, and findings, that stand beside the verdict; the rest comes later."""
PRINTED_ROWS = 30
"""A longer table is not printed: its figures are in the file."""

_UNFINISHED: Mapping[Status, str] = {
    "running": "is still going",
    "failed": "failed",
    "cancelled": "was cancelled",
    "interrupted": "was interrupted",
}


def caveats(run: Run) -> list[str]:
    """What a reader must know before the figures: an unfinished run, a recording of another machine, the host model,
    what a trace did not record."""
    notes = []
    if run.status in _UNFINISHED:
        notes.append(_unfinished(run))
    if run.recording:
        notes.append("Recording: a real run that ships with PinScope. It was not measured on your machine.")
    if run.lab == "host":
        notes.append(HOST_MODEL_NOTE)
    return [*notes, *gaps(run)]


def gaps(run: Run) -> tuple[str, ...]:
    """What a trace did not record: its verdict and its figures are without that."""
    return run.notes if isinstance(run, TraceRun) else ()


def further_notes(run: Run) -> tuple[str, ...]:
    """Notes of a run that are no :func:`caveats`."""
    return () if gaps(run) else run.notes


def _unfinished(run: Run) -> str:
    """How the run ended, on what its figures rest, and why."""
    if run.status == "running":
        rests = "the figures come from what it has stored so far"
    elif run.observations:
        rests = "the figures come from what it had stored until then"
    else:
        rests = "nothing was measured until then"
    said = f"This run {_UNFINISHED[run.status]}: {rests}."
    return f"{said} Reason: {run.error.rstrip('.')}." if run.error else said


def verdict(document: Document) -> str:
    """The verdict, or why there is none."""
    unfinished = _UNFINISHED.get(document.run.status)
    why = f"the run {unfinished}" if unfinished else "too little was measured"
    return document.reading.verdict or f"No answer: {why}."


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """Findings, the worst first."""
    order = list(SEVERITY_WORDS)
    return sorted(findings, key=lambda finding: order.index(finding.severity))


def quantity_text(quantity: Quantity) -> str:
    """A quantity's value and how well it is known, or ``n/a`` and why."""
    return f"{quantity}: {quantity.reason}" if quantity.value is None and quantity.reason else str(quantity)


def table_texts(table: Table) -> list[list[str]]:
    """The cells of a table as texts, each with its unit; of an unknown value what is said of it instead."""
    nothing = (None,) * len(table.rows)
    reasons = [table.missing.get(column, nothing) for column in table.columns]
    return [
        [
            (why[number] if value is None else None) or format_value(value, unit)
            for value, unit, why in zip(row, table.units, reasons, strict=True)
        ]
        for number, row in enumerate(table.rows)
    ]


def answer_tables(reading: Reading) -> tuple[Table, ...]:
    """The tables that stand right below the verdict: up to the last with bars."""
    tables = reading.tables
    return tables[: max((place for place, table in enumerate(tables, start=1) if table.bar), default=0)]


def further_tables(reading: Reading) -> tuple[Table, ...]:
    """The others."""
    return reading.tables[len(answer_tables(reading)) :]


BAR_LETTERS = 20


def barred(table: Table) -> tuple[tuple[str, ...], list[list[str]], list[int]]:
    """A table as texts with its bars, drawn with letters: headings, rows, and which columns hold numbers."""
    texts = table_texts(table)
    numbers = [column for column, unit in enumerate(table.units) if unit != "text"]
    if not table.bar:
        return table.columns, texts, numbers
    place = table.columns.index(table.bar)
    rows = [
        [*cells[:place], format_bar(share if isinstance(share, float) else None, BAR_LETTERS), *cells[place:]]
        for share, cells in zip((row[place] for row in table.rows), texts, strict=True)
    ]
    moved = [column + (column >= place) for column in numbers]
    return (*table.columns[:place], "", *table.columns[place:]), rows, moved


def place(run: Run) -> str:
    """Where a run was measured: the host model, or the names of the GPUs that it used or watched."""
    devices = [run.gpu] if run.gpu else run.environment.devices if run.lab in {"live", "traced"} else []
    names = ", ".join(dict.fromkeys(device.name for device in devices))
    return f"{LAB_TITLES[run.lab]}: {names}" if names else LAB_TITLES[run.lab]


def called(run: Run) -> str:
    """What its user calls it: a star where others are compared with it, its name, and its tags."""
    return " ".join(filter(None, ("★" if run.baseline else "", run.name, *(f"#{tag}" for tag in run.tags))))


def size_word(run: Run) -> str | None:
    """``quick`` or ``full``; ``None`` for a kind of run that has no size."""
    if not isinstance(run, ExperimentRun):
        return None
    return "quick" if run.quick else "full"


def run_facts(run: Run) -> list[Fact]:
    """What was run, where and when."""
    size = size_word(run)
    return [
        ("Run", run.id),
        *((word, text) for word, text in (("Called", called(run)), ("Note", run.note)) if text),
        ("Experiment", f"{run.experiment}, {size}" if size else run.experiment),
        ("Measured on", place(run)),
        ("Status", run.status),
        ("Started", f"{run.created_at:%Y-%m-%d %H:%M:%S %Z}"),
        ("Took", format_seconds((run.finished_at - run.created_at).total_seconds() if run.finished_at else None)),
        ("Observations", f"{run.observations:,}"),
        *([("Takes at most", _budget_text(run.budget))] if isinstance(run, ExperimentRun) else []),
        ("Measured by PinScope", version_text(run.environment)),
    ]


def _budget_text(budget: Budget) -> str:
    return (
        f"{format_bytes(budget.pinned_bytes)} pinned, {format_bytes(budget.pageable_bytes)} pageable, "
        f"{format_bytes(budget.device_bytes)} device memory"
    )


def parameter_facts(document: Document) -> list[Fact]:
    """Parameters by title, with their units."""
    fields: Mapping[str, Any] = document.parameter_schema.get("properties", {})
    facts = []
    for name, value in document.run.params.items():
        described = fields.get(name, {})
        facts.append((str(described.get("title", name)), _parameter_text(value, str(described.get("unit", "text")))))
    return facts


def _parameter_text(value: Any, unit: str) -> str:
    if isinstance(value, list | tuple) and not value:
        return "none"
    if isinstance(value, list | tuple) and unit == "command":
        return one_line(shlex.join(map(str, value)))
    if isinstance(value, list | tuple):
        return ", ".join(_parameter_text(item, unit) for item in value)
    if value is None or isinstance(value, str | int | float):
        return format_value(value, unit)
    return str(value)
