"""Reports as bytes and as files; the suffix tells the format."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

from pinscope.analysis.cells import frame
from pinscope.analysis.read_rows import Row
from pinscope.errors import BadInput, PathExists
from pinscope.experiments.registry import cells_of, read_run
from pinscope.records.finding import Reading
from pinscope.records.run import Run
from pinscope.report.document import Document
from pinscope.store.new_file import write_new
from pinscope.store.store import Store

if TYPE_CHECKING:
    import pandas as pd

# By name: most reports need neither Plotly nor Arrow, which take their time to import.
_RENDERERS: Mapping[str, tuple[str, str]] = {
    ".html": ("pinscope.report.html", "html_pieces"),
    ".md": ("pinscope.report.html", "render_markdown"),
    ".csv": ("pinscope.report.tabular", "csv_pieces"),
    ".parquet": ("pinscope.report.tabular", "parquet_pieces"),
    ".json": ("pinscope.report.json_report", "json_pieces"),
    ".perfetto.json": ("pinscope.report.perfetto", "perfetto_pieces"),
}
SUFFIXES = tuple(_RENDERERS)
"""Suffixes of the formats that can be written."""


def render(documents: Sequence[Document], suffix: str) -> bytes:
    """The report of one or several runs in the format of ``suffix``.

    Raises:
        BadInput: unknown suffix, no run, or the runs have nothing that this format could hold.
    """
    return b"".join(_pieces(documents, known_suffix(Path(f"report{suffix}"))))


def _pieces(documents: Sequence[Document], suffix: str) -> Iterable[bytes]:
    """The report a piece at a time: one for people in one piece, the observations of the others as they are read."""
    module, function = _RENDERERS[suffix]
    if not documents:
        raise BadInput("a report needs at least one run")
    content = getattr(import_module(module), function)(documents)
    return (content,) if isinstance(content, bytes) else cast("Iterable[bytes]", content)


def write_report(path: Path, documents: Sequence[Document]) -> None:
    """Write a report to a file that is not there yet; on any error nothing is left behind.

    Raises:
        BadInput: as for :func:`render`, or the folder is missing or may not be written to.
        PathExists: there is a file of that name.
        PinScopeError: the disk is full or fails.
    """
    path = Path(path)
    suffix = known_suffix(path)
    if os.path.lexists(path):  # before the work of rendering; write_new holds it for good
        raise PathExists(f"{path} is there already; PinScope does not overwrite files")
    write_new(path, _pieces(documents, suffix))


def known_suffix(path: Path) -> str:
    """The format's suffix that ends the file's name: the longest one, so ``.perfetto.json`` goes before ``.json``.

    Raises:
        BadInput: none does; the message lists those there are.
    """
    name = path.name.lower()
    fitting = [suffix for suffix in SUFFIXES if name.endswith(suffix)]
    if not fitting:
        raise BadInput(f"{path.name}: the suffix tells the format; there are: {', '.join(SUFFIXES)}")
    return max(fitting, key=len)


@dataclass(frozen=True)
class OpenedRun:
    """A run and what follows from it, made when it is asked for.

    Attributes:
        run: its record: environment, parameters, status.
        observations: its rows as stored, in the order measured.
    """

    run: Run
    observations: Sequence[Row]

    @cached_property
    def rows(self) -> pd.DataFrame:
        """Every observation, warm-ups too, a column a field."""
        import pandas as pd  # noqa: PLC0415 - it takes a third of a second to import

        return pd.DataFrame.from_records(list(self.observations))

    @cached_property
    def cells(self) -> pd.DataFrame:
        """All counted observations of one combination of labels in a row: see :func:`~pinscope.analysis.cells.frame`.

        Raises:
            BadInput: the run is a timeline or a trace, or its rows make no sense.
        """
        return frame(cells_of(self.run, self.observations))

    @cached_property
    def reading(self) -> Reading:
        """Verdict, headline, tables and findings."""
        return read_run(self.run, self.observations)


def open_run(run_id: str) -> OpenedRun:
    """The run of that id: see :func:`pinscope.open_run`."""
    with Store() as store:
        run = store.run(run_id)
        return OpenedRun(run, list(store.observations(run.id)))
