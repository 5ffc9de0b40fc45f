"""Reads what the recorder writes: activity buffers, the stack of each call, and why it ended early."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import InitVar, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pinscope.text import encodable
from pinscope.tracing.places import Sources
from pinscope.tracing.stacks import Frame

TABLES = {
    "MEMCPY": "copies",
    "CONCURRENT_KERNEL": "kernels",
    "MEMORY2": "allocations",
    "UNIFIED_MEMORY_COUNTER": "migrations",
}
"""CUPTI's kinds of records that are kept, each with the table that it goes to."""


def _type(**fields: str) -> np.dtype[Any]:
    return np.dtype(list(fields.items()))


_KINDS = dict.fromkeys(("copy_kind", "src_kind", "dst_kind", "flags_"), "u1")
TYPES: Mapping[str, np.dtype[Any]] = {
    "copies": _type(correlation_id="u4", device_id="u4", stream_id="u4", **_KINDS, bytes="i8", start="i8", end="i8"),
    "kernels": _type(correlation_id="u4", device_id="u4", stream_id="u4", start="i8", end="i8"),
    "allocations": _type(
        correlation_id="u4", memory_operation_type="i4", memory_kind="i4", address="u8", bytes="i8", timestamp="i8"
    ),
    "migrations": _type(counter_kind="i4", flags_="u4", value="i8", start="i8", end="i8"),
}
"""What is kept of each record. An end is 0 where none was recorded, and never before its start. The start of a copy is
0 where CUPTI could not time it; such kernels are left out."""
MANAGED = 5
_KEPT = (2, MANAGED)
"""Kinds of memory of which allocations are kept; the first is pinned memory."""
TO_GPU, TO_HOST, CPU_FAULT, GPU_FAULT = 1, 2, 3, 4
"""Kinds of counters of managed memory: bytes that moved, and page faults."""
_INTEGER = struct.Struct("<I")
_DONE = ".done"
CALLS = _type(correlation_id="u4", function="u4", thread="u4", stack="u4", range="u4", start="i8", end="i8")
"""The recorder's ``mapped_file.ENTRY``."""
_NOTED = [("correlation_id", "u8"), ("function", "u8"), ("start", "i8", 2), ("end", "i8", 2), ("parameters", "u8", 3)]
_LANES = np.dtype([("thread", "u4"), ("stack", "u4"), ("range", "u4"), ("calls", _NOTED, 2)])
"""Its ``LANE_ENTRY``: a correlation id is 0 where there is no call."""
DATA = _type(correlation_id="u4", kind="u4", other="u4")
"""Its ``host_data.DATA``."""
HOST_CALLS = _type(
    name="u4", thread="u4", stack="u4", range="u4", flags="u4", major_faults="u4",
    start="i8", end="i8", bytes="i8", processor="i8", minor_faults="i8",
)  # fmt: skip
"""Its ``HOST_ENTRY``."""
WATCHED = _type(copy="u4", name="u4", stack="u4", moment="i8")
"""Its ``READ_ENTRY``."""
FAILED = _type(
    function="u4", error="u4", thread="u4", stack="u4", elsewhere="u4", count="u4", correlation_id="u4",
    address="u8", bytes="u8", moment="i8",
)  # fmt: skip
"""The recorder's ``error_filter.FAILED_ENTRY``."""
STANDING = _type(since="i8", until="i8", stack="u4")
"""The recorder's ``managed.STANDING``."""


@dataclass
class Spool:
    """A spool, while it grows and afterwards: of the program, or of a process that it started.

    Attributes:
        folder: where it lies.
        program: folder of the program's spool, where this is another process of it.
        known: what ``config.json`` of the program's spool says; read if it is not given. It goes when a part ends.
        unreadable_bytes: of buffers that held something of unknown length; what stood behind it is lost.
    """

    folder: Path
    program: Path | None = None
    known: InitVar[Mapping[str, Any] | None] = None
    unreadable_bytes: int = 0

    def __post_init__(self, known: Mapping[str, Any] | None) -> None:
        self.config: Mapping[str, Any] = known or json.loads((self.folder / "config.json").read_bytes())
        self._names = {int(number): name for name, number in self.config["kinds"].items()}
        layouts = {int(number): layout for number, layout in self.config["layouts"].items()}
        self._sizes = {number: int(layout["size"]) for number, layout in layouts.items()}
        self._types = {name: _type_in(layouts[number], TYPES[TABLES[name]]) for number, name in self._names.items()}

    def children(self) -> Iterator[Spool]:
        """The spools of other processes so far."""
        for folder in sorted(self.folder.glob("process.*")):
            yield Spool(folder, self.folder, self.config)

    def take(self, ended: bool = False) -> Iterator[Mapping[str, NDArray[Any]]]:
        """The records of each buffer that is complete, by kind; once each: its file is gone afterwards.

        Args:
            ended: the program has: then also those that CUPTI did not give back.
        """
        for name in sorted({path.name.removesuffix(_DONE) for path in self.folder.glob("buffer.*")}):
            whole = self.folder / f"{name}{_DONE}"
            names = (self.folder / name, whole) if ended else (whole,)
            for path in names:  # a process that outlives the program may give its buffer back just now
                with suppress(FileNotFoundError):
                    content = path.read_bytes()
                    break
            else:
                continue
            buffer = self.decode(content, whole=path == whole)
            if not ended:
                yield buffer
            for path in names:
                path.unlink(missing_ok=True)
            if ended:  # the disk may be full, and who keeps it needs the room
                yield buffer

    def decode(self, content: bytes, whole: bool = True) -> dict[str, NDArray[Any]]:
        """The records of one buffer; ``whole``: it ends with its last record, not somewhere before its end."""
        places: dict[int, list[int]] = {number: [] for number in self._sizes}
        at, end = 0, len(content) - _INTEGER.size
        while at <= end:
            (kind,) = _INTEGER.unpack_from(content, at)
            size = self._sizes.get(kind)
            if size is None or at + size > len(content):
                self.unreadable_bytes += len(content) - at if whole else 0
                break
            places[kind].append(at)
            at += size
        raw = np.frombuffer(content, np.uint8)
        return {
            self._names[kind]: raw[np.asarray(starts)[:, None] + np.arange(self._sizes[kind])]
            .view(self._types[self._names[kind]])
            .reshape(-1)
            for kind, starts in places.items()
            if starts
        }

    def stacks(self) -> list[list[Frame]]:
        """All stacks so far; that of number n stands at n − 1. The innermost frame is the first of each."""
        return [[(file, line, name) for file, line, name in frames or ()] for frames in self._numbered("stacks")]

    def new_stacks(self, since: int) -> tuple[list[list[Frame]], int]:
        """Stacks that were written behind a place of their file, and the place behind them."""
        path = self.folder / "stacks"
        if not path.exists() or path.stat().st_size <= since:
            return [], since
        with path.open("rb") as file:
            file.seek(since)
            whole, line_end, _ = file.read().rpartition(b"\n")
        stacks = [json.loads(text)[1] or () for text in whole.splitlines()]
        return [[(file, line, name) for file, line, name in stack] for stack in stacks], since + len(whole + line_end)

    def memory(self) -> list[Mapping[str, Any]]:
        """What was seen of the memory of copies: :data:`pinscope.tracing.source_memory`."""
        return list(self._lines("memory"))

    def standing(self) -> NDArray[Any]:
        """Where the program stood, and when, since it had managed memory: fields of :data:`STANDING`."""
        return self._entries("standing", STANDING)

    def ranges(self) -> list[str]:
        """Names of the ranges so far; that of number n stands at n − 1."""
        return [encodable(name or "") for name in self._numbered("ranges")]

    def _numbered(self, name: str) -> list[Any]:
        """What a file says of each number, from 1 on; ``None`` where it says nothing."""
        values = {int(number): value for number, value in self._lines(name)}
        return [values.get(number) for number in range(1, max(values, default=0) + 1)]

    def recorded_ns(self, begun_ns: int, ended_ns: int) -> int:
        """For how long the recording was switched on.

        Args:
            begun_ns: when the program began.
            ended_ns: when it was gone.
        """
        total, since = 0, None
        for moment, on in [*self.switches(), (ended_ns, False)]:
            if since is not None:
                total += max(min(moment, ended_ns) - max(since, begun_ns), 0)
            since = moment if on else None
        return total

    def switches(self) -> list[tuple[int, bool]]:
        """When the recording was switched, and whether on."""
        return [(int(switch["ns"]), bool(switch["on"])) for switch in self._lines("switched")]

    def _lines(self, name: str) -> Iterator[Any]:
        """The documents of a file that has one on each line; a half-written one is left out."""
        path = self.folder / name
        if path.exists():
            yield from (json.loads(text) for text in path.read_bytes().splitlines(keepends=True) if text[-1:] == b"\n")

    def _entries(self, files: str, kind: np.dtype[Any], noted: str = "") -> NDArray[Any]:
        """The entries of some files, as far as they are whole, and ``noted``, a field that is 0 before, says so."""
        pieces = [np.fromfile(path, kind) for path in sorted(self.folder.glob(files))]
        entries = np.concatenate([np.empty(0, kind), *pieces])
        return entries[entries[noted] > 0] if noted else entries

    def calls(self) -> NDArray[Any]:
        """All calls that are over so far, in the order of their correlation ids: fields of :data:`CALLS`. One during
        which the clock was set back took no time."""
        calls = np.concatenate([self._calls_in_lanes(), self._entries("calls.*", CALLS, "end")])
        calls["end"] = np.maximum(calls["start"], calls["end"])
        return calls[np.argsort(calls["correlation_id"], kind="stable")]

    def _calls_in_lanes(self) -> NDArray[Any]:
        lanes = self._entries("lanes.*", _LANES)
        noted = lanes["calls"].reshape(-1)
        calls = np.empty(len(noted), CALLS)
        for name in ("thread", "stack", "range"):
            calls[name] = lanes[name].repeat(2)
        for name in ("correlation_id", "function"):
            calls[name] = noted[name]
        for name in ("start", "end"):
            calls[name] = noted[name] @ [10**9, 1]
        return calls[noted["correlation_id"] > 0]

    def loaders(self) -> dict[int, Mapping[str, Any]]:
        """DataLoaders by their numbers: the stack that made them, and what they are."""
        return dict(self._lines("loaders"))

    def data(self) -> NDArray[Any]:
        """What is known of the data of copies: fields of :data:`DATA`."""
        return self._entries("data.*", DATA, "kind")

    def host_calls(self) -> NDArray[Any]:
        """All calls of libraries that moved data of the host so far, in the order of their beginnings: fields of
        :data:`HOST_CALLS`."""
        calls = self._entries("host_calls.*", HOST_CALLS, "end")
        calls["end"] = np.maximum(calls["start"], calls["end"])
        return calls[np.argsort(calls["start"], kind="stable")]

    def watched(self) -> NDArray[Any]:
        """Copies that were watched, each at least once, and calls that read what they copied: fields of
        :data:`WATCHED`."""
        return self._entries("watched", WATCHED)

    def host_names(self) -> list[tuple[str, str]]:
        """Of each number of these, from 0 on, the call and what it did to the data."""
        return [
            ("", ""),
            *((str(name), str(detail)) for name, detail in (each or ("", "") for each in self._numbered("host_names"))),
        ]

    @property
    def least_calls(self) -> int:
        """About how many there are so far: those of the newest files are not counted."""
        tables = {"calls.*": CALLS, "lanes.*": _LANES, "host_calls.*": HOST_CALLS, "failed.*": FAILED}
        return sum(
            path.stat().st_size // table.itemsize
            for name, table in tables.items()
            for path in sorted(self.folder.glob(name))[:-1]
        )

    def failed(self) -> NDArray[Any]:
        """All calls that returned an error, in the order in which they were over: fields of :data:`FAILED`."""
        failed = self._entries("failed.*", FAILED, "moment")
        return failed[np.argsort(failed["moment"], kind="stable")]

    def failed_functions(self) -> dict[int, str]:
        """The functions of these → their names."""
        return {int(number): str(name) for number, name in self._lines("failed_functions")}

    def document(self, name: str) -> Mapping[str, Any] | None:
        """``started.json``, ``ended.json`` or ``refused.json``; ``None`` if it is not there, or not whole."""
        document: Mapping[str, Any] | None = None
        with suppress(FileNotFoundError, ValueError):
            document = json.loads((self.folder / name).read_bytes())
        return document

    def said(self, name: str) -> str | None:
        """``fault``: why the recording ended before the program did; ``full``: which lines are named, if not all are;
        one line, ``None`` where nothing is said."""
        path = self.folder / name
        if not path.exists():
            return None
        return path.read_text("utf-8", errors="replace").partition("\n")[0] or "the reason could not be written"

    def stop(self) -> None:
        """Let the recorders of all processes end; the program goes on. Where there is no room to say so, theirs ends
        by that, too."""
        with suppress(OSError):
            ((self.program or self.folder) / "stop").touch()


def _type_in(layout: Mapping[str, Any], wanted: np.dtype[Any]) -> np.dtype[Any]:
    """A NumPy type for these fields of a record, where CUPTI has them."""
    places = [layout["fields"][name] for name in wanted.names or ()]
    offsets, formats = ([place[number] for place in places] for number in (0, 1))
    return np.dtype(
        {"names": list(wanted.names or ()), "formats": formats, "offsets": offsets, "itemsize": layout["size"]}
    )


@dataclass(frozen=True)
class Scope:
    """What of a program is recorded; by default all of it.

    Attributes:
        stacks: keep the Python stack of each call; without them no line is named.
        start_after: seconds from the program's start in which nothing is recorded.
        for_seconds: how long is recorded from then on; ``None``: to the end.
        only_parts: only while a part that ``pinscope.trace`` names is open.
        children: also the Python processes that the program starts.
    """

    stacks: bool = True
    start_after: float = 0.0
    for_seconds: float | None = None
    only_parts: bool = False
    children: bool = True

    @property
    def is_part(self) -> bool:
        """Some of the program may be left out."""
        return bool(self.start_after) or self.for_seconds is not None or self.only_parts

    def config(self, begun_ns: int) -> Mapping[str, Any]:
        """What the recorder reads of it.

        Args:
            begun_ns: when the program starts.
        """
        begin = begun_ns + int(self.start_after * 1e9) if self.start_after else None
        until = None if self.for_seconds is None else (begin or begun_ns) + int(self.for_seconds * 1e9)
        return {
            "stacks": self.stacks,
            "from_ns": begin,
            "until_ns": until,
            "only_parts": self.only_parts,
            "children": self.children,
        }


class RecordFiles:
    """The records of a spool, moved into a file for each table.

    Args:
        spool: where they come from.
        folder: where the files are made.
    """

    def __init__(self, spool: Spool, folder: Path) -> None:
        self.spool = spool
        self.records = 0
        """How many are there: those that are kept, and the calls."""
        self._kept = 0
        self.is_full = False
        """No more are kept."""
        self._folder = folder
        self._sources, self._stacks_end = Sources(), 0

    def take(self, ended: bool = False) -> None:
        """Take what is there; ``ended``: the program has."""
        for buffer in self.spool.take(ended):
            if not self.is_full:
                self._keep(buffer)
        stacks, self._stacks_end = self.spool.new_stacks(self._stacks_end)
        self._sources.look(stacks)
        self.records = self._kept + self.spool.least_calls

    def _keep(self, buffer: Mapping[str, NDArray[Any]]) -> None:
        """Keep the records of a buffer: all of them or, where the disk is full, none."""
        ends: dict[Path, int] = {}
        records = 0
        try:
            for kind, batch in buffer.items():
                name = TABLES[kind]
                kept = batch[_is_kept(name, batch)].astype(TYPES[name])
                if name != "allocations":
                    is_timed = (kept["start"] > 0) & (kept["end"] > 0)
                    kept["end"] = np.where(is_timed, np.maximum(kept["start"], kept["end"]), 0)
                with (self._folder / name).open("ab") as file:
                    ends[self._folder / name] = file.tell()
                    file.write(kept.data)
                records += len(kept)
        except OSError:
            for path, end in ends.items():
                os.truncate(path, end)
            raise
        self._kept += records

    def table(self, name: str) -> NDArray[Any]:
        """A table, in the order in which its records came; it stays on the disk."""
        path = self._folder / name
        if not path.exists() or not path.stat().st_size:
            return np.empty(0, TYPES[name])
        return np.memmap(path, TYPES[name], mode="r")


def _is_kept(name: str, batch: NDArray[Any]) -> Any:
    """Which records a table takes."""
    if name == "allocations":
        return np.isin(batch["memory_kind"], _KEPT)
    return batch["start"] > 0 if name == "kernels" else slice(None)
