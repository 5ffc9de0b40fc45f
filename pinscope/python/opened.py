"""A run in a program of the user's own: its figures and findings, frames of pandas, charts and files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pinscope.analysis.cells import frame
from pinscope.errors import BadInput
from pinscope.experiments.registry import cells_of, checked_rows
from pinscope.records import run as records
from pinscope.records.run import Attachment, Finding, Quantity, Reading, Table
from pinscope.report.facts import Document, by_severity, called, open_document, place
from pinscope.report.markdown import render_markdown
from pinscope.report.write import write_report
from pinscope.store.attachments import attached_by
from pinscope.store.bundle import SUFFIX, BundleReader, open_bundle, write_bundle
from pinscope.store.documents import StoredRow, checked_labels
from pinscope.store.store import Store
from pinscope.text import one_line
from pinscope.tracing.limits import exceeded, parse_threshold
from pinscope.tracing.sites import seen_in
from pinscope.units import format_precision, format_value

if TYPE_CHECKING:
    import pandas as pd

    from pinscope.charts.marks import Chart

PAGE = (
    '<iframe srcdoc="{page}" title="{title}" sandbox="allow-scripts allow-downloads" loading="lazy" '
    'style="width: 100%; height: 640px; border: 0"></iframe>'
)
"""A report in a notebook: its scripts reach neither the notebook nor, by the report's own policy, any network."""


class Figure(Quantity):
    """A figure of a headline, in SI units: ``float(figure)``, with the interval from ``low`` to ``high``."""

    def __float__(self) -> float:
        if isinstance(self.value, int | float):
            return float(self.value)
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
        return f"{format_value(self.value, self.unit)} {format_precision(self.spread, self.repeats)}".rstrip()

    def __repr__(self) -> str:
        return f"<{self.name}: {self}>"


class Answer:
    """What was concluded: of a run, or of a plan."""

    @property
    def reading(self) -> Reading:
        """Verdict, headline, tables and findings, as they are made."""
        raise NotImplementedError

    @property
    def verdict(self) -> str | None:
        """The answer in one sentence."""
        return self.reading.verdict

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What was concluded, with evidence and advice; the severest first."""
        return tuple(by_severity(self.reading.findings))

    @property
    def figures(self) -> Mapping[str, Figure]:
        """Key → figure; a key, such as ``pinned.h2d.rate``, is the same in all runs of an experiment."""
        made = (Figure.model_validate(dict(quantity)) for quantity in self.reading.headline)
        return {figure.key or figure.name: figure for figure in made}

    @property
    def tables(self) -> Mapping[str, pd.DataFrame]:
        """Title → table, as pages show it; a heading says its unit."""
        return {table.title: _frame(table) for table in self.reading.tables}


def _frame(table: Table) -> pd.DataFrame:
    import pandas as pd  # noqa: PLC0415 - it takes a third of a second to import

    units = ("" if unit in ("text", "count") else f" ({unit})" for unit in table.units)
    return pd.DataFrame(
        list(table.rows), columns=[f"{heading}{unit}" for heading, unit in zip(table.columns, units, strict=True)]
    )


class Run(Answer):
    """A run, and what follows from it, made when it is asked for.

    Attributes:
        record: what is kept of it beside its observations: id, name, environment, parameters, status.
        bundle: the file that it is read from each time, which must stay where it is; ``None``: the database.
    """

    def __init__(self, record: records.Run, bundle: Path | None = None) -> None:
        self.record = record
        self.bundle = bundle

    def _opened(self) -> AbstractContextManager[Store | BundleReader]:
        return open_bundle(self.bundle) if self.bundle else Store()

    def _parts(self, run: records.Run, attachment: Attachment) -> Iterator[bytes]:
        with self._opened() as source:
            yield from source.parts(run, attachment)

    @property
    def id(self) -> str:
        """As every command takes it."""
        return self.record.id

    @property
    def name(self) -> str | None:
        """What its user calls it."""
        return self.record.name

    @cached_property
    def observations(self) -> Sequence[StoredRow]:
        """Its observations as stored, in the order measured."""
        with self._opened() as source:
            return list(source.observations(self.id) if isinstance(source, Store) else source.rows(self.record))

    @cached_property
    def rows(self) -> pd.DataFrame:
        """Every observation, warm-ups too, a column a field; names end in their unit."""
        import pandas as pd  # noqa: PLC0415 - it takes a third of a second to import

        return pd.DataFrame.from_records(list(self.observations))

    @cached_property
    def cells(self) -> pd.DataFrame:
        """All counted observations of one combination of labels in a row, times and rates; names end in their unit: see
        :func:`~pinscope.analysis.cells.frame`.

        Raises:
            BadInput: the run is a timeline or a trace, or its rows make no sense.
        """
        return frame(cells_of(self.record, self.observations))

    @cached_property
    def document(self) -> Document:
        """What its reports are made from."""
        attached = attached_by(self.record, self._parts)
        return open_document(self.record, self.observations, attached=attached, when_looked_at=True)

    @cached_property
    def _without_charts(self) -> Document:
        return open_document(self.record, self.observations, with_charts=False)

    @property
    def reading(self) -> Reading:
        """Verdict, headline, tables and findings."""
        return (self.__dict__.get("document") or self._without_charts).reading

    @property
    def charts(self) -> Mapping[str, Chart]:
        """Key → chart; its ``figure`` is one of Plotly."""
        return {chart.key: chart for chart in self.document.charts}

    def exceeded(self, **limits: str | Literal[True]) -> list[str]:
        """A line for each limit that a trace exceeds: ``pageable="64KiB"``, ``idle="5%"``, ``held="0.5s"``,
        ``error=True``, as ``pinscope trace --fail-on`` takes them.

        Raises:
            BadInput: the run is no trace, or a limit makes no sense.
        """
        if not isinstance(self.record, records.TraceRun):
            raise BadInput(f"limits are those of a trace, and {self.id} is of kind {self.record.kind}")
        thresholds = [
            parse_threshold(figure if most is True else f"{figure}={most}") for figure, most in limits.items()
        ]
        seen = seen_in(self.record, checked_rows(self.record.experiment, self.observations))
        return [line.removeprefix("--fail-on").lstrip(" :") for line in exceeded(seen, thresholds)]

    def save(self, path: str | Path) -> Path:
        """Write a report, or with the suffix ``.pinscope`` a bundle, to a file that is not there yet; the file.

        Raises:
            BadInput: no such format, no such folder, or there is such a file.
        """
        path = Path(path)
        if path.suffix.lower() == SUFFIX:
            write_bundle(path, [(self.record, self.observations)], self._parts)
        else:
            write_report(path, [self.document])
        return path

    def edit(self, **labels: Any) -> Run:
        """The run with another ``name``, ``tags``, ``note`` or ``baseline``, as it is stored from now on.

        Raises:
            BadInput: a label that could not be written, a recording, or a run that is in no database.
        """
        changes = checked_labels(**labels)
        with Store() as store:
            return Run(store.update(self.id, **changes))

    def __repr__(self) -> str:
        words = (self.record.experiment, self.id, called(self.record), place(self.record), self.record.status)
        return f"<pinscope {', '.join(filter(None, words))}: {one_line(self.record.verdict or 'no verdict')}>"

    def _repr_html_(self) -> str:
        from pinscope.report.html import render_html  # noqa: PLC0415 - Plotly takes its time to import

        page = b"".join(render_html([self.document], with_rows=False)).decode()
        return PAGE.format(page=escape(page), title=escape(self.document.title))

    def _repr_markdown_(self) -> str:
        return render_markdown([self._without_charts]).decode()


class Runs(tuple[Run, ...]):
    """Runs, the newest first."""

    @property
    def latest(self) -> Run:
        """The one that was started last.

        Raises:
            LookupError: there is none.
        """
        if not self:
            raise LookupError("there is no such run")
        return self[0]

    def __repr__(self) -> str:
        return "\n".join(map(repr, self)) or "<no pinscope run>"
