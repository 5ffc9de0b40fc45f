"""What is kept as a run: an execution of an experiment, a timeline, or a trace; and what a reading of it is made of.

Raw values are kept; statistics, verdicts and findings are derived.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal, Protocol, Self, get_args

from pydantic import Field, computed_field, model_validator

from pinscope.records.base import ATTACHMENTS, LAYOUT_CHARACTERS, MOST_FIGURES, Budget, Moment, Record
from pinscope.records.environment import Device, Environment
from pinscope.records.labels import LabelFields
from pinscope.units import format_measured

FORMAT = 2
"""Newest version of the run format, in bundles and JSON. Additive changes keep it; :attr:`Run.format` says which a run
has."""

LabKind = Literal["cuda", "host"]
"""Where experiments run: on a GPU or on the host model."""
Origin = Literal["cuda", "host", "live", "traced"]
"""Where the figures of a run come from: a lab, a machine that was watched while nothing was run on it, or a program of
the user's own."""
Status = Literal["running", "done", "failed", "cancelled", "interrupted"]
STATUSES: tuple[Status, ...] = get_args(Status)
HostMemory = Literal["pageable", "pinned", "write_combined", "mapped", "registered", "managed"]
Backing = Literal["4k", "thp", "hugetlb", "hugetlb_1g", "shm", "shm_open"]
"""``hugetlb``: pages of the kernel's usual size, 2 MiB on x86; ``hugetlb_1g``: of 1 GiB. ``shm``: shared memory
without a name (memfd_create); ``shm_open``: a POSIX segment of /dev/shm."""
DriverMemory = Literal["created", "created_pieces", "pool", "pool_granted"]
"""Host memory by the driver's own calls: ``cuMemCreate`` with the location HOST_NUMA, in one piece or in many of the
least granularity; a host memory pool, to which the GPU was granted access or not."""
Cache = Literal["cold", "warm"]
"""Whether the processor's caches may hold the memory: it wrote it right before, or not since it left them."""
Direction = Literal["h2d", "d2h", "bidirectional"]
OneWay = Literal["h2d", "d2h"]
ONE_WAYS: tuple[OneWay, ...] = ("h2d", "d2h")

LAB_TITLES: Mapping[Origin, str] = {
    "cuda": "GPU (CUDA)",
    "host": "host model (no GPU)",
    "live": "live view",
    "traced": "traced program",
}
"""How a lab is named wherever it is shown."""

HOST_MODEL_NOTE = (
    "The host model stands in for a GPU: threads copy between buffers in host memory as copy engines would. "
    "Its figures describe this machine's memory, not a GPU; never compare them with a GPU run."
)


Positive = Annotated[int, Field(gt=0)]
"""A size or a number that a reading divides by."""
Lasted = Annotated[float, Field(gt=0)]
"""Seconds that something took: never none at all."""


class Observation(Record):
    """One raw reading. Experiments subclass it: labels first, then values with the unit in the name.

    Rows from elsewhere are validated as observations before they are read. What a reading relies on stands here: in
    the types of the fields, and in :meth:`needs`.
    """

    repeat: int
    """0, 1, 2 … within one combination of labels."""
    warmup: bool
    """True for readings taken before the measurement proper; kept, never counted."""
    host_node: int | None = None
    """NUMA node on which the run's host buffers lay; ``None`` where the kernel does not tell, or on several."""
    host_nodes: str | None = None
    """These, by comma, where there were several."""

    def needs(self) -> tuple[str, Iterable[str]]:
        """What such a row is called, and the fields that it must have though others have not."""
        return "a row", ()

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        what, names = self.needs()
        if lacking := [name for name in names if getattr(self, name) is None]:
            raise ValueError(f"{what} without {lacking[0]}")
        return self


class Process(Record):
    """A process, distinct from later ones that got the same pid."""

    pid: int
    """Its number in that namespace."""
    started: float
    """Start time in clock ticks since boot (field 22 of /proc/PID/stat)."""
    boot_id: str
    """/proc/sys/kernel/random/boot_id of the boot it belongs to."""
    namespace: str | None = None
    """The pid namespace in which it has this pid (containers have their own); ``None`` if that is not known."""


class Progress(Record):
    """How far a run is."""

    fraction: float = 0.0
    """0 to 1."""
    message: str = ""
    """What it does now, one line."""
    waiting_for: str | None = None
    """Set while the run queues: what holds the GPU."""
    at: float | None = None
    """When the child said so: CLOCK_MONOTONIC of its machine, which containers share. Told every few seconds."""


class Attachment(Record):
    """A table of many events that a run carries beside its observations.

    It is kept in parts of a few megabytes, each of them a Parquet file.
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,39}$")]
    """Unique in its run; part of the names of files in a bundle."""
    rows: Annotated[int, Field(ge=0)]
    """Of all its parts."""
    parts: Annotated[int, Field(ge=0)]
    """How many are stored."""
    bytes: Annotated[int, Field(ge=0)]
    """Of all its parts, as they are stored."""


Cell = float | int | str | bool | None


class Quantity(Record):
    """A named number. ``None`` means unknown, and ``reason`` says why."""

    name: str
    """What it is, for people."""
    value: Cell
    """The number, text or truth value, in ``unit``."""
    unit: str
    """``bytes``, ``bytes/second``, ``seconds``, ``share``, ``ratio``, ``count`` or ``text``."""
    spread: float | None = None
    """What stands after ±: how far the value of another run on this host will lie from ``value`` at most, relative to
    it, 19 times in 20."""
    repeats: int | None = None
    """Of how many repeats it is the median, where they are too few for a ``spread``."""
    reason: str | None = None
    """Why ``value`` is ``None``."""
    key: str | None = None
    """Which figure of a run's headline it is, such as ``pinned.h2d.rate``, whatever its size, its value and the words
    of ``name``: unique in the run, and the same in all runs of its experiment."""

    @property
    def number(self) -> float | None:
        """The value, where it is a finite number."""
        if isinstance(self.value, str | bool | None) or not math.isfinite(self.value):
            return None
        return float(self.value)

    def __float__(self) -> float:
        if self.number is not None:
            return self.number
        raise ValueError(f"{self.name} is not known: {self.reason}" if self.value is None else f"{self.name} is a text")

    @property
    def low(self) -> float | None:
        """The least that another run on this host will say, 19 times in 20; ``None`` where that is not known."""
        return None if self.spread is None else float(self) * (1 - self.spread)

    @property
    def high(self) -> float | None:
        """The most, likewise."""
        return None if self.spread is None else float(self) * (1 + self.spread)

    def __str__(self) -> str:
        return format_measured(self.value, self.unit, self.spread, self.repeats)

    def __repr__(self) -> str:
        return f"<{self.name}: {self}>"


class RunFigures(Record):
    """The figures of a run's cells, as the PinScope that measured it read them: so a fleet is read without its rows."""

    layout: Annotated[str, Field(max_length=LAYOUT_CHARACTERS)]
    """Which these are, as JSON (:class:`pinscope.analysis.figures.Layout`)."""
    values: Annotated[tuple[float | None, ...], Field(max_length=MOST_FIGURES)]
    """In SI units; ``None`` where the run has none."""
    facts: Annotated[Mapping[str, Annotated[str, Field(max_length=200)]], Field(max_length=20)] = {}
    """What its rows say of its surroundings."""


class Run(LabelFields):
    """What every run has, of whatever kind it is. Each kind is a subclass; :func:`parse_run` finds it."""

    kind: Literal["experiment", "timeline", "trace"]
    """What the run is; documents of version 0.1.0 have none."""
    id: str
    """Opaque and unique; a beginning that fits one run only will do on the command line."""
    experiment: str
    """Name of the experiment, or of the kind itself."""
    lab: Origin
    """``cuda`` (a GPU), ``host`` (the host model), ``live`` (the machine was watched) or ``traced`` (a program)."""
    status: Status
    """``interrupted``: the process that measured it ended before the run did."""
    params: Mapping[str, Any]
    """The validated parameters, JSON-ready."""
    environment: Environment
    """The machine on which it ran."""
    created_at: Moment
    """When it was started."""
    finished_at: Moment | None = None
    """When it ended; ``None`` while it runs."""
    error: str | None = None
    """Why it failed, one line."""
    notes: tuple[str, ...] = ()
    """What a reader must know: sizes left out, kinds not possible here and why."""
    progress: Progress = Progress()
    """How far it is."""
    process: Process | None = None
    """The process that measures, while it runs."""
    recording: bool = False
    """True for a run that ships with PinScope."""
    observations: int = 0
    """How many are stored."""
    verdict: str | None = None
    """The answer in one sentence, as it was read when the run ended: for lists, which do not open every run. Where a
    run is opened it is read anew. ``None`` for a run that did not end by itself or had too little for an answer."""
    figure: Quantity | None = None
    """The first figure of its headline, likewise."""
    attachments: Annotated[tuple[Attachment, ...], Field(max_length=ATTACHMENTS)] = ()
    """Tables of many events that it carries."""
    figures: RunFigures | None = None
    """Its figures, where it comes with them; a run in a database keeps them apart."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def format(self) -> int:
        """Oldest version of the format that can hold it: version 1 knows runs of experiments without attachments."""
        return FORMAT

    def attachment(self, name: str) -> Attachment | None:
        """The attachment of that name, if it carries one."""
        return next((attachment for attachment in self.attachments if attachment.name == name), None)

    @property
    def parts(self) -> dict[str, int]:
        """Name of each attachment → number of its parts."""
        return {attachment.name: attachment.parts for attachment in self.attachments}

    @property
    def gpu(self) -> Device | None:
        """The GPU that it measured; ``None`` if it measured none."""
        return None

    @property
    def expected_seconds(self) -> float | None:
        """Rough length, known beforehand; ``None`` if it goes on until somebody ends it."""
        return None


class ExperimentRun(Run):
    """One execution of an experiment."""

    kind: Literal["experiment"] = "experiment"
    lab: LabKind
    device: int
    """GPU index; 0 on the host lab."""
    quick: bool
    """Made with the preset of fewer sizes and repeats."""
    budget: Budget
    """What the run takes at most, worked out before it began."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def format(self) -> int:
        """Oldest version of the format that can hold it."""
        return 2 if self.attachments else 1

    @property
    def gpu(self) -> Device | None:
        """The GPU that it measured; ``None`` on the host model."""
        return self.environment.device(self.device) if self.lab == "cuda" else None

    @property
    def expected_seconds(self) -> float:
        """Rough length, from its budget."""
        return self.budget.seconds


class TimelineRun(Run):
    """A live view that was kept. Nothing was run, so it has no device, budget or size."""

    kind: Literal["timeline"] = "timeline"
    experiment: Literal["timeline"] = "timeline"
    lab: Literal["live"] = "live"

    @property
    def expected_seconds(self) -> float | None:
        """How long it was asked to watch; ``None``: until somebody ends it."""
        seconds = self.params.get("for_seconds")
        return float(seconds) if isinstance(seconds, int | float) else None


class TraceRun(Run):
    """A program that was traced: its copies, its pinned memory, and the lines that they came from."""

    kind: Literal["trace"] = "trace"
    experiment: Literal["trace"] = "trace"
    lab: Literal["traced"] = "traced"


_KINDS: Mapping[Any, type[Run]] = {"experiment": ExperimentRun, "timeline": TimelineRun, "trace": TraceRun}


def parse_run(fields: Mapping[str, Any]) -> Run:
    """A run from its fields, as JSON or Python values. Version 0.1.0 wrote no kind, and gave a timeline zeros for what
    it does not have.

    Raises:
        pydantic.ValidationError: they are no run.
    """
    kind = fields.get("kind", "timeline" if fields.get("lab") == "live" else "experiment")
    return (_KINDS.get(kind, Run) if isinstance(kind, str) else Run).model_validate(fields)


Severity = Literal["good", "note", "warning", "critical"]
"""By what it costs to ignore the finding, on the machine where it was found.

``critical``: data is wrong, memory runs out, or a program fails. ``warning``: a program that does the ordinary thing
takes at least :data:`COSTLY` times as long, or as much memory, as it need. ``note``: less than that, or only in a case
that the title names. ``good``: nothing.
"""
COSTLY = 1.25
"""How many times as long, or as much, something must take for a warning."""


class _Explained(Protocol):
    """A record that says why figures of it are ``None``."""

    @property
    def missing(self) -> Mapping[str, str]: ...


MOST_OFF, VARIES = 0.5, "its repeats vary too much"
"""A figure that may be off by more, relative to it, is none; and why it is none."""


def quantity(
    name: str,
    value: Cell,
    unit: str,
    *,
    reason: str | None = None,
    spread: float | None = None,
    repeats: int | None = None,
    key: str | None = None,
) -> Quantity:
    """A :class:`Quantity`; of a known value without the ``reason`` why it would be unknown.

    What may be off by more than :data:`MOST_OFF` is not known.
    """
    if spread is not None and spread > MOST_OFF:
        value, spread, reason = None, None, VARIES
    reason = reason if value is None else None
    return Quantity(name=name, value=value, unit=unit, reason=reason, spread=spread, repeats=repeats, key=key)


def known(name: str, record: _Explained, field: str, unit: str) -> Quantity:
    """A figure of a record, with the reason that the record gives where it is unknown."""
    return quantity(name, getattr(record, field), unit, reason=record.missing.get(field))


class Finding(Record):
    """A conclusion with its evidence and what to do next."""

    rule: str
    """Stable name of the rule, such as ``link-below-best``."""
    severity: Severity
    """``good``, ``note``, ``warning`` or ``critical``."""
    title: str
    """The conclusion, with the number that decides."""
    detail: str
    """What it rests on, one or two sentences."""
    evidence: tuple[Quantity, ...]
    """The numbers behind it."""
    advice: str
    """What to do next."""
    code: str | None = None
    """Code to paste that does what ``advice`` says, where there is such."""


def finding(
    severity: Severity, rule: str, *evidence: Quantity, title: str, detail: str, advice: str, code: str | None = None
) -> Finding:
    """A :class:`Finding`, its evidence one after the other."""
    return Finding(
        rule=rule, severity=severity, title=title, detail=detail, evidence=evidence, advice=advice, code=code
    )


def costing(times: float) -> Severity:
    """The severity of what makes something take so many times as long, or as much memory, as it need."""
    return "warning" if times >= COSTLY else "note"


good = partial(finding, "good", advice="Nothing to do.")
note = partial(finding, "note")
warning = partial(finding, "warning")
critical = partial(finding, "critical")


class Table(Record):
    """A plain table: every cell is a value in the unit of its column."""

    title: str
    """What it shows."""
    columns: tuple[str, ...]
    """A heading for each column."""
    units: tuple[str, ...]
    """A unit for each column, as in a quantity."""
    rows: tuple[tuple[Cell, ...], ...]
    """One list of cells a row."""
    note: str = ""
    """What a reader must know; may be empty."""
    missing: Mapping[str, tuple[str | None, ...]] = {}
    """Heading of a column → for each row what is said where its cell is ``None``."""
    bar: str = ""
    """Heading of a column of shares that is drawn as bars, too; empty: of none."""


def table(
    title: str,
    columns: Mapping[str, str],
    rows: Iterable[Sequence[Cell]],
    note: str = "",
    missing: Mapping[str, tuple[str | None, ...]] | None = None,
    bar: str = "",
) -> Table:
    """A :class:`Table`; ``columns``: heading → unit."""
    return Table(
        title=title,
        columns=tuple(columns),
        units=tuple(columns.values()),
        rows=tuple(map(tuple, rows)),
        note=note,
        missing=missing or {},
        bar=bar,
    )


class Reading(Record):
    """What an experiment concludes from its observations. Derived, never stored."""

    verdict: str | None = None
    """The answer to the experiment's question: one sentence, with the figure that decides. ``None`` where too little
    was measured for an answer."""
    headline: tuple[Quantity, ...]
    """The figures that answer the question. A page shows the first three; what a person would repeat comes first."""
    tables: tuple[Table, ...]
    """All figures that were derived."""
    findings: tuple[Finding, ...]
    """What was concluded. Of equal severity, what costs most comes first."""
