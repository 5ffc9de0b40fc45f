"""What ran in a stretch of a trace's time: each event while they are few, else how many ran at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pinscope.analysis.read_rows import Attached, EachPart, Row, every_part
from pinscope.errors import InvalidParameter
from pinscope.records.base import DEVICES_READ
from pinscope.records.trace_row import WAITS
from pinscope.tracing.sites import line_name, process_names

if TYPE_CHECKING:
    import pyarrow as pa

Columns = Mapping[str, NDArray[Any]]
"""Name of a column → its values, all of one length."""
TABLES = ("calls", "copies", "kernels")
"""The attachments whose rows have a time at which they began."""

_NUMBERS: Mapping[str, Sequence[str]] = {
    "calls": ("at_ns", "took_ns", "thread"),
    "copies": ("at_ns", "took_ns", "call_at_ns", "call_took_ns", "bytes", "device", "stream", "site", "idle_ns"),
    "kernels": ("at_ns", "took_ns", "device", "stream"),
    "pinned": ("at_ns", "change_bytes"),
}
_TEXTS: Mapping[str, Sequence[str]] = {"calls": ("call",), "copies": ("direction", "source", "target")}
"""Columns that every version of these attachments has."""
LONGEST_NS = 2**60
"""Of a trace; sums of such times are exact."""
PROCESSES_READ = 1024


def collect(attached: Attached, name: str, until_ns: int | None) -> Columns:
    """The rows of an attachment before a moment, or all, in the order in which they are stored, text as objects;
    without columns where it has no rows.

    Errors as of :meth:`Attached.tables`.
    """
    pieces: list[Columns] = []
    for part, words in each_coded(attached, name):
        chosen = part["at_ns"] < (np.iinfo(np.int64).max if until_ns is None else until_ns)
        if not chosen.any():
            continue
        rows = {key: values[chosen] for key, values in part.items()}
        texts = {key: np.asarray(known, object)[rows[key]] for key, known in words.items()}
        pieces.append({**rows, **texts})
    if not pieces:
        return {}
    return {key: np.concatenate([piece[key] for piece in pieces]) for key in pieces[0]}


def each_coded(
    attached: Attached, name: str, wanted: EachPart = every_part
) -> Iterator[tuple[Columns, Mapping[str, Sequence[str]]]]:
    """An attachment, a part at a time: numbers as they are, of text the places of its values among its words, each of
    which stands in memory once."""
    from pyarrow import types  # noqa: PLC0415

    for table in attached.tables(name, wanted):
        columns: dict[str, NDArray[Any]] = {}
        words: dict[str, Sequence[str]] = {}
        for key in table.column_names:
            column = table.column(key).combine_chunks()
            if types.is_dictionary(column.type):
                words[key] = [*column.dictionary.to_pylist(), ""]
                column = column.indices.fill_null(len(words[key]) - 1)
            columns[key] = column.to_numpy(zero_copy_only=False)
        for wrong in _complaints(name, columns, words):
            raise InvalidParameter(f"the attachment {name} is not that of a trace: {wrong}")
        yield columns, words


def _complaints(name: str, columns: Columns, words: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Why a part is not as PinScope writes it: a bundle from elsewhere may hold anything."""
    later = [key for key, beside in (("process", "process"), ("line", "file")) if beside in columns]
    for key in (*_NUMBERS[name], *later):
        if key not in columns or key in words or columns[key].dtype.kind not in "iu":
            yield f"it has no column {key} of whole numbers"
    for key in (*_TEXTS.get(name, ()), *(("file",) if "file" in columns else ())):
        if key not in words:
            yield f"it has no column {key} of text"
    for key in (key for key in columns if key.endswith("_ns") and len(columns[key])):
        if max(abs(int(columns[key].min())), abs(int(columns[key].max()))) > LONGEST_NS:
            yield f"{key} is beyond {LONGEST_NS / 1e9 / 86400 / 365:.0f} years"
    for key, most in (("device", DEVICES_READ), ("process", PROCESSES_READ)):
        if key in columns and len(np.unique(columns[key])) > most:
            yield f"it has more than {most} different values of {key}"


def first_moments(attached: Attached, most: int) -> int | None:
    """When the first event begins that is more than ``most``, in nanoseconds; ``None`` if there are no more than that.

    No more than twice as many numbers are in memory.
    """
    kept = np.empty(0, np.int64)
    if sum(attached.rows.get(name, 0) for name in TABLES) <= most:
        return None
    for name in TABLES:
        for part, _ in each_coded(attached, name):
            kept = np.concatenate([kept, part["at_ns"]])
            if len(kept) > most:
                kept = np.partition(kept, most)[: most + 1]
    return int(kept.max()) if len(kept) > most else None  # attachments may hold less than they say: a stretch of them


PIECES = 400
"""Of a stretch, for each of which it is said how much ran at once."""
MOST_SINGLE = 1500
"""Events that are shown one by one; more would be too many for a browser, and for a reader."""
Series = tuple[str, str, int, int]
"""``calls``, ``copies`` or ``kernels``; what is drawn in one colour; the GPU, −1 of calls; the id of the process that
sees it so, 0 of calls and where one process was recorded."""


@dataclass(frozen=True)
class Extent:
    """When a trace's events ran.

    Attributes:
        begin_ns: when the first call, copy or kernel began, since the program's start.
        end_ns: when the last of them ended; later than ``begin_ns`` also where no end was recorded.
        parts: name of an attachment → beginning and end of each of its parts.
        processes: ids of those that were recorded, with their names; none where it was one.
        lines: number of a site → its line.
        panels: attachments that have events, each with a GPU and the process that sees it so, as in :data:`Series`.
    """

    begin_ns: int
    end_ns: int
    parts: Mapping[str, tuple[tuple[int, int], ...]]
    processes: Mapping[int, str] = field(default_factory=dict)
    lines: Mapping[int, str] = field(default_factory=dict)
    panels: frozenset[tuple[str, int, int]] = frozenset()

    def reaches(self, name: str, number: int, begin_ns: int, end_ns: int) -> bool:
        """Whether events of that part may lie in the stretch."""
        first, last = self.parts[name][number]
        return first < end_ns and last >= begin_ns


@dataclass(frozen=True)
class Single:
    """One event. ``lane`` names the thread or the stream, ``line`` the line that made it, if that is known; times are
    in nanoseconds since the program's start."""

    begin_ns: int
    end_ns: int
    lane: str
    name: str
    bytes: int | None
    line: str = ""


@dataclass
class Stretch:
    """What ran between two moments.

    Attributes:
        begin_ns, end_ns: since the program's start.
        events: how many there are.
        at_once: how many ran at once on average, in each of :data:`PIECES` equal pieces.
        singles: the events, where they are at most :data:`MOST_SINGLE`; else empty.
        whole: of the trace.
    """

    begin_ns: int
    end_ns: int
    events: int = 0
    at_once: dict[Series, NDArray[np.float64]] = field(default_factory=dict)
    singles: dict[Series, list[Single]] = field(default_factory=dict)
    whole: Extent = field(default_factory=lambda: Extent(0, 1, {}))

    @property
    def seconds(self) -> float:
        """How long it is."""
        return (self.end_ns - self.begin_ns) / 1e9

    @property
    def heart_ns(self) -> tuple[int, int]:
        """The moments between which most of what ran, eight tenths, ran; the whole stretch where nothing did."""
        ran = np.cumsum(np.sum([*self.at_once.values(), np.zeros(PIECES)], axis=0))
        if not ran[-1]:
            return self.begin_ns, self.end_ns
        first, last = (int(np.searchsorted(ran, ran[-1] * share)) for share in (0.1, 0.9))
        length = self.end_ns - self.begin_ns
        return self.begin_ns + length * first // PIECES, self.begin_ns + length * (last + 1) // PIECES


def extent(attached: Attached, rows: Sequence[Row] = ()) -> Extent | None:
    """When the events ran; ``None`` where there are none. Reads them all, a part at a time.

    ``rows``: of the trace; they name its processes and lines.
    """
    parts: dict[str, list[tuple[int, int]]] = {name: [] for name in TABLES}
    panels: set[tuple[str, int, int]] = set()
    for name in TABLES:
        for part, _ in each_coded(attached, name):
            begun, ended = _times(part)
            parts[name].append((int(begun.min()), int(ended.max())) if len(begun) else (0, -1))
            panels.update((name, *both) for both in _devices(part))
    ends = [both for name in TABLES for both in parts[name] if both != (0, -1)]
    if not ends:
        return None
    whole = {name: tuple(both) for name, both in parts.items()}
    begin = min(first for first, _ in ends)
    end = max(begin + 1, *(last for _, last in ends))
    known = process_names(rows)
    processes = {process for _, _, process in panels}
    names = {number: known.get(number, f"process {number}") for number in processes if len(processes) > 1}
    drawn = frozenset(
        ("calls", -1, 0) if name == "calls" else (name, device, process if names else 0)
        for name, device, process in panels
    )
    lines = {row["number"]: line_name(row) for row in rows if row["kind"] == "site" and row["number"] is not None}
    return Extent(begin, end, whole, names, lines, drawn)


def _times(part: Columns) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """When these events began and ended."""
    return part["at_ns"], part["at_ns"] + np.maximum(part["took_ns"], 0)


def _devices(part: Columns) -> list[tuple[int, int]]:
    """GPUs of these rows, each with its process; −1 of calls."""
    begun = part["at_ns"]
    both = np.stack(
        [part.get(name, np.full(len(begun), default)) for name, default in (("device", -1), ("process", 0))]
    )
    return [(device, process) for device, process in _groups(both)[0].T.tolist()]


def _groups(keys: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.intp]]:
    """The different columns, and which of them each is. In most parts of large traces all are alike."""
    if (keys == keys[:, :1]).all():
        return keys[:, :1], np.zeros(keys.shape[1], np.intp)
    groups, which = np.unique(keys, axis=1, return_inverse=True)
    return groups, which.reshape(-1)


def stretch_of(attached: Attached, whole: Extent, begin_ns: int, end_ns: int) -> Stretch:
    """What ran between two moments. Only the parts of the attachments that reach into it are read.

    Args:
        attached: of the trace.
        whole: its :func:`extent`.
        begin_ns: in nanoseconds since the program's start.
        end_ns: later.
    """
    stretch = Stretch(begin_ns, end_ns, whole=whole)
    edges = np.linspace(begin_ns, end_ns, PIECES + 1)
    for name in TABLES:
        reached = partial(whole.reaches, name, begin_ns=begin_ns, end_ns=end_ns)
        for part, words in each_coded(attached, name, reached):
            begun, ended = _times(part)
            inside = (begun < end_ns) & (ended >= begin_ns)
            rows = {key: values[inside] for key, values in part.items()}
            if not whole.processes:
                rows["process"] = np.zeros(len(rows["at_ns"]), np.int32)
            _add(stretch, name, (rows, words), edges)
    return stretch


def within(attached: Attached, whole: Extent, begin_ns: int, end_ns: int) -> Attached:
    """The attachments of a trace with the events of a stretch only, and all of its pinned memory until then.

    Args:
        attached: of the trace.
        whole: its :func:`extent`.
        begin_ns: in nanoseconds since the program's start.
        end_ns: later.
    """
    import pyarrow.compute as pc  # noqa: PLC0415 - it takes a fifth of a second to import

    def read(name: str, wanted: EachPart) -> Iterator[pa.Table]:
        timed = name in TABLES
        reached = partial(whole.reaches, name, begin_ns=begin_ns, end_ns=end_ns) if timed else every_part
        for table in attached.tables(name, lambda number: wanted(number) and reached(number)):
            chosen = pc.less(table["at_ns"], end_ns)
            if timed:
                chosen = pc.and_(chosen, pc.greater_equal(pc.add(table["at_ns"], table["took_ns"]), begin_ns))
            yield table.filter(chosen)

    return Attached(attached.rows, read)


_Coded = tuple[Columns, Mapping[str, Sequence[str]]]


def _add(stretch: Stretch, name: str, coded: _Coded, edges: NDArray[np.float64]) -> None:
    rows, words = coded
    stretch.events += len(rows["at_ns"])
    for part, alike in _parts(name, coded):
        begun, ended = _times(rows)
        added = at_once(begun[alike], ended[alike], edges)
        stretch.at_once[part] = stretch.at_once.get(part, 0.0) + added
        if stretch.events <= MOST_SINGLE:
            chosen = {key: values[alike] for key, values in rows.items()}
            stretch.singles.setdefault(part, []).extend(_singles(name, (chosen, words), stretch.whole))
    if stretch.events > MOST_SINGLE:
        stretch.singles.clear()


def _parts(name: str, coded: _Coded) -> Iterator[tuple[Series, NDArray[np.intp]]]:
    """The places of the rows that are drawn alike."""
    rows, _ = coded
    if not len(rows["at_ns"]):
        return
    names, kinds = _kinds(name, coded)
    nothing = np.zeros(len(kinds), np.int32)
    devices, processes = (nothing - 1, nothing) if name == "calls" else (rows["device"], rows["process"])
    groups, which = _groups(np.stack([devices, processes, kinds]))
    for number, (device, process, kind) in enumerate(groups.T.tolist()):
        yield (name, names[kind], device, process), np.flatnonzero(which == number)


def _kinds(name: str, coded: _Coded) -> tuple[Sequence[str], NDArray[np.intp]]:
    """The names of kinds, and which of them each row is: of calls what they are for, of copies the host's memory."""
    rows, words = coded
    if name == "kernels":
        return ("compute",), np.zeros(len(rows["at_ns"]), np.intp)
    if name == "calls":
        names, kinds = np.unique([call_kind(call) for call in words["call"]], return_inverse=True)
        return names.tolist(), kinds[rows["call"]]
    names, kinds = np.unique([*words["source"], *words["target"]], return_inverse=True)
    source, target = kinds[rows["source"]], kinds[len(words["source"]) + rows["target"]]
    is_down = np.asarray([word == "d2h" for word in words["direction"]])[rows["direction"]]
    return names.tolist(), np.where(is_down, target, source)


def call_kind(call: str) -> str:
    """``wait``, ``copy`` or ``pin``: what a call of CUDA is for, as its name says."""
    if "Memcpy" in call or "Graph" in call:
        return "copy"
    return "wait" if WAITS.search(call) else "pin"


def _singles(name: str, coded: _Coded, whole: Extent) -> Iterator[Single]:
    rows, words = coded
    lanes = rows["thread" if name == "calls" else "stream"]
    named = {"calls": "call", "copies": "direction"}.get(name)
    for place, lane in enumerate(lanes.tolist()):
        begin, took = int(rows["at_ns"][place]), max(int(rows["took_ns"][place]), 0)
        size = int(rows["bytes"][place]) if name == "copies" else None
        process = whole.processes.get(int(rows["process"][place]))
        owner = f"{lane} of {process}" if process else str(lane)
        what = words[named][int(rows[named][place])] if named else "kernel"
        yield Single(begin, begin + took, owner, what, size, _line(name, coded, place, whole))


def _line(name: str, coded: _Coded, place: int, whole: Extent) -> str:
    """The line that made a call, or copied; empty where it is not known."""
    rows, words = coded
    if name == "copies":
        return whole.lines.get(int(rows["site"][place]), "")
    if name != "calls" or "file" not in rows:  # not recorded by earlier versions
        return ""
    file = words["file"][int(rows["file"][place])]
    return f"{PurePath(file).name}:{int(rows['line'][place])}" if file else ""


def at_once(begun: NDArray[np.int64], ended: NDArray[np.int64], edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """How many of the spans ran at once, on average between each two edges, which are equally far apart."""

    def covered(ascending: NDArray[np.int64]) -> NDArray[np.float64]:
        """The time from each moment before an edge until the edge, added up."""
        offsets = ascending - edges[0]
        sums = np.concatenate([[0.0], np.cumsum(offsets)])
        places = np.searchsorted(ascending, edges, side="right")
        return np.asarray((edges - edges[0]) * places - sums[places])

    within = np.diff(covered(np.sort(begun)) - covered(np.sort(ended)))
    return np.asarray(np.maximum(within, 0.0) / (edges[1] - edges[0]))


Times = NDArray[np.int64]
"""Nanoseconds."""


class Busy:
    """The union of intervals.

    Args:
        starts: of the intervals, in any order.
        ends: theirs.
    """

    def __init__(self, starts: NDArray[Any], ends: NDArray[Any]) -> None:
        begun, ended = np.sort(starts.astype(np.int64)), np.sort(ends.astype(np.int64))
        # Where all that began before has ended, a new stretch begins: of sorted starts and ends that is start n > end
        # n - 1.
        fresh = np.ones(len(begun), bool)
        fresh[1:] = begun[1:] > ended[:-1]
        self._starts: Times = begun[fresh]
        self._ends: Times = ended[np.append(fresh[1:], True)] if len(begun) else ended
        self._before: Times = np.concatenate([[0], np.cumsum(self._ends - self._starts)]).astype(np.int64)

    @property
    def seconds(self) -> float:
        """Of the whole union."""
        return float(self._before[-1]) / 1e9

    @property
    def end(self) -> int:
        """Of the last interval; 0 where there is none."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def also(self, starts: NDArray[Any], ends: NDArray[Any]) -> Busy:
        """The union with further intervals."""
        return Busy(np.concatenate([self._starts, starts]), np.concatenate([self._ends, ends]))

    def within(self, starts: Times, ends: Times) -> Times:
        """How much of each stretch is covered."""
        return self._until(ends) - self._until(starts)

    def _until(self, moments: Times) -> Times:
        """How much lies before each moment."""
        if not len(self._starts):
            return np.zeros(len(moments), np.int64)
        place = np.searchsorted(self._starts, moments, side="right") - 1
        inside = np.clip(moments - self._starts[place], 0, (self._ends - self._starts)[place])
        return np.where(place < 0, 0, self._before[place] + inside)

    def idle_after(self, moments: Times) -> Times:
        """How long nothing runs from each moment on, until the next begins; 0 where something runs then, or none
        begins any more."""
        if not len(self._starts):
            return np.zeros(len(moments), np.int64)
        following = np.searchsorted(self._starts, moments, side="right")
        runs = (following > 0) & (self._ends[np.maximum(following - 1, 0)] > moments)
        waited = self._starts[np.minimum(following, len(self._starts) - 1)] - moments
        return np.where(runs | (following == len(self._starts)), 0, waited)


def once(starts: Times, ends: Times) -> tuple[Times, Times]:
    """Stretches cut so that no moment belongs to two of them: each moment stays with the first that has it.

    Args:
        starts: ascending.
        ends: theirs.
    """
    reached = np.maximum.accumulate(ends)
    earliest = starts.copy()
    earliest[1:] = np.maximum(starts[1:], reached[:-1])
    return earliest, np.maximum(ends, earliest)
