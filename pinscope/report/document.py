"""What a report is made from: a run and everything that was derived from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pinscope.analysis.read_rows import NOTHING_ATTACHED, Attached, Row
from pinscope.charts.chart import Chart
from pinscope.experiments.registry import GONE, charts_of, checked_rows, draw_run, find_reader, method, read_run
from pinscope.records.finding import Reading
from pinscope.records.run import Run


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
