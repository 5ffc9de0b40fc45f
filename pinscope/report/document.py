"""What a report is made from: a run and everything that was derived from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pinscope.charts.chart import Chart
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
    """

    run: Run
    title: str
    question: str
    method: str
    reading: Reading
    charts: Sequence[Chart]
    rows: Sequence[Mapping[str, Any]]
    parameter_schema: Mapping[str, Any] = field(default_factory=dict)
