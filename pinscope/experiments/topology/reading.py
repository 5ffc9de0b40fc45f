"""All GPUs of a host: rates alone and at once, who shares an uplink, page tables, and memory opened across GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Annotated, Any

from pinscope.analysis.cells import Label, Value, cells, every_combination, first
from pinscope.analysis.conclusions import is_distinct, known_within, part_of, together
from pinscope.analysis.page_table_model import GPU_PAGE_SIZES, page_table_memory_bytes
from pinscope.analysis.rows import Row, Rows, counted, grouped, labels
from pinscope.analysis.rules.link import SHARED_UPLINK
from pinscope.analysis.statistics import Summary, measured, summarize
from pinscope.experiments.topology.ways import CONTEXTS, FLOWS, SOURCES, TOWARDS, OneWay, gpus_words, issuer
from pinscope.records.finding import Finding, Quantity, Table, quantity
from pinscope.units import format_bandwidth, format_bytes

ONE_WAY: tuple[OneWay, ...] = ("h2d", "d2h")
"""Directions that show uplinks: both at once may reach what host memory carries."""
ONE_UPLINK = 0.75
"""A pair below this share of its rates alone has an uplink in common: as wide as one GPU's link, it leaves half.
Between this and SHARED_UPLINK host memory can be the cause as well, and other users of it."""
MOST_FIGURES = 6
"""Of a headline."""
PAIRS_SLOWED = ("shared-uplink-", "slower-together-")
"""Beginnings of the rules that answer the question."""
RATE = "bytes/second"
TABLES = {
    "Every combination": "Medians, over the time in which all of these GPUs copied. Of the rates alone: together, "
    "divided by the sum of what each reaches alone. A bidirectional rate is the sum of both directions.",
    "Page tables of processes that register the same memory": "Measured: what the GPU's used memory grew by. Expected: "
    "8 bytes a 4 KiB page, in steps of 2 MiB, for each process with a context on the GPU. First process: what it grew "
    "by once the first process had registered; 0 B where that has no context on this GPU.",
    "Memory of one GPU, opened on another one": "Rates of large copies into the opened memory. Taken by opening: what "
    "used memory grew by on the GPU on which that memory lies, while the opener's own GPU was the current device.",
}
"""Title → note."""


@dataclass(frozen=True)
class Cell:
    """GPUs that copied at once.

    Attributes:
        placed: host memory ``near`` each, or all on one ``node``.
        nodes: GPU → the NUMA node on which its host memory lay; ``None`` where that is not known.
        bytes_per_second: of all together.
        own: GPU → its own bytes/second.
        wrong_count: words that did not arrive; ``None`` where nothing was compared.
        alone: bytes/second of each alone, from memory near it; empty where one was not measured alone.
    """

    gpus: Annotated[tuple[int, ...], Label("GPUs", words=lambda gpus: "+".join(map(str, gpus)))]
    direction: Annotated[str, Label("direction")]
    issued_by: Annotated[str, Label("issued by", words=issuer)]
    placed: str
    nodes: Mapping[int, int | None]
    bytes_per_second: Annotated[Summary, Value("together", RATE, "more")]
    own: Mapping[int, Summary]
    wrong_count: Annotated[int | None, Value("wrong words", "count", "less")]
    alone: tuple[Summary, ...] = ()

    @property
    def place(self) -> Annotated[str, Label("host memory")]:
        """Where the host memory lay, for people."""
        nodes = sorted({node for node in self.nodes.values() if node is not None})
        words = f"node {', '.join(map(str, nodes))}"
        return "not known" if not nodes else f"near ({words})" if self.placed == "near" else words

    @property
    def alone_share(self) -> Annotated[float | None, Value("of the rates alone", "share", "more")]:
        """What they reach together, of the sum of their rates alone; ``None`` of one GPU, or where that is unknown."""
        together = len(self.gpus) > 1 and self.alone
        return self.rate / sum(single.median for single in self.alone) if together else None

    @property
    def slowest_bytes_per_second(self) -> Annotated[float, Value("slowest GPU", RATE, "more")]:
        """Of the GPU that copied slowest."""
        return min(own.median for own in self.own.values())

    @property
    def fastest_bytes_per_second(self) -> Annotated[float, Value("fastest GPU", RATE, "more")]:
        """Of the GPU that copied fastest."""
        return max(own.median for own in self.own.values())

    @property
    def rate(self) -> float:
        """Bytes/second of all together, the median."""
        return self.bytes_per_second.median

    @property
    def towards(self) -> str:
        """Its direction as a sentence says it."""
        return f"{TOWARDS[self.direction]}{'s' if len(self.gpus) > 1 and self.direction in ONE_WAY else ''}"

    @property
    def compared(self) -> tuple[Summary, Summary]:
        """What the share is made of: the rate together, and of the rates alone the one that is known least."""
        return self.bytes_per_second, max(self.alone, key=known_within)

    @property
    def share_words(self) -> str:
        """The share as a sentence says it, no finer than it is known."""
        return part_of(self.alone_share or 0.0, *self.compared)

    def is_slowed(self, limit: float = SHARED_UPLINK) -> bool:
        """Whether these GPUs reach less than ``limit`` of their rates alone, and that is no chance."""
        share = self.alone_share
        return share is not None and share < limit and is_distinct(share, together(*self.compared))


@dataclass(frozen=True)
class PageTables:
    """What registering the same memory took on one GPU.

    Attributes:
        payers: how many of the processes have a context on the GPU.
        table_bytes: what the GPU's used memory grew by; ``None`` where it is not known, or not all have registered.
        first_bytes: the same after the first process.
    """

    device: Annotated[int, Label("GPU", "count")]
    processes: Annotated[int, Label("processes", "count")]
    contexts: Annotated[str, Label("context on", words=CONTEXTS.__getitem__)]
    bytes: Annotated[int, Label("registered", "bytes")]
    payers: int
    table_bytes: Annotated[int | None, Value("measured", "bytes", "less")]
    first_bytes: Annotated[int | None, Value("first process", "bytes", "less")]

    @property
    def expected_bytes(self) -> Annotated[int, Value("expected", "bytes")]:
        """By the page table's arithmetic: 8 bytes a 4 KiB page, in the driver's steps, for each that pays."""
        return self.payers * page_table_memory_bytes(self.bytes, GPU_PAGE_SIZES[0])

    @property
    def title(self) -> str:
        """Which GPU, and who registered."""
        return f"GPU {self.device}, {self.processes} processes with a context on {CONTEXTS[self.contexts]}"

    @property
    def is_known(self) -> bool:
        """Whether it is, and others gave nothing back meanwhile."""
        return self.table_bytes is not None and self.table_bytes >= 0


@dataclass(frozen=True)
class Opened:
    """Memory of one GPU opened by a process whose context is on another one, and copies there.

    Attributes:
        context_bytes: what the memory's GPU took more afterwards; ``None`` where it is not known.
    """

    device: Annotated[int, Label("memory on GPU", "count")]
    opener: Annotated[int, Label("opened from GPU", "count")]
    context_bytes: Annotated[int | None, Value("taken by opening", "bytes", "less", first)]
    open_seconds: Annotated[float | None, Value("opening", "seconds", "less", first)]
    host_bytes_per_second: Annotated[Summary | None, Value("from its pinned memory", RATE, "more")]
    device_bytes_per_second: Annotated[Summary | None, Value("from its own GPU", RATE, "more")]
    wrong_count: Annotated[int | None, Value("wrong words", "count", "less", sum, "wrong_words")]

    @property
    def rates(self) -> Mapping[str, Summary]:
        """Source → bytes/second of copies from there, where they were measured."""
        rates = zip(SOURCES, (self.host_bytes_per_second, self.device_bytes_per_second), strict=True)
        return {source: rate for source, rate in rates if rate}


@dataclass(frozen=True)
class Host:
    """All that was measured on a host."""

    rows: Rows

    @cached_property
    def cells(self) -> list[Cell]:
        """Every case of which a repeat counts, in the order measured."""
        copies = [row for row in self.rows if row["kind"] == "copy"]
        case = labels("issued_by", "gpus", "direction", "placed")
        groups = grouped(copies, lambda row: (*case(row), row["node"] if row["placed"] == "node" else None))
        known = [cell for group in groups.values() if (cell := _cell(group))]
        alone = {
            (cell.issued_by, cell.direction, cell.gpus[0]): cell.bytes_per_second
            for cell in known
            if len(cell.gpus) == 1 and cell.placed == "near"
        }

        def of_each(cell: Cell) -> tuple[Summary, ...]:
            keys = [(cell.issued_by, cell.direction, gpu) for gpu in cell.gpus]
            return tuple(alone[key] for key in keys) if alone.keys() >= set(keys) else ()

        return [replace(cell, alone=of_each(cell)) for cell in known]

    @cached_property
    def tables(self) -> list[PageTables]:
        """What processes took on each GPU, in the order measured."""
        pins = grouped((row for row in self.rows if row["kind"] == "pin"), labels("contexts", "device"))
        return [_page_tables(group) for group in pins.values()]

    @cached_property
    def opened(self) -> list[Opened]:
        """Every pair of GPUs, in the order measured."""
        return cells(Opened, (_opened(row) for row in self.rows if row["kind"] in ("open", "through")))

    @cached_property
    def gpus(self) -> tuple[int, ...]:
        """All that copied."""
        return tuple(sorted({gpu for cell in self.cells for gpu in cell.gpus}))

    @cached_property
    def directions(self) -> tuple[str, ...]:
        """Those measured, in their usual order."""
        return tuple(way for way in FLOWS if any(cell.direction == way for cell in self.cells))

    def near(self, direction: str, issued_by: str = "one_process") -> dict[tuple[int, ...], Cell]:
        """GPUs → their cell, from host memory near each."""
        case = ("near", direction, issued_by)
        return {cell.gpus: cell for cell in self.cells if (cell.placed, cell.direction, cell.issued_by) == case}

    def alone(self, direction: str) -> dict[int, Cell]:
        """GPU → its cell alone."""
        return {gpus[0]: cell for gpus, cell in sorted(self.near(direction).items()) if len(gpus) == 1}

    def at_once(self, direction: str, issued_by: str = "one_process") -> Cell | None:
        """All GPUs; ``None`` of one GPU."""
        return self.near(direction, issued_by).get(self.gpus) if len(self.gpus) > 1 else None

    def pairs(self, direction: str) -> list[Cell]:
        """Every pair whose rates alone are known."""
        return [cell for gpus, cell in self.near(direction).items() if len(gpus) == 2 and cell.alone]

    def uplinks(self, direction: str) -> list[tuple[int, ...]]:
        """GPUs of which each shares an uplink with another one of them: every such group."""
        groups: list[set[int]] = []
        for pair in (set(cell.gpus) for cell in self.pairs(direction) if cell.is_slowed(ONE_UPLINK)):
            joined = pair.union(*(group for group in groups if group & pair))
            groups = [group for group in groups if not group & joined] + [joined]
        return sorted(tuple(sorted(group)) for group in groups)

    def by_node(self, direction: str) -> dict[int, dict[int, Cell]]:
        """GPU → NUMA node → its cell alone, as far as nodes are known."""
        nodes: dict[int, dict[int, Cell]] = {}
        for cell in self.cells:
            node = cell.nodes[cell.gpus[0]]
            alone = len(cell.gpus) == 1 and (cell.direction, cell.issued_by) == (direction, "one_process")
            if alone and node is not None:
                nodes.setdefault(cell.gpus[0], {}).setdefault(node, cell)
        return nodes

    @cached_property
    def worst(self) -> Cell | None:
        """All GPUs at once, in the direction in which they reach the least of their rates alone."""
        known = [cell for way in ONE_WAY if (cell := self.at_once(way)) and cell.alone]
        return min(known, key=share_of, default=None)


def cells_of(rows: Rows) -> list[Cell]:
    """Of a run's copies."""
    return Host(rows).cells


def share_of(cell: Cell) -> float:
    """The share, of cells that have one."""
    return cell.alone_share or 0.0


def _cell(rows: Rows) -> Cell | None:
    """``None`` without a repeat that counts: one with all of its flows, which ran side by side."""
    case = rows[0]
    flows = case["devices"] * len(FLOWS[case["direction"]])
    repeats = [
        repeat
        for repeat in grouped(counted(rows), labels("repeat")).values()
        if len(repeat) == flows and all(None not in (row["window_seconds"], row["window_bytes"]) for row in repeat)
    ]
    compared = [row["wrong_words"] for row in rows if row["wrong_words"] is not None]
    nodes = {row["device"]: row["node"] for row in rows}
    gpus = tuple(sorted(nodes))
    if not repeats:
        return None
    return Cell(
        gpus=gpus,
        **{name: case[name] for name in ("direction", "issued_by", "placed")},
        nodes=nodes,
        bytes_per_second=summarize([_rate(repeat, gpus) for repeat in repeats]),
        own={gpu: summarize([_rate(repeat, (gpu,)) for repeat in repeats]) for gpu in gpus},
        wrong_count=sum(compared) if compared else None,
    )


def _rate(rows: Rows, gpus: tuple[int, ...]) -> float:
    """Bytes/second of these GPUs together, in the time in which all copied."""
    moved: int = sum(row["window_bytes"] for row in rows if row["device"] in gpus)
    return moved / float(rows[0]["window_seconds"])


def _page_tables(rows: Rows) -> PageTables:
    case = rows[0]
    used = [row["used_bytes"] for row in rows]
    known = case["step"] == "before" and len(used) > 1 and None not in used
    return PageTables(
        **{name: case[name] for name in ("device", "processes", "contexts", "bytes")},
        payers=case["processes"] if case["contexts"] == "every_gpu" else 1,
        table_bytes=used[-1] - used[0] if known and len(used) == case["processes"] + 1 else None,
        first_bytes=used[1] - used[0] if known else None,
    )


def _opened(row: Row) -> dict[str, Any]:
    """The row with what follows from it. Words are compared in a warm-up too, which has no rate."""
    if row["kind"] == "through":
        rate = None if row["warmup"] else row["bytes"] * row["copies"] / row["device_seconds"]
        return {**row, "warmup": False, f"{row['source']}_bytes_per_second": rate}
    before, after = row["used_before_bytes"], row["used_bytes"]
    return {**row, "context_bytes": None if before is None or after is None else after - before}


def tables(host: Host) -> tuple[Table, ...]:
    """Of each kind of cells that were measured."""
    known: tuple[Sequence[Any], ...] = (host.cells, host.tables, host.opened)
    words = zip(known, TABLES.items(), strict=True)
    return tuple(every_combination(group, note, title) for group, (title, note) in words if group)


def headline(host: Host) -> tuple[Quantity, ...]:
    """All at once, and their share of the rates alone; of one GPU its rates; then what processes take."""
    return tuple(islice(_figures(host), MOST_FIGURES))


def _figures(host: Host) -> Iterator[Quantity]:
    for way in host.directions:
        if cell := host.at_once(way):
            yield measured(
                f"All {len(cell.gpus)} GPUs at once, {way}", cell.bytes_per_second, RATE, key=f"all.{way}.rate"
            )
            name, key = f"All at once ÷ alone, {way}", f"all.{way}.share"
            yield quantity(name, cell.alone_share, "share", reason="not all ran alone", key=key)
        elif len(host.gpus) == 1 and (single := host.alone(way)):
            rate, key = single[host.gpus[0]].bytes_per_second, f"one.{way}.rate"
            yield measured(f"GPU {host.gpus[0]} alone, {way}", rate, RATE, key=key)
    for table in host.tables:
        if table.contexts == "every_gpu":
            name = f"Page tables of {table.processes} processes, GPU {table.device}"
            reason, key = "not all registered, or no meter could be read", f"gpu_{table.device}.page_tables"
            yield quantity(name, table.table_bytes, "bytes", reason=reason, key=key)


def verdict(host: Host, findings: Sequence[Finding]) -> str | None:
    """Who shares an uplink, or that none does; of one GPU what it reaches; ``None`` where too little was measured."""
    if any(cell.wrong_count for cell in host.cells) or any(opened.wrong_count for opened in host.opened):
        return "Data arrived wrong on a GPU: do not trust any figure of this run."
    if not host.cells:
        known = sorted((table for table in host.tables if table.is_known), key=lambda table: -(table.table_bytes or 0))
        return f"{pages_words(known)}." if known else None
    slowed = (f"{finding.title}." for finding in findings if finding.rule.startswith(PAIRS_SLOWED))
    return next(slowed, None) or _all_words(host) or _single_words(host)


def _all_words(host: Host) -> str | None:
    cell = host.worst
    if cell is None:
        return None
    who = f"{gpus_words(cell.gpus)} do not" if len(cell.gpus) == 2 else f"No two of {len(cell.gpus)} GPUs"
    but = ", but all together" if cell.is_slowed() else ": they"
    both = host.at_once("bidirectional")
    less = f"; both ways at once {both.share_words}" if both and both.is_slowed() else ""
    return (
        f"{who} slow each other one way{but} copy at {format_bandwidth(cell.rate)} {cell.towards}, "
        f"{cell.share_words} of the sum of their rates alone{less}."
    )


def _single_words(host: Host) -> str | None:
    gpu = host.gpus[0]
    cells_alone = [cell for way in ONE_WAY if (cell := host.alone(way).get(gpu))]
    rates = [f"{format_bandwidth(cell.rate)} {cell.towards}" for cell in cells_alone]
    why = "one GPU" if len(host.gpus) == 1 else "no two GPUs together"
    words = f"GPU {gpu} copies alone at {' and '.join(rates)}; shared uplinks were not measured ({why})."
    return words if rates else None


def pages_words(tables: Sequence[PageTables]) -> str:
    """What registering takes by the first of these, on how many GPUs."""
    table, gpus = tables[0], len({table.device for table in tables})
    who = f"{table.processes} processes" if table.processes > 1 else "one process"
    where = "the GPU" if gpus == 1 else f"each of {gpus} GPUs"
    return (
        f"Registering {format_bytes(table.bytes)} in {who} takes {format_bytes(table.table_bytes)} for page tables on "
        f"{where}"
    )
