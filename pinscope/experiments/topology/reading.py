"""All GPUs of a host: rates alone and at once, by whom they are issued, and who shares an uplink."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Literal

from pinscope.analysis.cells import Label, LineStyle, Value, Way, every_combination, way
from pinscope.analysis.read_rows import Rows, counted, grouped, labels
from pinscope.analysis.rules import SHARED_UPLINK
from pinscope.analysis.statistics import Summary, compared, is_distinct, measured, ratio, summarize
from pinscope.analysis.texts import Wrong, joined, part_of
from pinscope.records.run import ONE_WAYS, Direction, ExperimentRun, OneWay, Quantity, Table, quantity
from pinscope.units import format_bandwidth

IssuedBy = Literal["one_process", "process_each"]
WAYS: Mapping[IssuedBy, Way] = {
    "one_process": way("one process", style=LineStyle("pinned")),
    "process_each": way("one process per GPU", style=LineStyle("workers")),
}
"""Who issues."""
FLOWS: Mapping[Direction, tuple[OneWay, ...]] = {"h2d": ("h2d",), "d2h": ("d2h",), "bidirectional": ("h2d", "d2h")}
"""What is measured, and the copies of each GPU that go on at once."""
TOWARDS: Mapping[str, str] = {"h2d": "to the GPU", "d2h": "from the GPU", "bidirectional": "both ways"}
ONE_UPLINK = 0.75
"""A pair below this share of its rates alone has an uplink in common: as wide as one GPU's link, it leaves half.
Between this and SHARED_UPLINK host memory can be the cause as well, and other users of it."""
PAIRS_SLOWED = ("shared-uplink-", "slower-together-")
"""Beginnings of the rules that answer the question."""
RATE = "bytes/second"
NOTE = (
    "Medians, over the time in which all of these GPUs copied. Of the rates alone: together, "
    "divided by the sum of what each reaches alone. A bidirectional rate is the sum of both directions."
)


def gpus_words(gpus: Sequence[int]) -> str:
    """``GPU 0``, ``GPUs 0 and 1``."""
    return f"GPU{'s' if len(gpus) > 1 else ''} {joined([str(gpu) for gpu in gpus])}"


def issuer(name: IssuedBy) -> str:
    """Who issues, for people."""
    return WAYS[name].title


@dataclass(frozen=True)
class Cell:
    """GPUs that copied at once.

    Attributes:
        placed: host memory ``near`` each, or all on one ``node``.
        nodes: GPU → the NUMA node on which its host memory lay; ``None`` where that is not known.
        own: GPU → its own bytes/second.
        alone: bytes/second of each alone, from memory near it; empty where one was not measured alone.
    """

    gpus: Annotated[tuple[int, ...], Label("GPUs", words=lambda gpus: "+".join(map(str, gpus)))]
    direction: Annotated[str, Label("direction")]
    issued_by: Annotated[IssuedBy, Label("issued by", words=issuer)]
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
    def rate(self) -> float:
        """Bytes/second of all together, the median."""
        return self.bytes_per_second.median

    @property
    def towards(self) -> str:
        """Its direction as a sentence says it."""
        return f"{TOWARDS[self.direction]}{'s' if len(self.gpus) > 1 and self.direction in ONE_WAYS else ''}"

    @property
    def compared(self) -> tuple[Summary, Summary]:
        """What the share is made of: the rate together, and of the rates alone the one that is known least."""
        return self.bytes_per_second, max(self.alone, key=lambda alone: alone.uncertainty)

    @property
    def share_words(self) -> str:
        """The share as a sentence says it, no finer than it is known."""
        return part_of(self.alone_share or 0.0, *self.compared)

    def is_slowed(self, limit: float = SHARED_UPLINK) -> bool:
        """Whether these GPUs reach less than ``limit`` of their rates alone, and that is no chance."""
        share = self.alone_share
        return share is not None and share < limit and is_distinct(share, *self.compared)


@dataclass(frozen=True)
class Beside:
    """NCCL's all-reduce over all GPUs and copies of each, alone and beside each other; of the slowest GPU each time."""

    direction: Annotated[str, Label("copies")]
    bytes: Annotated[int, Label("size", "bytes")]
    reduce_alone: Annotated[Summary, Value("all-reduce alone", "seconds", "less")]
    reduce: Annotated[Summary, Value("beside copies", "seconds", "less")]
    copies_alone: Annotated[Summary, Value("copies alone", "seconds", "less")]
    copies: Annotated[Summary, Value("beside the all-reduce", "seconds", "less")]
    wrong_count: Annotated[int, Value("wrong words", "count", "less")]

    @property
    def reduce_ratio(self) -> Annotated[float, Value("all-reduce, times as long", "ratio", "less")]:
        """Beside copies over alone."""
        return ratio(self.reduce, self.reduce_alone)

    @property
    def copies_ratio(self) -> Annotated[float, Value("copies, times as long", "ratio", "less")]:
        """Beside the all-reduce over alone."""
        return ratio(self.copies, self.copies_alone)


def _besides(rows: Rows) -> Iterator[Beside]:
    """For each direction that was measured whole."""

    def slowest(value: str, way: str | None, other: bool) -> Summary | None:
        """Of all repeats that have this value, and another one beside it or not."""
        beside = "device_seconds" if value == "reduce_seconds" else "reduce_seconds"
        known = [row for row in counted(rows) if row["way"] == way and row[value] is not None]
        known = [row for row in known if (row[beside] is not None) == other]
        repeats = grouped(known, labels("repeat")).values()
        return summarize([max(row[value] for row in repeat) for repeat in repeats]) if known else None

    for towards in ONE_WAYS:
        alone = slowest("reduce_seconds", None, False), slowest("device_seconds", towards, False)
        beside = slowest("reduce_seconds", towards, True), slowest("device_seconds", towards, True)
        if alone[0] and alone[1] and beside[0] and beside[1]:
            wrong = sum(row["wrong_words"] or 0 for row in rows if row["way"] == towards)
            yield Beside(towards, rows[0]["bytes"], alone[0], beside[0], alone[1], beside[1], wrong)


@dataclass(frozen=True)
class Host:
    """All that was measured on a host."""

    rows: Rows
    names: Mapping[int, str] = field(default_factory=dict)
    """GPU → its model."""

    @cached_property
    def besides(self) -> list[Beside]:
        """All-reduces and copies, alone and beside each other."""
        return list(_besides([row for row in self.rows if row["kind"] == "all_reduce"]))

    @cached_property
    def cells(self) -> list[Cell]:
        """Every case of which a repeat counts, in the order measured."""
        case = labels("issued_by", "gpus", "direction", "placed")
        copies = [row for row in self.rows if row["kind"] == "copy"]
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

    @property
    def wrong(self) -> Wrong:
        """Words that did not arrive."""
        cases = [(f"{gpus_words(cell.gpus)}, {cell.direction}", cell.wrong_count) for cell in self.cells]
        cases += [(f"beside all-reduce, {beside.direction}", beside.wrong_count) for beside in self.besides]
        return Wrong("content-wrong", "Data arrived wrong on a GPU", "words", cases)

    @cached_property
    def gpus(self) -> tuple[int, ...]:
        """All that copied."""
        return tuple(sorted({gpu for cell in self.cells for gpu in cell.gpus}))

    @cached_property
    def directions(self) -> tuple[str, ...]:
        """Those measured, in their usual order."""
        return tuple(way for way in FLOWS if any(cell.direction == way for cell in self.cells))

    def near(self, direction: str, issued_by: IssuedBy = "one_process") -> dict[tuple[int, ...], Cell]:
        """GPUs → their cell, from host memory near each."""
        case = ("near", direction, issued_by)
        return {cell.gpus: cell for cell in self.cells if (cell.placed, cell.direction, cell.issued_by) == case}

    def alone(self, direction: str) -> dict[int, Cell]:
        """GPU → its cell alone."""
        return {gpus[0]: cell for gpus, cell in sorted(self.near(direction).items()) if len(gpus) == 1}

    def at_once(self, direction: str, issued_by: IssuedBy = "one_process") -> Cell | None:
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
        """All GPUs at once, in the direction in which they reach the least of their rates alone: one way, as both at
        once may reach what host memory carries."""
        known = [cell for way in ONE_WAYS if (cell := self.at_once(way)) and cell.alone]
        return min(known, key=share_of, default=None)


def of(run: ExperimentRun, rows: Rows) -> Host:
    """All that a run measured, as verdict, headline, tables, findings and charts ask for it."""
    return Host(rows, {device.index: device.name for device in run.environment.devices})


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


def tables(host: Host) -> Iterator[Table]:
    """All cells; then copies beside all-reduces."""
    yield every_combination(host.cells, NOTE)
    if host.besides:
        note = "Medians, of the slowest GPU of each repeat: an all-reduce, and four copies on every GPU."
        yield every_combination(host.besides, note, "Copies beside NCCL's all-reduce")


def headline(host: Host) -> Iterator[Quantity]:
    """All at once, and their share of the rates alone; of one GPU its rates."""
    for direction in host.directions:
        way = TOWARDS[direction].replace("the ", "")
        if cell := host.at_once(direction):
            yield measured(
                f"{'Both' if len(cell.gpus) == 2 else f'All {len(cell.gpus)}'} GPUs at once, {way}",
                cell.bytes_per_second,
                RATE,
                key=f"all.{direction}.rate",
            )
            name, key = f"All at once against alone, {way}", f"all.{direction}.share"
            if cell.alone:
                yield compared(name, *cell.compared, "share", cell.alone_share, key=key)
            else:
                yield quantity(name, None, "share", reason="not all ran alone", key=key)
        elif len(host.gpus) == 1 and (single := host.alone(direction)):
            rate, key = single[host.gpus[0]].bytes_per_second, f"one.{direction}.rate"
            yield measured(f"GPU {host.gpus[0]} alone, {way}", rate, RATE, key=key)


def all_words(host: Host) -> str | None:
    cell = host.worst
    if cell is None:
        return None
    if cell.is_slowed():
        who = f"{gpus_words(cell.gpus)} do not" if len(cell.gpus) == 2 else f"No two of {len(cell.gpus)} GPUs"
        return f"{who} slow each other, but all together reach only {cell.share_words} of their rates alone."
    who = gpus_words(cell.gpus) if len(cell.gpus) == 2 else f"all {len(cell.gpus)} GPUs"
    both = host.at_once("bidirectional")
    less = f" one way, {both.share_words} both ways" if both and both.is_slowed() else ""
    if "(" in cell.share_words:  # how well one of the two shares is known is enough for a sentence
        less = re.sub(r" \(.*\)", "", less)
    return f"Together {who} keep {cell.share_words} of solo rates{less}."


def single_words(host: Host) -> str | None:
    gpu = host.gpus[0]
    cells_alone = [cell for way in ONE_WAYS if (cell := host.alone(way).get(gpu)) and cell.bytes_per_second.is_known]
    rates = [f"{format_bandwidth(cell.rate)} {cell.towards.replace('the ', '')}" for cell in cells_alone]
    why = "one GPU" if len(host.gpus) == 1 else "no pairs"
    return f"Shared uplinks were not measured ({why}): GPU {gpu} copies at {' and '.join(rates)}." if rates else None
