"""What a report is made from: a run and everything that was derived from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pinscope.analysis.read_rows import NOTHING_ATTACHED, Attached, Row
from pinscope.experiments.contract import Params
from pinscope.experiments.registry import GONE, charts_of, checked_rows, draw_run, find_reader, method, read_run
from pinscope.records.finding import Reading
from pinscope.records.parameters import Inputs
from pinscope.records.run import LabKind, Run
from pinscope.units import exact_bytes

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
        charts: its figures.
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


def open_document(
    run: Run,
    rows: Sequence[Row],
    with_charts: bool = True,
    when_looked_at: bool = False,
    attached: Attached = NOTHING_ATTACHED,
) -> Document:
    """The run with its reading and, if asked for, its charts; both are empty for a run without rows.

    ``when_looked_at``: a chart after the first is drawn when it is looked at. ``attached``: the attachments of the run.

    Of a kind that is no more, the question says what became of it, and nothing is read from its rows.

    Where they rest on the first observations only, a note of the run says so.

    Raises:
        UnknownName: this version does not know the run's kind.
        BadInput: the rows are not observations of that kind.
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
        charts=(charts_of if when_looked_at else draw_run)(run, read, attached) if read and with_charts else [],
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
    return sorted(parameters_of(params), key=lambda parameter: parameter.name in Params.model_fields)


def parameter_defaults(params: type[Inputs], lab: LabKind) -> Iterator[tuple[Parameter, str, str]]:
    """Each parameter in the order of the form, with its default and that with ``--quick``, as people read them."""
    full, quick = params.preset(lab, False), params.preset(lab, True)
    for parameter in form_parameters(params):
        name = parameter.name
        yield parameter, parameter.default(getattr(full, name)), parameter.default(getattr(quick, name))


def parameters_of(params: type[Inputs]) -> list[Parameter]:
    """All parameters, in the order of the fields."""
    return [Parameter(name, schema) for name, schema in params.model_json_schema()["properties"].items()]
