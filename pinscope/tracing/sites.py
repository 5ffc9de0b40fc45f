"""The rows of a trace, taken apart: its lines, each with what pinning them would save."""

from __future__ import annotations

import math
import mmap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from pinscope.analysis.read_rows import Row, grouped
from pinscope.records.run import Cell, Run, Table, table
from pinscope.records.trace_row import LARGE_BYTES, NeedlessKind, TraceRow, copies_large_from_or_to
from pinscope.tracing.mapped_file import NEXT, RECEIVE
from pinscope.tracing.source_memory import reads_new_pages_of_a_file

FEW = 0.001
"""Of the time: what costs less is in the table only, unless it copies much."""
MOSTLY = 0.05
"""Of the bytes of large copies: where less than this is pageable, the program pins what counts."""
MOSTLY_WAITING = 0.1
"""Of the time: a loop that waits longer for its batches, by the median one, goes as fast as the workers make them."""
PINNING_SECONDS = 95e-6
"""So much of the loop's time a DataLoader's thread takes for each tensor that it pins, by Python, of which one thread
runs at a time: on two H100s a loop of 60 tensors a batch gained 85 and 107 µs a tensor less than what moves there."""
SLOWER, CALL_SECONDS = 2.0, 50e-6
"""A pageable copy that takes so many times as long as staging, beside its call, waits for something else."""
SMALL_COPIES = 1000
"""So many small copies of one line are worth a word."""
REPEATED = 10
"""A line that did something so often does it in a loop."""
WORTH = 0.01
"""Of the time; what costs less is not worth a finding."""
UNKNOWN_LINE = "an unknown line"
"""Of calls that no Python code made, or whose stack was not read."""


@dataclass(frozen=True)
class Site:
    """Copies of one line between the same kinds of memory.

    Attributes:
        row: as it was recorded.
        pinned_rate: bytes per second of pinned copies in its direction; ``None`` where no run says it.
        gathered_rate: bytes per second of pieces of its size, gathered in one pinned buffer by one thread and copied
            together; ``None`` where no run says it.
        staged_rate: bytes per second of large pageable copies to the GPU; ``None`` where no run says it.
        whole_seconds: of the program, from its first copy on: calls of several threads may hold the CPU for longer.
        loader_saved: seconds that a DataLoader which pins what its workers send saves; ``None`` where they send none.
    """

    row: Row
    pinned_rate: float | None
    gathered_rate: float | None = None
    staged_rate: float | None = None
    whole_seconds: float = math.inf
    loader_saved: float | None = None

    @property
    def name(self) -> str:
        """``train.py:33``."""
        return line_name(self.row)

    @property
    def title(self) -> str:
        """What tells it from others: a line may copy both ways, between several kinds of memory, for several GPUs."""
        row = self.row
        return f"{self.name} · {row['direction']}, {row['source']} → {row['target']}, GPU {row['device']}"

    @property
    def host_memory(self) -> str:
        """Kind of memory on the host's side; of other copies that of their source."""
        return str(self.row["target"] if self.row["direction"] == "d2h" else self.row["source"])

    @property
    def memory(self) -> str:
        """``pageable h2d``."""
        return f"{self.host_memory} {self.row['direction']}"

    @property
    def is_pageable(self) -> bool:
        """Large copies between a GPU and pageable memory: what pinning would change."""
        return copies_large_from_or_to(self.row, "pageable")

    @property
    def is_pinned(self) -> bool:
        """Large copies between a GPU and pinned memory."""
        return copies_large_from_or_to(self.row, "pinned")

    @property
    def bytes_per_second(self) -> float | None:
        """Of the transfers; ``None`` where none was seen to its end, or most are small: their bytes travel in the
        command."""
        seconds = self.row["copy_seconds"]
        return float(self.row["bytes"] / seconds) if seconds and self.row["median_bytes"] > LARGE_BYTES else None

    @property
    def stands_seconds(self) -> float:
        """How long the GPU's compute, or of a program without kernels the CPU, stood for these copies."""
        idle = self.row["idle_seconds"]
        return float(self.row["call_seconds"] or 0 if idle is None else idle)

    @property
    def saved_in_place(self) -> float | None:
        """Seconds that pinning alone would save: the transfer still takes its time, at the rate of pinned memory."""
        if not self.is_pageable:
            return 0.0
        if self.loader_saved is not None:
            return self.loader_saved
        if self.pinned_rate is None or (reads_new_pages_of_a_file(self.row) and self.staged_rate is None):
            return None
        return max(self.saved_early - float(self.row["bytes"]) / self.pinned_rate, 0.0)

    @property
    def unsaved_word(self) -> str | None:
        """Why pinning changes nothing for these copies; ``None`` where it does."""
        if self.is_pageable:
            return None
        words = {"pinned": "is pinned", "pageable": "small copies"} if self.row["direction"] in ("h2d", "d2h") else {}
        return words.get(self.host_memory, "–")

    @property
    def is_received(self) -> bool:
        """Whether most of its large pageable copies are of what a DataLoader's workers sent."""
        return self.is_pageable and (self.row["received_count"] or 0) * 2 > self.row["large_count"]

    @property
    def held_by_pageable(self) -> float:
        """Seconds for which its calls hold the CPU beyond what they would from pinned memory."""
        is_asynchronous = "non_blocking=True" in (self.row["source_line"] or "")
        transfer = 0.0 if is_asynchronous or not self.pinned_rate else self.row["bytes"] / self.pinned_rate
        return max(float(self.row["call_seconds"] or 0.0) - transfer, 0.0)

    @property
    def gathered_seconds(self) -> float | None:
        """What it would take to gather its bytes in one pinned buffer and to copy that."""
        return None if self.gathered_rate is None else float(self.row["bytes"]) / self.gathered_rate

    @property
    def saved_early(self) -> float:
        """Seconds that it would save at most if each copy were also issued so early that it runs while the GPU
        computes."""
        if not self.is_pageable:
            return 0.0
        stood = self.stands_seconds + float(self.row["launch_idle_seconds"] or 0) - self.unexplained_seconds
        return min(max(stood, self.loader_saved or 0.0), self.whole_seconds)

    @property
    def unexplained_seconds(self) -> float:
        """Of copies to the GPU that take far longer than staging does, how much longer: pinning saves none of it."""
        if self.row["direction"] != "h2d" or self.staged_rate is None or self.loader_saved is not None:
            return 0.0
        staged = float(self.row["bytes"]) / self.staged_rate
        least = staged * (1.0 if reads_new_pages_of_a_file(self.row) else SLOWER) + CALL_SECONDS * self.row["count"]
        return self.stands_seconds - staged if self.stands_seconds > least else 0.0


NO_PROGRAM: Row = {**dict.fromkeys(TraceRow.model_fields), "seconds": 0.0, "copies": 0}
"""In the place of a program's row, which comes when it has ended."""


@dataclass(frozen=True)
class Seen:
    """What a trace holds, taken apart.

    Attributes:
        run: the trace.
        program: its row; :data:`NO_PROGRAM` while it runs.
        processes: a row for each, if several were recorded.
        devices: a row for each GPU.
        sites: ranked by what pinning would save, then by bytes.
        allocations: of pinned memory, the most time first.
        waits: the most idle compute first.
        host_calls: of libraries that move or pin data of the host, the longest on the CPU first.
        sizes: of copies over the link, the smallest first.
        watched: asynchronous copies to the host whose tensors were watched, by line.
        early_reads: reads of these before a wait, the most first.
        unrecorded: processes; ``migrations``: of managed memory; ``pinned_h2d``: bytes per second of pinned copies.
        failed: calls that returned an error, the earliest first.
        needless: copies of sites that need not be; ``loaders``: DataLoaders, with sites that copy their batches.
    """

    run: Run
    program: Row
    processes: tuple[Row, ...]
    devices: tuple[Row, ...]
    sites: tuple[Site, ...]
    allocations: tuple[Row, ...]
    waits: tuple[Row, ...]
    host_calls: tuple[Row, ...]
    sizes: tuple[Row, ...]
    unrecorded: tuple[Row, ...]
    migrations: tuple[Row, ...]
    pinned_h2d: float | None
    failed: tuple[Row, ...]
    needless: tuple[Row, ...]
    loaders: tuple[Row, ...]
    watched: tuple[Row, ...]
    early_reads: tuple[Row, ...]

    @property
    def has_ended(self) -> bool:
        """Whether the program has."""
        return self.program is not NO_PROGRAM

    @property
    def seconds(self) -> float:
        """How long the program used a GPU: from its first copy or kernel to the end of the last."""
        return float(self.program["active_seconds"] or self.program["seconds"])

    def origin(self, parameter: str) -> str | None:
        """Where rates come from. A run from elsewhere may hold anything."""
        value = self.run.params.get(parameter)
        return value if isinstance(value, str) else None

    def seconds_from_first(self, row: Row) -> float:
        """How long the program used a GPU from the first of what a line did again and again: its start is no part of
        that loop. Of what a line did a few times, or where its first is not known, all of :attr:`seconds`."""
        first = row["first_seconds"]
        if first is None or row["count"] < REPEATED:
            return self.seconds
        return max(self.seconds_of(row["process"]) - first, 0.0) or self.seconds

    def seconds_of(self, process: int | None) -> float:
        """How long a process used a GPU; of the program where one process was recorded."""
        own = (row["active_seconds"] for row in self.processes if row["process"] == process)
        return float(next(own, None) or self.seconds)

    @property
    def saved_in_place(self) -> float | None:
        """Seconds that pinning all pageable lines would save; ``None`` where a rate is not known."""
        unknown = any(site.saved_in_place is None for site in self.pageable)
        return None if unknown else self._saved(lambda site: site.saved_in_place or 0.0)

    @property
    def saved_early(self) -> float:
        """Seconds at most, if each copy were also issued early."""
        return self._saved(lambda site: site.saved_early)

    def _saved(self, of_site: Callable[[Site], float]) -> float:
        """What the process would save that saves most: they run beside each other."""
        sums: dict[int | None, float] = {}
        for site in self.pageable:
            sums[site.row["process"]] = sums.get(site.row["process"], 0.0) + of_site(site)
        return max((min(saved, self.seconds_of(process)) for process, saved in sums.items()), default=0.0)

    @property
    def failure(self) -> str | None:
        """How the program ended, as it follows its name; ``None`` where it ended well, or that is not known."""
        code = int(self.program["exit_code"] or 0)
        if not code:
            return None
        return f"ended with exit code {code}" if code > 0 else f"was ended by signal {-code}"

    @property
    def pageable(self) -> tuple[Site, ...]:
        """Sites of large pageable copies, what saves most first."""
        return tuple(site for site in self.sites if site.is_pageable)

    @property
    def accused(self) -> tuple[tuple[Site, int], ...]:
        """Pageable sites that are worth a word, what saves most first. Of a line that copies so in several processes it
        is one, and the number of the other processes stands beside it."""

        def copies_alike(site: Site) -> tuple[Any, ...]:
            row = site.row
            device = row["device"] if row["process"] is None else None
            return *place_in(row), row["direction"], row["source"], row["target"], device

        return tuple(
            (sites[0], len({site.row["process"] for site in sites}) - 1)
            for sites in grouped(self.pageable, copies_alike).values()
            if self.is_worth(sites[0])
        )

    def is_worth(self, site: Site) -> bool:
        """Whether a pageable site deserves a finding: what it costs, or what it copies, is a part of the whole."""
        large = sum(other.row["bytes"] for other in (*self.pinned, *self.pageable))
        return bool(site.stands_seconds >= FEW * self.seconds or site.row["bytes"] >= MOSTLY * large)

    @property
    def small(self) -> tuple[Site, ...]:
        """Lines with many small copies over the link that hold the CPU for a part of the time, the longest first."""
        small = [
            site
            for site in self.sites
            if site.row["count"] >= SMALL_COPIES
            and site.row["median_bytes"] <= LARGE_BYTES
            and site.row["direction"] in ("h2d", "d2h")
            and self.is_long(site.row, site.row["call_seconds"])
        ]
        return tuple(sorted(small, key=lambda site: -site.row["call_seconds"]))

    @property
    def churn(self) -> tuple[Row, ...]:
        """Lines that pin memory again and again for a part of the time, the longest first."""
        return tuple(
            row for row in self.allocations if row["count"] >= REPEATED and self.is_long(row, row["call_seconds"])
        )

    @property
    def idling(self) -> tuple[Row, ...]:
        """Lines that wait again and again, and compute then stands idle for a part of the time, the longest first. One
        long idle time, such as that of a first compilation, is not counted."""
        return tuple(
            row
            for row in self.waits
            if row["count"] >= REPEATED
            and self.is_long(row, row["idle_seconds"] - (row["longest_idle_seconds"] or 0.0))
        )

    @property
    def counts_copies_after_waits(self) -> bool:
        """Whether idle time after waits holds that of copies, too: earlier versions, which noted no first moment of a
        wait, counted it for both."""
        return any(row["first_seconds"] is None for row in self.waits)

    @property
    def read_later(self) -> tuple[Site, ...]:
        """Lines that copy into pinned memory of the host and do not wait themselves."""
        waiting = set(map(own_line_key, self.waits))
        return tuple(
            site for site in self.sites if site.memory == "pinned d2h" and own_line_key(site.row) not in waiting
        )

    def is_long(self, row: Row, seconds: float | None) -> bool:
        """Whether that is worth a word for what a line did."""
        return (seconds or 0.0) >= WORTH * self.seconds_from_first(row)

    @property
    def pinned(self) -> tuple[Site, ...]:
        """Sites of large pinned copies."""
        return tuple(site for site in self.sites if site.is_pinned)


def seen_in(run: Run, rows: Sequence[Row]) -> Seen:
    """The rows of a trace, taken apart."""
    by_kind = grouped(rows, lambda row: str(row["kind"]))
    rates = {direction: _rate(run.params.get(f"pinned_{direction}")) for direction in ("h2d", "d2h")}
    staged = _rate(run.params.get("pageable_h2d"))
    sites = [
        Site(
            row, rates.get(row["direction"]), _gathered_rate(run.params, row["direction"], row["median_bytes"]), staged
        )
        for row in by_kind.get("site", ())
    ]
    seen = Seen(
        run=run,
        program=next(iter(by_kind.get("program", ())), NO_PROGRAM),
        processes=tuple(by_kind.get("process", ())),
        devices=tuple(by_kind.get("device", ())),
        sites=(),
        allocations=tuple(sorted(by_kind.get("allocation", ()), key=lambda row: -row["call_seconds"])),
        waits=tuple(
            sorted(by_kind.get("synchronisation", ()), key=lambda row: (-row["idle_seconds"], -row["call_seconds"]))
        ),
        host_calls=tuple(sorted(by_kind.get("host_call", ()), key=lambda row: -row["host_seconds"])),
        sizes=tuple(sorted(by_kind.get("size", ()), key=lambda row: (row["most_bytes"], row["direction"]))),
        watched=tuple(by_kind.get("watched", ())),
        early_reads=tuple(sorted(by_kind.get("early_read", ()), key=lambda row: -row["in_flight_count"])),
        unrecorded=tuple(by_kind.get("unrecorded", ())),
        migrations=tuple(by_kind.get("migration", ())),
        pinned_h2d=rates["h2d"],
        failed=tuple(by_kind.get("failed_call", ())),
        needless=tuple(row for kind in get_args(NeedlessKind) for row in by_kind.get(kind, ())),
        loaders=tuple(by_kind.get("loader", ())),
    )
    sites = [replace(site, whole_seconds=seen.seconds_from_first(site.row) or math.inf) for site in sites]
    for process in {site.row["process"] for site in sites if site.is_received}:
        sites = _with_loader(seen, process, sites)
    sites.sort(key=lambda site: (-(site.saved_in_place or 0), -site.saved_early, -site.row["bytes"]))
    return replace(seen, sites=tuple(sites))


def _with_loader(seen: Seen, process: int | None, sites: Sequence[Site]) -> list[Site]:
    """The sites, and what a DataLoader that pins saves of those of a process whose data its workers send."""
    received = [site for site in sites if site.is_received and site.row["process"] == process]
    whole = max(site.whole_seconds for site in received)
    calls = [row for row in seen.host_calls if row["process"] == process]
    busy = max((row["busy_seconds"] for row in seen.devices if row["process"] == process), default=0.0)
    copying = sum(site.held_by_pageable for site in received)
    tensors = sum(site.row["received_count"] or 0 for site in received)
    saved = _saved_by_pinning(calls, copying, tensors, whole, busy)
    return [
        replace(site, loader_saved=saved * site.held_by_pageable / copying if copying else 0.0)
        if site in received
        else site
        for site in sites
    ]


def _saved_by_pinning(calls: Sequence[Row], copying: float, tensors: int, whole: float, busy: float) -> float:
    """Seconds that a DataLoader which pins its batches saves of all copies of a process whose data its workers send.

    The step of a loop holds what it receives and copies, and the rest. With pinning the former runs in a thread beside
    the latter: the shorter of both is saved, but no more than the GPU stands idle, and nothing where the loop waits for
    its workers. What receiving keeps the CPU is not saved, nor what pinning does (:data:`PINNING_SECONDS`): that is
    Python, of which one thread runs at a time.

    Args:
        calls: of libraries, of the process.
        copying: how long its copies hold the CPU beyond what they would from pinned memory.
        tensors: how many the workers sent.
        whole: from the first of them to the end.
        busy: how long the GPU computes.
    """
    if sum(row["wait_seconds"] or 0.0 for row in calls if row["call"] == NEXT) > MOSTLY_WAITING * whole:
        return 0.0
    receiving = [row for row in calls if row["call"] == RECEIVE]
    moved = copying + float(sum(row["call_seconds"] for row in receiving))
    stays = float(sum(min(row["processor_seconds"] or 0.0, row["call_seconds"]) for row in receiving))
    stays += PINNING_SECONDS * tensors
    return max(min(moved - stays, whole - moved, whole - busy), 0.0)


def _gathered_rate(params: Mapping[str, Any], direction: str, size: float) -> float | None:
    """For the measured size that is nearest to this one by its ratio. A run from elsewhere may hold anything."""
    sizes, rates = (params.get(name) for name in ("gathered_bytes", f"gathered_{direction}"))
    if not isinstance(sizes, list | tuple) or not isinstance(rates, list | tuple):
        return None
    known = [(piece, rate) for piece, rate in zip(sizes, map(_rate, rates), strict=False) if _rate(piece) and rate]
    return min(known, key=lambda pair: max(pair[0] / max(size, 1), size / pair[0]))[1] if known else None


def _rate(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and value > 0 else None


def line_name(row: Row) -> str:
    """``train.py:33``, or what is known instead; with the line of a library that it led to ``train.py:33 →
    hooks.py:31``; where it is known by bytes and order alone ``train.py:33 (about)``; where several processes were
    recorded, ``train.py:33 (rank 1)``."""
    line = f"{PurePath(row['file']).name}:{row['line']}" if row["file"] else UNKNOWN_LINE
    if library := row.get("library_file"):
        line = f"{line} → {PurePath(library).name}:{row['library_line']}"
    if row.get("by_order_count"):
        line = f"{line} (about)"
    return f"{line} ({process})" if (process := process_name(row)) else line


def place_in(row: Row) -> tuple[Any, ...]:
    """The line of the program, and that of a library below it, by which rows of one line are known."""
    return row["file"], row["line"], row["library_file"], row["library_line"]


def own_line_key(row: Row) -> tuple[Any, ...]:
    """The line of the program, of each of its processes, whatever library it led to."""
    return row["file"], row["line"], row["process"]


def line_key(row: Row) -> tuple[Any, ...]:
    """The same, and the process: two files may have the same name."""
    return *place_in(row), row["process"]


def gpu_name(row: Row) -> str:
    """``GPU 0``; where several processes were recorded, ``GPU 0 of rank 1``."""
    return f"GPU {row['device']} of {process}" if (process := process_name(row)) else f"GPU {row['device']}"


def process_name(row: Row) -> str | None:
    """``rank 1``, or ``process 4711`` where it has no rank; ``None`` where one process was recorded."""
    if row.get("process") is None:
        return None
    return f"process {row['process']}" if row.get("rank") is None else f"rank {row['rank']}"


def process_names(rows: Sequence[Row]) -> Mapping[int, str]:
    """Id of each recorded process → its name. With its id where others have the same rank, such as a DataLoader's
    workers; empty where one process was recorded."""
    names = {row["process"]: name for row in rows if (name := process_name(row))}
    shared = Counter(names.values())
    return {number: name if shared[name] == 1 else f"{name}, process {number}" for number, name in names.items()}


ALLOCATES = 1
NEVER = -1
"""Stands for the time of a release that did not come."""


class PinnedMemory:
    """The allocations and registrations of a trace, in the order of their time.

    Args:
        events: CUPTI's records of allocations and releases, in any order.
    """

    def __init__(self, events: NDArray[Any]) -> None:
        order = np.lexsort((events["timestamp"], events["address"]))
        there = events[order]
        following = np.roll(there, -1)
        taken = np.flatnonzero(there["memory_operation_type"] == ALLOCATES)
        # What is allocated at the same address, too: the release between them was not recorded.
        is_released = following["address"] == there["address"]
        if len(there):
            is_released[-1] = False
        released = np.where(is_released, following["timestamp"], NEVER)[taken]
        by_time = np.argsort(there["timestamp"][taken], kind="stable")
        self.taken: NDArray[Any] = there[taken][by_time]
        """Records of what was allocated or registered."""
        self.released: NDArray[np.int64] = released[by_time].astype(np.int64)
        """When each was released, on CUPTI's clock; :data:`NEVER` if it was still there at the end."""

    @property
    def is_left(self) -> NDArray[np.bool_]:
        """Which were still there at the end."""
        return np.asarray(self.released == NEVER)

    @property
    def held(self) -> NDArray[np.int64]:
        """Bytes of the whole pages that each reaches into."""
        page = mmap.PAGESIZE
        first = self.taken["address"].astype(np.int64) // page
        last = (self.taken["address"].astype(np.int64) + self.taken["bytes"] + page - 1) // page
        return np.asarray((last - first) * page, np.int64)

    def peak(self, rows: NDArray[np.intp]) -> int:
        """The most bytes of these allocations that were there at once."""
        changes = self.changes(rows)[1]
        return int(np.cumsum(changes).max(initial=0))

    def is_there(self, moment: int) -> NDArray[np.bool_]:
        """Which were there at that time."""
        begun = self.taken["timestamp"].astype(np.int64) <= moment
        return np.asarray(begun & (self.is_left | (self.released > moment)))

    def changes(self, rows: NDArray[np.intp] | None = None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """When pinned memory grew and shrank, in order, and by how many bytes; what goes makes room for what comes."""
        chosen = slice(None) if rows is None else rows
        begun, ended, size = self.taken["timestamp"][chosen], self.released[chosen], self.taken["bytes"][chosen]
        gone = ended != NEVER
        moments = np.concatenate([ended[gone], begun]).astype(np.int64)
        changes = np.concatenate([-size[gone], size]).astype(np.int64)
        order = np.argsort(moments, kind="stable")
        return moments[order], changes[order]


Headed = Mapping[str, tuple[str, Cell]]
"""A row of a table: heading → unit and cell."""


def headed_table(
    title: str,
    rows: Sequence[Headed],
    note: str = "",
    missing: Mapping[str, tuple[str | None, ...]] | None = None,
    bar: str = "",
) -> Table:
    columns = {heading: unit for row in rows[:1] for heading, (unit, _) in row.items()}
    return table(title, columns, [[cell for _, cell in row.values()] for row in rows], note, missing, bar)


MOST_SHOWN = 100
"""Rows of a table."""


def table_of_lines(title: str, rows: Sequence[Row], columns: Mapping[str, tuple[str, str]], note: str) -> Table:
    """Rows of lines as they were kept: the line, and of each heading a unit and the field that has the value."""

    def cells(row: Row) -> Headed:
        return {heading: (unit, None if row[field] == "" else row[field]) for heading, (unit, field) in columns.items()}

    return headed_table(title, [{"line": ("text", line_name(row)), **cells(row)} for row in rows[:MOST_SHOWN]], note)
