"""The rows of a trace: records merged with their calls and stacks, and added up for each line of the program."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pinscope.records.trace_row import LARGE_BYTES, WAITS, TraceRow
from pinscope.tracing.failed_calls import LOSES_CONTEXT, READS_ERROR, earlier_memory, error_name, failures
from pinscope.tracing.host_work import HostWork, lines_by_order
from pinscope.tracing.mapped_file import CUT, LOADER
from pinscope.tracing.places import NATIVE, Place, library_folders, place_of
from pinscope.tracing.sites import ALLOCATES, PinnedMemory
from pinscope.tracing.source_memory import of_site
from pinscope.tracing.spool import MANAGED, RecordFiles
from pinscope.tracing.stacks import is_own
from pinscope.tracing.stretch import Busy, once

MOST_RANGES = 3
"""Names of ranges in a row."""
MEMORY = ("unknown", "pageable", "pinned", "device", "array", "managed", "device", "managed")
"""CUPTI's kinds of memory, by number."""
DIRECTIONS = ("other", "h2d", "d2h", "h2d", "d2h", "d2d", "d2d", "d2d", "d2d", "h2h", "p2p")
"""CUPTI's kinds of copies, by number."""
_PAGEABLE, _PINNED = MEMORY.index("pageable"), MEMORY.index("pinned")
_TO_GPU = DIRECTIONS.index("h2d")
_OVER_THE_LINK = [number for number, way in enumerate(DIRECTIONS) if way in {"h2d", "d2h"}]
SIZES = LARGE_BYTES * 4.0 ** np.arange(-4, 13)
"""Copies are counted by them: each up to the next of these sizes, from 256 bytes to 1 TiB."""
unnumbered = partial(TraceRow, repeat=0, warmup=False)
"""A row; those of a kind are :func:`numbered` when all are there."""
_VERSION = re.compile(r"(_ptsz|_ptds)?(_v\d+)?(_ptsz|_ptds)?$")


def numbered(rows: Iterable[TraceRow]) -> Iterator[TraceRow]:
    """Each row with its number among those of its kind."""
    counts = Counter[str]()
    for row in rows:
        yield row.model_copy(update={"repeat": counts[row.kind]})
        counts[row.kind] += 1


class LineTotals:
    """What the rows and the attachments of one process are made from.

    Args:
        files: its records.
        first_site: the number of its first site: those of all processes differ.
    """

    def __init__(self, files: RecordFiles, first_site: int = 0) -> None:
        self._first_site = first_site
        self.lost_bytes = files.spool.unreadable_bytes
        self._names = {int(number): name for number, name in files.spool.config["functions"].items()}
        calls, copies = files.spool.calls(), files.table("copies")
        cut = calls["function"] == CUT
        self.calls: NDArray[Any] = calls[~cut]
        if cut.any():  # a line is accused by whole calls only
            without = np.setdiff1d(calls["correlation_id"][cut], self.calls["correlation_id"])
            copies = copies[~np.isin(copies["correlation_id"], without)]
        self.copies: NDArray[Any] = copies[np.argsort(self._call_starts(copies), kind="stable")]
        untimed = self.copies["start"] == 0
        self.copies["start"][untimed] = self._call_starts(self.copies[untimed])
        allocations = files.table("allocations")
        managed = allocations["memory_kind"] == MANAGED
        taken = managed & (allocations["memory_operation_type"] == ALLOCATES)
        self.managed_bytes = int(allocations["bytes"][taken].sum())
        self._allocations: NDArray[Any] = allocations[~managed]
        self.failed_functions = {
            number: _VERSION.sub("", name) for number, name in files.spool.failed_functions().items()
        }
        started = files.spool.document("started.json") or {}
        self.notices_errors = bool(started.get("notices_errors"))
        self.kernels = files.table("kernels")
        self.migrations, self.standing = files.table("migrations"), files.spool.standing()
        """CUPTI's records of managed memory, and where the program stood meanwhile."""
        managed_said = files.spool.document("managed")
        self.follows_managed: bool | None = None if managed_said is None else managed_said["refused"] is None
        """Whether it was recorded how managed memory moved; ``None`` where none was seen."""
        self._range_names = files.spool.ranges()
        self._looks = {int(look["correlation"]): look for look in files.spool.memory()}
        self._places = [NATIVE, *map(place_of, files.spool.stacks())]
        kinds = [(place.file, place.line, place.library) for place in self._places]
        self._kinds = list(dict.fromkeys(kinds))
        numbers = {kind: number for number, kind in enumerate(self._kinds)}
        self._line_of_stack = np.asarray([numbers[kind] for kind in kinds])
        self.watched, self.switches = files.spool.watched(), files.spool.switches()
        self._host_calls, self.host_names = files.spool.host_calls(), files.spool.host_names()
        self.data, self._made_loaders = files.spool.data(), files.spool.loaders()
        """What is known of the data of copies, and DataLoaders by their numbers."""
        self._by_order = self._take_lines_of_calls_before()
        self.failed = files.spool.failed()
        self.failed["stack"][self.failed["stack"] >= len(self._places)] = 0

    def _take_lines_of_calls_before(self) -> NDArray[np.bool_]:
        """Give large copies to the GPU of threads without Python code the stack of the call that left them to these;
        which of :attr:`copies` these are."""
        places = self.call_places(self.copies)
        native = np.asarray([not place.file for place in self._places])[self.stacks(self.copies)]
        native &= (places >= 0) & (self.copies["copy_kind"] == _TO_GPU) & (self.copies["bytes"] > LARGE_BYTES)
        rows = np.flatnonzero(native)
        copies = self.copies[rows]
        stacks = lines_by_order(copies, self._call_starts(copies), self._host_calls, self.host_names)
        rows, stacks = rows[stacks > 0], stacks[stacks > 0]
        self.calls["stack"][places[rows]] = stacks
        return np.isin(np.arange(len(self.copies)), rows)

    def devices(self) -> Iterator[TraceRow]:
        """A row for each GPU."""
        for device, busy in self.busy.items():
            yield unnumbered(
                kind="device",
                device=device,
                busy_seconds=busy.seconds,
                kernels=int((self.kernels["device_id"] == device).sum()),
            )

    @property
    def is_empty(self) -> bool:
        """Nothing was recorded."""
        tables = self.copies, self.kernels, self.calls, self._allocations, self.failed, self.migrations
        return not (self.managed_bytes or any(map(len, tables)))

    @cached_property
    def active_ns(self) -> tuple[int, int] | None:
        """From the beginning of the first copy or kernel to the end of the last; ``None`` if there is none."""
        seen = [table[table["end"] > 0] for table in (self.copies, self.kernels)]
        seen = [table for table in seen if len(table)]
        if not seen:
            return None
        return min(int(table["start"].min()) for table in seen), max(int(table["end"].max()) for table in seen)

    @property
    def unfinished(self) -> int:
        """Copies whose end was not recorded."""
        return int((self.copies["end"] == 0).sum())

    @property
    def untimed(self) -> int:
        """Copies of which is not known when they ran, nor when their calls did: the first of :attr:`copies`."""
        return int((self.copies["start"] == 0).sum())

    # Joining

    def call_places(self, records: NDArray[Any]) -> NDArray[np.intp]:
        """Of each record the place of its call in :attr:`calls`; −1 where the call was not recorded."""
        return find(self.calls["correlation_id"], records["correlation_id"])

    def is_over_with_call(self, copies: NDArray[Any]) -> NDArray[np.bool_]:
        """Which of these copies were over when their calls returned."""
        known = (places := self.call_places(copies)) >= 0
        known[known] = copies["end"][known] <= self.calls["end"][places[known]]
        return np.asarray(known & (copies["end"] > 0))

    def stacks(self, records: NDArray[Any]) -> NDArray[np.intp]:
        """Of each record the number of its stack; 0 where there is none."""
        return self.known_stacks(self._noted(records, "stack"))

    def known_stacks(self, stacks: NDArray[Any]) -> NDArray[np.intp]:
        """These numbers; 0 in place of each of which the frames were not kept."""
        return np.where(stacks < len(self._places), stacks, 0).astype(np.intp)

    def _noted(self, records: NDArray[Any], what: str) -> NDArray[np.intp]:
        """Of each record what the recorder noted at its call; 0 where it noted nothing."""
        if not len(self.calls):
            return np.zeros(len(records), np.intp)
        places = self.call_places(records)
        return np.where(places < 0, 0, self.calls[what][places]).astype(np.intp)

    def _ranges(self, records: NDArray[Any], weights: NDArray[Any] | None = None) -> str | None:
        """Names of the ranges that were open at the calls of these records, the one of most weight first."""
        numbers = self._noted(records, "range")
        totals = np.bincount(numbers, weights, len(self._range_names) + 1)[1 : len(self._range_names) + 1]
        seen = np.unique(numbers[(numbers > 0) & (numbers <= len(self._range_names))]) - 1
        names = [self._range_names[place] for place in seen[np.argsort(-totals[seen], kind="stable")]]
        more = [f"{len(names) - MOST_RANGES:,} more"] if len(names) > MOST_RANGES else []
        return ", ".join([*names[:MOST_RANGES], *more]) or None

    def lines(self, records: NDArray[Any]) -> NDArray[np.intp]:
        """Of each record the number of its line in :attr:`files` and :attr:`line_numbers`."""
        return self.line_of_stacks(self.stacks(records))

    def line_of_stacks(self, stacks: NDArray[np.intp]) -> NDArray[np.intp]:
        """Likewise of numbers of stacks."""
        return np.asarray(self._line_of_stack[stacks], np.intp)

    @cached_property
    def files(self) -> NDArray[Any]:
        """Of each line its file; empty where no Python code made the call."""
        return np.asarray([file for file, _, _ in self._kinds], object)

    @cached_property
    def line_numbers(self) -> NDArray[np.int32]:
        """Of each line its number in the file."""
        return np.asarray([line for _, line, _ in self._kinds], np.int32)

    def _call_starts(self, copies: NDArray[Any]) -> NDArray[np.int64]:
        places = self.call_places(copies)
        if not len(self.calls):
            return np.asarray(copies["start"])
        return np.where(places < 0, copies["start"], self.calls["start"][places])

    @cached_property
    def call_names(self) -> NDArray[Any]:
        """Of each call the name of its function."""
        return np.asarray(self._function_names, object)[self._functions[1]]

    @cached_property
    def _function_names(self) -> list[str]:
        return [_VERSION.sub("", self._names.get(int(name), "")) for name in self._functions[0]]

    @cached_property
    def _functions(self) -> tuple[NDArray[np.uint32], NDArray[np.intp]]:
        """The different functions, and which one each call is."""
        different, which = np.unique(self.calls["function"], return_inverse=True)
        return different, which.reshape(-1)

    # Devices

    @cached_property
    def busy(self) -> dict[int, Busy]:
        """Device → when its compute was busy; every device that ran or copied something."""
        devices = {*np.unique(self.kernels["device_id"]).tolist(), *np.unique(self.copies["device_id"]).tolist()}
        done = self.kernels["end"] > 0
        busy = {}
        for device in sorted(devices):
            rows = done & (self.kernels["device_id"] == device)
            busy[device] = Busy(self.kernels["start"][rows], self.kernels["end"][rows])
        return busy

    # Copies

    @cached_property
    def _ends_of_copies(self) -> NDArray[np.int64]:
        """Of each copy when both it and its call are over."""
        places = self.call_places(self.copies)
        ends = np.asarray(self.copies["end"])
        return np.where(places < 0, ends, np.maximum(ends, self.calls["end"][places])) if len(self.calls) else ends

    @cached_property
    def idle_of_copies(self) -> NDArray[np.int64]:
        """Nanoseconds of idle compute for each copy, from its call's beginning until both are over."""
        idle = np.zeros(len(self.copies), np.int64)
        starts, ends = self._call_starts(self.copies), self._ends_of_copies
        for device, busy in self.busy.items():
            rows = np.flatnonzero((self.copies["device_id"] == device) & (self.copies["end"] > 0))
            if len(rows):
                begun, over = once(starts[rows], ends[rows])
                idle[rows] = over - begun - busy.within(begun, over)
        return idle

    @cached_property
    def launch_idle_of_copies(self) -> NDArray[np.int64]:
        """Nanoseconds of idle compute behind each large pageable copy, until the CPU is held again: the kernels come as
        they are issued. Of it counts what the program could have issued during the copy: as long as compute was busy
        while the call held the CPU. No moment counts twice, nor one that is in :attr:`idle_of_copies` of a pageable
        copy."""
        idle = np.zeros(len(self.copies), np.int64)
        places, starts, ends = self.call_places(self.copies), self._call_starts(self.copies), self._ends_of_copies
        pageable = (self.copies["src_kind"] == _PAGEABLE) | (self.copies["dst_kind"] == _PAGEABLE)
        pageable &= np.isin(self.copies["copy_kind"], _OVER_THE_LINK) & (self.copies["end"] > 0)
        holding = pageable & (self.copies["bytes"] > LARGE_BYTES) & (places >= 0)
        ahead = holding & self._is_asynchronous(places)  # from pinned memory the program goes on at once
        begun = np.sort(self.calls["start"][np.concatenate([places[holding], self.waits()])])
        for device, busy in self.busy.items():
            here = self.copies["device_id"] == device
            rows = np.flatnonzero(ahead & here)
            rows = rows[ends[rows] == np.maximum.accumulate(ends[rows])]  # of several at once the last one
            following = np.searchsorted(begun, ends[rows])
            until = np.append(begun, busy.end)[following]
            until = np.maximum(np.minimum(until, busy.end), ends[rows])
            after, until = once(ends[rows], until)
            counted = busy.also(starts[pageable & here], ends[pageable & here])  # idle compute of a copy is its own
            gaps = until - after - counted.within(after, until)
            calls = self.calls[places[rows]]
            idle[rows] = np.minimum(gaps, busy.within(calls["start"], calls["end"]))
        return idle

    @cached_property
    def site_of_copies(self) -> NDArray[np.intp]:
        """Number of the site of each copy: the same line, kinds of memory, direction and device."""
        copies = self.copies
        return self._first_site + _combined(
            self._line_of_stack[self.stacks(copies)],
            np.minimum(copies["copy_kind"], len(DIRECTIONS) - 1),
            np.minimum(copies["src_kind"], len(MEMORY) - 1),
            np.minimum(copies["dst_kind"], len(MEMORY) - 1),
            copies["device_id"],
        )

    def sites(self) -> Iterator[TraceRow]:
        """Copies of the same line, kinds of memory, direction and device."""
        places, stacks = self.call_places(self.copies), self.stacks(self.copies)
        for number, rows in _groups(self.site_of_copies):
            copies = self.copies[rows]
            first, ended = copies[0], copies["end"] > 0
            yield unnumbered(
                kind="site",
                number=number,
                device=int(first["device_id"]),
                direction=_word(DIRECTIONS, first["copy_kind"]),
                source=_word(MEMORY, first["src_kind"]),
                target=_word(MEMORY, first["dst_kind"]),
                count=len(copies),
                bytes=int(copies["bytes"].sum()),
                median_bytes=float(np.median(copies["bytes"])),
                largest_bytes=int(copies["bytes"].max()),
                large_count=int((copies["bytes"] > LARGE_BYTES).sum()),
                copy_seconds=float((copies["end"] - copies["start"])[ended].sum()) / 1e9,
                call_seconds=self._call_seconds(places[rows]),
                first_seconds=self.since_first(copies["start"]),
                idle_seconds=float(self.idle_of_copies[rows].sum()) / 1e9 if len(self.kernels) else None,
                launch_idle_seconds=float(self.launch_idle_of_copies[rows].sum()) / 1e9 if len(self.kernels) else None,
                **self.where(int(stacks[rows][0])),
                call=self._call_name(int(places[rows][0])),
                ranges=self._ranges(copies, copies["bytes"]),
                by_order_count=int(self._by_order[rows].sum()) or None,
                **self.host.of_copies(places[rows], copies["bytes"]),
                **self._memory_of(copies),
            )

    def _memory_of(self, copies: NDArray[Any]) -> dict[str, Any]:
        """What memory of the host pageable copies came from or went to."""
        if _PAGEABLE not in (copies[0]["src_kind"], copies[0]["dst_kind"]):
            return {}
        return of_site([look for number in copies["correlation_id"].tolist() if (look := self._looks.get(number))])

    def sizes(self) -> Iterator[tuple[str, int, int, int]]:
        """Copies over the link by size: direction, the largest size that counts as such, how many, and their bytes."""
        for direction in ("h2d", "d2h"):
            ways = [number for number, way in enumerate(DIRECTIONS) if way == direction]
            copied = self.copies["bytes"][np.isin(self.copies["copy_kind"], ways)]
            places = np.minimum(np.searchsorted(SIZES, copied), len(SIZES) - 1)
            for place in np.unique(places):
                these = copied[places == place]
                yield direction, int(SIZES[place]), len(these), int(these.sum())

    def since_first(self, starts: NDArray[Any]) -> float:
        """Seconds from the first copy or kernel of all to the first of these whose time is known."""
        known = starts[starts > 0]
        return max(int(known.min()) - self.active_ns[0], 0) / 1e9 if self.active_ns and len(known) else 0.0

    def _call_seconds(self, places: NDArray[np.intp]) -> float:
        """Of different calls: copies of one graph have the same."""
        calls = self.calls[np.unique(places[places >= 0])]
        return float((calls["end"] - calls["start"]).sum()) / 1e9

    def _call_name(self, place: int) -> str | None:
        return str(self.call_names[place]) if place >= 0 else None

    def where(self, stack: int) -> dict[str, Any]:
        """The line of a stack, as fields of its row."""
        place: Place = self._places[stack]
        library_file, library_line = place.library or (None, None)
        return {
            "file": place.file,
            "line": place.line,
            "function": place.function,
            "source_line": place.source,
            "stack": place.stack,
            "library_file": library_file,
            "library_line": library_line,
        }

    # What the CPU does for copies

    @cached_property
    def host(self) -> HostWork:
        """Calls of libraries that move data of the host."""
        done = [table[table["end"] > 0] for table in (self.kernels, self.copies)]
        busy = Busy(*(np.concatenate([table[name] for table in done]) for name in ("start", "end")))
        own = np.asarray([is_own(place.file, library_folders()) for place in self._places])
        looked = {number: int(look.get("took_ns", 0)) for number, look in self._looks.items()}
        return HostWork(self._host_calls, self.host_names, own, self.calls, busy, looked)

    def host_calls(self) -> Iterator[TraceRow]:
        """These by line and call."""
        host, taken = self.host, self.pinned.taken
        places = self.call_places(taken)
        for _, rows in _groups(_combined(self._line_of_stack[host.calls["stack"]], host.kinds)):
            calls = host.calls[rows]
            yield unnumbered(
                kind="host_call",
                first_seconds=self.since_first(calls["start"]),
                **self.where(int(calls["stack"][0])),
                **host.together(rows, places, taken["bytes"]),
            )

    def loaders(self) -> Iterator[TraceRow]:
        """Each DataLoader with each site that copies large tensors of its batches, and how many copies those are."""
        rows = np.flatnonzero(self.copies["bytes"] > LARGE_BYTES)
        places = self.call_places(self.copies[rows])
        rows, places = rows[places >= 0], places[places >= 0]
        calls = self.host.of_driver_calls[places]
        rows, calls = rows[calls >= 0], calls[calls >= 0]
        loaders, sites = self.host.calls["flags"][calls] >> LOADER, self.site_of_copies[rows]
        for (loader, site), count in Counter(zip(loaders.tolist(), sites.tolist(), strict=True)).items():
            if (made := self._made_loaders.get(loader)) is not None:
                stack = int(self.known_stacks(np.asarray([made["stack"]]))[0])
                pins, workers = made["pins"], made["workers"]
                yield unnumbered(
                    kind="loader", number=site, count=count, pins_batches=pins, workers=workers, **self.where(stack)
                )

    # Pinned memory

    @cached_property
    def pinned(self) -> PinnedMemory:
        """What was allocated and registered, and when it was released."""
        return PinnedMemory(self._allocations)

    def allocated(self, peak_ns: int) -> Iterator[TraceRow]:
        """Pinned memory by the line that allocated or registered it; ``peak_ns``: when the program had most."""
        taken, left, held = self.pinned.taken, self.pinned.is_left, self.pinned.held
        at_peak = self.pinned.is_there(peak_ns)
        places, stacks = self.call_places(taken), self.stacks(taken)
        for rows in self._by_line_and_call(places, stacks):
            yield unnumbered(
                kind="allocation",
                call=self._call_name(int(places[rows][0])) or "",
                count=len(rows),
                bytes=int(taken["bytes"][rows].sum()),
                call_seconds=self._call_seconds(places[rows]),
                first_seconds=self.since_first(taken["timestamp"][rows]),
                left_count=int(left[rows].sum()),
                left_bytes=int(taken["bytes"][rows][left[rows]].sum()),
                held_bytes=int(held[rows].sum()),
                peak_bytes=self.pinned.peak(rows),
                at_peak_bytes=int(taken["bytes"][rows][at_peak[rows]].sum()),
                **self.where(int(stacks[rows][0])),
                ranges=self._ranges(taken[rows], taken["bytes"][rows]),
            )

    # Failed calls

    def failed_calls(self) -> Iterator[TraceRow]:
        """Calls that returned an error, by line, function and error; the earliest first."""
        for failure in failures(self.failed, self.failed_functions, self._line_of_stack[self.failed["stack"]]):
            first, noticed = failure.first, failure.noticed
            name = self.failed_functions.get(int(first["function"]), "")
            yield unnumbered(
                kind="failed_call",
                call=name,
                error=int(first["error"]),
                error_name=error_name(int(first["error"]), name),
                count=failure.count,
                bytes=int(first["bytes"]) or None,
                is_elsewhere=bool(first["elsewhere"]),
                follows_lost_context=failure.follows,
                **self.where(int(first["stack"])),
                **self._earlier(first, name),
                **({} if noticed is None else self._place_fields("noticed", int(noticed["stack"]))),
                noticed_count=failure.noticed_count or None,
            )

    def _earlier(self, first: Any, name: str) -> dict[str, Any]:
        """The line that had made a call fail; of an error by a kernel, and of a call without a line, the last recorded
        one before."""
        memory = earlier_memory(first, name, self._allocations)
        if memory is not None:
            place = int(self.call_places(np.asarray([memory]))[0])
            cause = "taken" if memory["memory_operation_type"] == ALLOCATES else "released"
        elif (
            int(first["error"]) in LOSES_CONTEXT
            or READS_ERROR.match(name)
            or not self._places[int(first["stack"])].file
        ):
            before = (self.calls["end"] < first["moment"]) & (self._line_of_stack[self.stacks(self.calls)] > 0)
            before &= ~np.isin(self.calls["correlation_id"], self.failed["correlation_id"])
            place = int(np.argmax(np.where(before, self.calls["end"], 0))) if before.any() else -1
            cause = "before"
        else:
            return {}
        if place < 0:
            return {}
        return {"earlier": cause, **self._place_fields("earlier", int(self.stacks(self.calls)[place]))}

    def _place_fields(self, which: str, stack: int) -> dict[str, Any]:
        place: Place = self._places[stack]
        return {f"{which}_file": place.file, f"{which}_line": place.line}

    # Waiting

    def waited(self) -> Iterator[TraceRow]:
        """Calls that wait for the GPU, and how long its compute then stands idle."""
        places = self.waits()
        places = places[np.argsort(self.calls["end"][places], kind="stable")]
        calls = self.calls[places]
        stacks, idle, after = self.stacks(calls), self._idle_after(calls), self._while_copying(calls)
        for rows in self._by_line_and_call(places, stacks):
            yield unnumbered(
                kind="synchronisation",
                call=self._call_name(int(places[rows][0])),
                count=len(rows),
                call_seconds=self._call_seconds(places[rows]),
                first_seconds=self.since_first(calls["start"][rows]),
                after_async_count=int(after[rows].sum()),
                idle_seconds=float(idle[rows].sum()) / 1e9,
                longest_idle_seconds=float(idle[rows].max()) / 1e9,
                **self.where(int(stacks[rows][0])),
                ranges=self._ranges(calls[rows]),
            )

    def waits(self) -> NDArray[np.intp]:
        """Places of the calls that wait. Of copies these are those between a host and a GPU."""
        names = self._function_names
        waits = [number for number, name in enumerate(names) if WAITS.search(name)]
        copies = [number for number in waits if "Memcpy" in names[number]]
        places = np.flatnonzero(np.isin(self._functions[1], waits))
        over_the_link = self.copies["correlation_id"][np.isin(self.copies["copy_kind"], _OVER_THE_LINK)]
        other = np.isin(self._functions[1][places], copies)
        other[other] = ~np.isin(self.calls["correlation_id"][places[other]], over_the_link)
        return np.asarray(places[~other], np.intp)

    def _idle_after(self, calls: NDArray[Any]) -> NDArray[np.int64]:
        """Compute's idle time after each wait, without that of copies, until the next wait is over."""
        done = self.kernels["end"] > 0
        gaps = Busy(self.kernels["start"][done], self.kernels["end"][done]).idle_after(calls["end"])
        gaps[:-1] = np.minimum(gaps[:-1], np.diff(calls["end"]))
        until = calls["end"] + gaps
        of_others = self._idle_of_copies_within(calls["end"], until) + self.host.idle_within(calls["end"], until)
        return np.asarray(gaps - np.minimum(of_others, gaps))

    def _idle_of_copies_within(self, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
        """How much of each stretch, in which no kernel runs, counts as idle compute of copies."""
        ended = self.copies["end"] > 0
        begun, over = self._call_starts(self.copies)[ended], self._ends_of_copies[ended]
        order = np.argsort(over)
        launching = np.append(0, np.cumsum(self.launch_idle_of_copies[ended][order]))
        first, behind = (np.searchsorted(over[order], moments) for moments in (starts, ends))
        counted = Busy(begun, over).within(starts, ends) + launching[behind] - launching[first]
        return np.asarray(np.minimum(counted, ends - starts))

    def _while_copying(self, calls: NDArray[Any]) -> NDArray[np.bool_]:
        """Which calls began while a large copy ran that is asynchronous: from or to pinned memory, by such a call."""
        places = self.call_places(self.copies)
        known = self._is_asynchronous(places) & (self.copies["bytes"] > LARGE_BYTES) & (self.copies["end"] > 0)
        pinned = (self.copies["src_kind"] == _PINNED) | (self.copies["dst_kind"] == _PINNED)
        rows = np.flatnonzero(known & pinned)
        if not len(rows):
            return np.zeros(len(calls), bool)
        reached = np.maximum.accumulate(self.copies["end"][rows])  # in the order in which they were issued
        before = np.searchsorted(self.calls["start"][places[rows]], calls["start"]) - 1
        return np.asarray((before >= 0) & (reached[np.maximum(before, 0)] > calls["start"]))

    def _is_asynchronous(self, places: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Which of these calls, by their places, may return before their work is done."""
        functions = [number for number, name in enumerate(self._function_names) if "Async" in name]
        is_known = places >= 0
        is_known[is_known] = np.isin(self._functions[1][places[is_known]], functions)
        return is_known

    def _by_line_and_call(self, places: NDArray[np.intp], stacks: NDArray[np.intp]) -> Iterator[NDArray[np.intp]]:
        """Places of the records of each line and function."""
        if not len(places):
            return
        functions = np.where(places < 0, -1, self._functions[1][places]) if len(self.calls) else places
        for _, rows in _groups(_combined(self._line_of_stack[stacks], functions + 1)):
            yield rows


def _combined(*labels: NDArray[Any]) -> NDArray[np.intp]:
    """A number for each combination of labels, which are whole numbers from 0 on: 0, 1, 2 … in their order."""
    keys = np.zeros(len(labels[0]), np.int64)
    for label in labels:
        keys = keys * (int(label.max(initial=0)) + 1) + label
    return np.unique(keys, return_inverse=True)[1].reshape(-1)


def find(values: NDArray[Any], wanted: NDArray[Any], *, ascending: bool = True) -> NDArray[np.intp]:
    """Place of each wanted value among these, which are in ascending order or in any; −1 where it is not there."""
    if not len(values):
        return np.full(len(wanted), -1)
    order = None if ascending else np.argsort(values, kind="stable")
    places = np.minimum(np.searchsorted(values, wanted, sorter=order), len(values) - 1)
    places = places if order is None else order[places]
    return np.where(values[places] == wanted, places, -1)


def _groups(numbers: NDArray[np.intp]) -> Iterator[tuple[int, NDArray[np.intp]]]:
    """Each number, and the places at which it stands, in their order."""
    order = np.argsort(numbers, kind="stable")
    cuts = np.flatnonzero(np.diff(numbers[order])) + 1
    for rows in np.split(order, cuts):
        if len(rows):
            yield int(numbers[rows[0]]), rows


def _word(words: Sequence[str], number: Any) -> Any:
    return words[int(number)] if int(number) < len(words) else words[0]
