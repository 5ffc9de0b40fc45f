"""Timelines in the Chrome trace event format, which ui.perfetto.dev and chrome://tracing open.

Format: "Trace Event Format" (Google, 2016): complete events ``ph = X`` with ``ts`` and ``dur`` in microseconds,
metadata events ``ph = M`` that name and order processes and threads.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import pinscope
from pinscope.errors import BadInput
from pinscope.experiments.overlap.reading import Span, spans
from pinscope.records.limits import SPANS
from pinscope.records.run import LAB_TITLES, TraceRun
from pinscope.report.document import Document
from pinscope.report.perfetto_trace import trace_events

Event = dict[str, Any]

_PIECE = 1000
"""Events that are written at once."""
_LANES = {"copy": (1, "copies", "copy"), "compute": (2, "kernels", "kernel")}
"""Lane → thread id, thread name, word for one of its spans."""


def perfetto_pieces(documents: Sequence[Document]) -> Iterator[bytes]:
    """All kept timelines, a piece at a time. Of ``overlap`` a process per combination, a thread for its copies and
    one for its kernels; of a trace see :func:`trace_events`.

    Raises:
        BadInput: a run without timeline is among them.
    """
    lines, separator = (json.dumps(event, ensure_ascii=False, allow_nan=False) for event in _all(documents)), ""
    yield b'{"traceEvents": [\n'
    while piece := ",\n".join(islice(lines, _PIECE)):
        yield (separator + piece).encode()
        separator = ",\n"
    about = {"producer": f"PinScope {pinscope.__version__}", "runs": ", ".join(each.run.id for each in documents)}
    yield f'\n], "displayTimeUnit": "ms", "otherData": {json.dumps(about)}}}\n'.encode()


def _all(documents: Sequence[Document]) -> Iterator[Event]:
    """The events of all runs, whose processes have numbers of their own."""
    processes = 0
    for document in documents:
        name = document.run.id if len(documents) > 1 else ""
        if isinstance(document.run, TraceRun):
            events = trace_events(document, f"{name}: " if name else "", processes + 1)
        else:
            events = _combinations(document, name, processes + 1)
        for event in events:
            processes += event["name"] == "process_name"
            yield event


def _combinations(document: Document, name: str, first_process: int) -> Iterator[Event]:
    """The timelines that a run keeps among its observations."""
    kept = spans(islice((row for row in document.rows if row.get("kind") == "span"), SPANS + 1))
    if len(kept) > SPANS:
        raise BadInput(f"run {document.run.id} has more than {SPANS:,} copies and kernels, too many for a timeline")
    if not kept:
        raise BadInput(
            f"run {document.run.id} has no timeline of copies and kernels; runs of overlap and traces have one"
        )
    lab = LAB_TITLES[document.run.lab]
    yield from _events(f"{name}, {lab}" if name else lab, kept, first_process)


def _events(prefix: str, kept: Sequence[Span], first_process: int) -> Iterator[Event]:
    """Metadata, then spans, of every combination in the order in which they were measured."""
    combinations: dict[tuple[Any, ...], list[Span]] = {}
    for span in kept:
        combinations.setdefault((span.direction, span.balance, span.recipe), []).append(span)
    for process, ((direction, balance, recipe), members) in enumerate(combinations.items(), start=first_process):
        name = f"{direction}, {balance.replace('_', '-')}: {recipe.label} ({prefix})"
        yield _named("process_name", process, 0, {"name": name})
        yield _named("process_sort_index", process, 0, {"sort_index": process})
        for thread, lane_name, _ in _LANES.values():
            yield _named("thread_name", process, thread, {"name": lane_name})
            yield _named("thread_sort_index", process, thread, {"sort_index": thread})
        for span in sorted(members, key=lambda span: span.start_seconds):
            thread, _, word = _LANES[span.lane]
            yield {
                "name": f"{word} {span.chunk}",
                "cat": span.lane,
                "ph": "X",
                "ts": span.start_seconds * 1e6,
                "dur": (span.end_seconds - span.start_seconds) * 1e6,
                "pid": process,
                "tid": thread,
                "args": {"chunk": span.chunk},
            }


def _named(what: str, process: int, thread: int, arguments: Event) -> Event:
    return {"name": what, "ph": "M", "pid": process, "tid": thread, "args": arguments}
