"""A stored run with all that is derived from it, ready for the page, the report and the command line."""

from __future__ import annotations

from collections.abc import Sequence

from pinscope.experiments.contract import Row
from pinscope.experiments.registry import checked_rows, draw_run, find_reader, method, read_run
from pinscope.records.finding import Reading
from pinscope.records.run import Run
from pinscope.report.document import Document


def open_document(run: Run, rows: Sequence[Row], with_charts: bool = True) -> Document:
    """The run with its reading and, if asked for, its charts; both are empty for a run without rows.

    Where they rest on the first observations only, a note of the run says so.

    Raises:
        UnknownName: this version does not know the run's kind.
        BadInput: the rows are not observations of that kind.
    """
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
        reading=read_run(run, read) if read else Reading(headline=(), tables=(), findings=()),
        charts=draw_run(run, read) if read and with_charts else [],
        rows=rows,
        parameter_schema=kind.Params.model_json_schema(),
    )
