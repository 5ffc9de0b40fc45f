"""Timelines in the Chrome trace event format, which ui.perfetto.dev and chrome://tracing open.

Format: "Trace Event Format" (Google, 2016): complete events ``ph = X`` with ``ts`` and ``dur`` in microseconds,
metadata events ``ph = M`` that name and order processes and threads.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

import pinscope
from pinscope.errors import BadInput
from pinscope.experiments.overlap.reading import Span, spans
from pinscope.records.base import SPANS, TRACE_EVENTS
from pinscope.records.run import LAB_TITLES, TraceRun
from pinscope.report.facts import Document
from pinscope.tracing.sites import UNKNOWN_LINE, process_names
from pinscope.tracing.stretch import TABLES, Columns, collect, first_moments

Places = NDArray[np.intp]
_NEVER = -1
"""In the attachments: not recorded."""
Event = dict[str, Any]
_Lines = Mapping[Any, Event]


def trace_events(document: Document, prefix: str, process: int) -> Iterator[Event]:
    """All events of a trace, or its first :data:`TRACE_EVENTS` calls, copies and kernels, with a mark where they end.

    Args:
        document: a trace.
        prefix: stands before the names of its processes.
        process: number of its first process.

    Raises:
        BadInput: it carries no events.
    """
    attached = document.attached
    if not any(attached.rows.get(name) for name in TABLES):
        raise BadInput(f"run {document.run.id} carries no calls, copies and kernels, so that it has no timeline")
    until = first_moments(attached, TRACE_EVENTS)
    tables = {name: collect(attached, name, until) for name in (*TABLES, "pinned")}
    lines = _lines(document.rows)
    title = prefix + (" ".join(map(str, document.run.params.get("program", ()))) or "program")
    recorded = sorted(
        {int(number) for table in tables.values() if table for number in np.unique(table.get("process", 0))}
    )
    first, names = process, process_names(document.rows)
    for number in recorded:
        of_process = {name: _of_process(table, number) for name, table in tables.items()}
        owner = names.get(number, f"process {number}")
        name = f"{title}, {owner}" if len(recorded) > 1 else title
        beside = f"{prefix}{owner}, " if len(recorded) > 1 else prefix
        yield from _process_events(of_process, lines, (process, name, beside))
        process += 1 + len(_devices(of_process["copies"], of_process["kernels"]))
    if until is not None:
        name = f"PinScope left out what follows: a file holds the first {TRACE_EVENTS:,} calls, copies and kernels"
        yield {"name": name, "ph": "i", "s": "g", "ts": until / 1e3, "pid": first, "tid": 0}


def _of_process(table: Columns, process: int) -> Columns:
    """Its rows; without columns where it has none."""
    if "process" not in table:
        return table
    own = table["process"] == process
    return {name: values[own] for name, values in table.items()} if own.any() else {}


def _process_events(tables: Mapping[str, Columns], lines: _Lines, names: tuple[int, str, str]) -> Iterator[Event]:
    """All of one process of the program; ``names``: its number, its name, and what stands before those of its GPUs."""
    calls, copies, kernels = (tables[name] for name in TABLES)
    process, title, prefix = names
    calls_of = _calls_of(calls, copies)
    yield from _process(process, title)
    thread = calls.get("thread", np.empty(0, np.int64))
    # Calls of a thread lie within each other: they need no lanes.
    threads = _tracks(process, "thread", thread, np.zeros(len(thread), np.int64), (_NONE, _NONE))
    yield from _threads(process, threads.titles)
    yield from _call_spans(calls, copies, calls_of, threads, lines)
    streams = []
    for number, device in enumerate(_devices(copies, kernels), start=process + 1):
        yield from _process(number, f"{prefix}GPU {device}")
        streams.append(_streams(number, device, copies, kernels))
        yield from _threads(number, streams[-1].titles)
        yield from _gpu_spans(streams[-1], copies, kernels, lines)
    yield from _flows(copies, calls, calls_of, threads, streams)
    if pinned := tables["pinned"]:
        yield from _counter(process, "pinned memory", pinned["at_ns"], pinned["change_bytes"])


def _devices(*tables: Columns) -> list[int]:
    return sorted({int(device) for table in tables if table for device in np.unique(table["device"])})


def _lines(rows: Sequence[Mapping[str, Any]]) -> _Lines:
    """Number of a site, or file and line → the arguments that name the line."""
    places: dict[Any, Event] = {}
    for row in rows:
        if row.get("file"):
            place = {"line": _line(row["file"], row["line"])}
            if source := row.get("source_line"):
                place["source"] = source
            places[row["file"], row["line"]] = place
            if row["kind"] == "site":
                places[row["number"]] = place
    return places


def _line(file: str, line: int) -> str:
    return f"{PurePath(file).name}:{line}" if file else UNKNOWN_LINE


# Tracks


_NONE: Places = np.empty(0, np.intp)


@dataclass(frozen=True)
class _Tracks:
    """Tracks of one process.

    Attributes:
        process: its number.
        titles: the number of each track → its name.
        numbers: of each span its track, in the order of the spans.
        copies, kernels: places of those that the spans are, copies first; empty where the spans are calls.
    """

    process: int
    titles: Mapping[int, str]
    numbers: NDArray[np.int64]
    copies: Places
    kernels: Places


def _tracks(
    process: int, word: str, key: NDArray[np.int64], lane: NDArray[np.int64], places: Sequence[Places]
) -> _Tracks:
    """A track for each key, and further ones beside it for spans in another lane than the first."""
    pairs, numbers = np.unique(np.stack([key.astype(np.int64), lane]), axis=1, return_inverse=True)
    titles = {
        number: f"{word} {owner}" + (f" ({beside + 1})" if beside else "")
        for number, (owner, beside) in enumerate(pairs.T.tolist(), start=1)
    }
    return _Tracks(process, titles, numbers.reshape(-1) + 1, *places)


def _lanes(key: NDArray[np.int64], spans: Columns) -> NDArray[np.int64]:
    """The lane of each span, so that those of one key in one lane follow each other."""
    begun, lane = spans["at_ns"], np.zeros(len(key), np.int64)
    ended = begun + np.maximum(spans["took_ns"], 0)
    order = np.lexsort((-ended, begun, key))
    for rows in np.split(order, np.flatnonzero(np.diff(key[order])) + 1):
        ends: list[int] = []
        for place, start, end in zip(rows.tolist(), begun[rows].tolist(), ended[rows].tolist(), strict=True):
            free = next((number for number, last in enumerate(ends) if last <= start), len(ends))
            ends[free : free + 1] = [end]
            lane[place] = free
    return lane


def _streams(process: int, device: int, copies: Columns, kernels: Columns) -> _Tracks:
    """The streams of a GPU, with its copies and its kernels."""
    places = [np.flatnonzero(table["device"] == device) if table else _NONE for table in (copies, kernels)]
    spans = {
        name: np.concatenate(
            [table[name][rows] for table, rows in zip((copies, kernels), places, strict=True) if table]
        )
        for name in ("at_ns", "took_ns", "stream")
    }
    return _tracks(process, "stream", spans["stream"], _lanes(spans["stream"], spans), places)


# Spans


def _call_spans(calls: Columns, copies: Columns, calls_of: Places, threads: _Tracks, lines: _Lines) -> Iterator[Event]:
    """What each thread called, with the copies that it asked for."""
    first, size = _copies_of(calls_of, copies, len(threads.numbers))
    for place, track in enumerate(threads.numbers.tolist()):
        copy = int(first[place])
        key: Any = int(copies["site"][copy]) if copy >= 0 else None
        if "file" in calls:
            key = (calls["file"][place], int(calls["line"][place]))
        arguments = dict(lines.get(key) or ({"line": _line(*key)} if isinstance(key, tuple) else {}))
        if copy >= 0:
            arguments |= _copied(copies, copy, int(size[place]))
        event = {"name": str(calls["call"][place]), "cat": "call", "pid": threads.process, "tid": track}
        yield _span({**event, "args": arguments}, calls, place)


def _gpu_spans(streams: _Tracks, copies: Columns, kernels: Columns, lines: _Lines) -> Iterator[Event]:
    tracks = streams.numbers.tolist()
    for place, track in zip(streams.copies.tolist(), tracks, strict=False):
        event = {"name": f"copy {copies['direction'][place]}", "cat": "copy", "pid": streams.process, "tid": track}
        arguments = {**lines.get(int(copies["site"][place]), {}), **_copied(copies, place, int(copies["bytes"][place]))}
        yield _span({**event, "args": arguments}, copies, place)
    for place, track in zip(streams.kernels.tolist(), tracks[len(streams.copies) :], strict=True):
        event = {"name": "kernel", "cat": "kernel", "pid": streams.process, "tid": track}
        yield _span({**event, "args": {}}, kernels, place)


def _copied(copies: Columns, place: int, size: int) -> Event:
    return {"bytes": size, "memory": f"{copies['source'][place]} → {copies['target'][place]}"}


def _span(event: Event, table: Columns, place: int) -> Event:
    """The event as a span: as long as a row of a table."""
    took = int(table["took_ns"][place])
    if took == _NEVER:
        event["args"]["end"] = "not recorded"
    return {**event, "ph": "X", "ts": int(table["at_ns"][place]) / 1e3, "dur": max(took, 0) / 1e3}


# From calls to copies


def _calls_of(calls: Columns, copies: Columns) -> Places:
    """Of each copy the place of the call that started it; −1 where that is not known."""
    if not calls or not copies:
        return np.full(len(copies.get("at_ns", ())), _NEVER, np.intp)
    spans = list(zip(calls["at_ns"].tolist(), calls["took_ns"].tolist(), strict=True))
    places = {span: place for place, span in reversed(list(enumerate(spans)))}  # of equal ones the first
    wanted = zip(copies["call_at_ns"].tolist(), copies["call_took_ns"].tolist(), strict=True)
    return np.array([places.get(span, _NEVER) for span in wanted], np.intp)


def _copies_of(calls_of: Places, copies: Columns, count: int) -> tuple[Places, NDArray[np.int64]]:
    """Of each call its first copy, −1 if it has none, and the bytes of all of them."""
    first, size = np.full(count, _NEVER, np.intp), np.zeros(count, np.int64)
    known = np.flatnonzero(calls_of >= 0)
    if len(known):
        first[calls_of[known[::-1]]] = known[::-1]
        np.add.at(size, calls_of[known], copies["bytes"][known])
    return first, size


def _flows(
    copies: Columns, calls: Columns, calls_of: Places, threads: _Tracks, streams: Sequence[_Tracks]
) -> Iterator[Event]:
    """An arrow from each call to each of its copies."""
    for device in streams:
        for copy, track in zip(device.copies.tolist(), device.numbers.tolist(), strict=False):
            call = int(calls_of[copy])
            if call < 0:
                continue
            both = {"name": "copy", "cat": "copy", "id": threads.process << 32 | copy}
            begun, arrived = int(calls["at_ns"][call]) / 1e3, int(copies["at_ns"][copy]) / 1e3
            yield {**both, "ph": "s", "ts": begun, "pid": threads.process, "tid": int(threads.numbers[call])}
            yield {**both, "ph": "f", "bp": "e", "ts": arrived, "pid": device.process, "tid": track}


# Counters


def _counter(process: int, name: str, moments: NDArray[np.int64], changes: NDArray[np.int64]) -> Iterator[Event]:
    """The sum of the changes from each moment on."""
    order = np.argsort(moments, kind="stable")
    moments, sums = moments[order], np.cumsum(changes[order])
    last = np.append(moments[1:] != moments[:-1], True)[: len(moments)]
    for moment, value in zip(moments[last].tolist(), sums[last].tolist(), strict=True):
        yield {"name": name, "ph": "C", "ts": moment / 1e3, "pid": process, "args": {"bytes": value}}


# Names


def _process(process: int, name: str) -> Iterator[Event]:
    return _named("process", {"pid": process, "tid": 0}, name, process)


def _threads(process: int, titles: Mapping[int, str]) -> Iterator[Event]:
    for number, title in titles.items():
        yield from _named("thread", {"pid": process, "tid": number}, title, number)


def _named(what: str, track: Event, name: str, place: int) -> Iterator[Event]:
    """Metadata that name and order a process or a thread."""
    for key, arguments in ((f"{what}_name", {"name": name}), (f"{what}_sort_index", {"sort_index": place})):
        yield {"name": key, "ph": "M", **track, "args": arguments}


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
    about = {
        "producer": f"PinScope {pinscope.__version__}",
        "runs": ", ".join(document.run.id for document in documents),
    }
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
        yield from _process(process, name)
        yield from _threads(process, {thread: lane_name for thread, lane_name, _ in _LANES.values()})
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
