"""A stretch of a trace for Perfetto, as the page Traces shows one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pinscope.cli.options import duration
from pinscope.errors import BadInput
from pinscope.records.run import TraceRun
from pinscope.report.document import Document
from pinscope.tracing.stretch import extent, within
from pinscope.units import format_seconds

SUFFIX = ".perfetto.json"


class PerfettoStretch:
    """What ``--start-after`` and ``--for`` of a report choose.

    Args:
        start_after: a duration from the program's start on; ``None``: nothing is left out there.
        for_: how long the stretch is; ``None``: to the end.
        output: file of the report.

    Raises:
        BadInput: no durations, or the report is not for Perfetto.
    """

    def __init__(self, start_after: str | None, for_: str | None, output: Path) -> None:
        self._begin = duration("--start-after", start_after) or 0.0
        self._length = duration("--for", for_)
        self._is_whole = start_after is None and for_ is None
        if not self._is_whole and not output.name.lower().endswith(SUFFIX):
            raise BadInput(f"--start-after and --for choose a stretch for Perfetto: the file must end in {SUFFIX}")

    def of(self, document: Document) -> Document:
        """The document with the events of the stretch only.

        Raises:
            BadInput: it is no trace, or nothing was recorded then.
        """
        if self._is_whole:
            return document
        if not isinstance(document.run, TraceRun):
            raise BadInput(f"--start-after and --for choose a stretch of a trace, and {document.run.id} is none")
        whole = extent(document.attached, document.rows)
        if whole is None:
            return document
        begin = int(self._begin * 1e9)
        end = whole.end_ns if self._length is None else begin + int(self._length * 1e9)
        if end <= whole.begin_ns or begin >= whole.end_ns:
            first, last = (format_seconds(moment / 1e9) for moment in (whole.begin_ns, whole.end_ns))
            raise BadInput(f"nothing was recorded then: events of {document.run.id} are from {first} to {last}")
        return replace(document, attached=within(document.attached, whole, begin, end))
