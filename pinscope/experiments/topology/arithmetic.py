"""All GPUs of a host: rates alone and at once, which GPUs share an uplink, page tables, memory opened across GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pinscope.analysis.conclusions import is_distinct, known_within, together
from pinscope.analysis.page_table_model import GPU_PAGE_SIZES, page_table_memory_bytes
from pinscope.analysis.rows import Row, Rows, counted, grouped, labels
from pinscope.analysis.rules.link import SHARED_UPLINK
from pinscope.analysis.statistics import Summary, summarize

ONE_WAY = ("h2d", "d2h")
"""Directions that show uplinks: both at once may reach what host memory carries."""
FLOWS = {"h2d": 1, "d2h": 1, "bidirectional": 2}
ONE_UPLINK = 0.75
"""A pair below this share of its rates alone has an uplink in common: as wide as one GPU's link, it leaves half.
Between this and SHARED_UPLINK host memory can be the cause as well, and other users of it."""
_CASE = ("issued_by", "gpus", "direction", "placed")


@dataclass(frozen=True)
class Cell:
    """GPUs that copied at once.

    Attributes:
        issued_by: ``one_process`` or ``process_each``.
        gpus: their indices.
        direction: ``h2d``, ``d2h`` or ``bidirectional``.
        placed: ``near`` each, or all on one ``node``.
        nodes: GPU → the NUMA node on which its host memory lay; ``None`` where that is not known.
        total: bytes/second of all together.
        each: GPU → its own bytes/second.
        wrong: words that did not arrive; ``None`` where nothing was compared.
    """

    issued_by: str
    gpus: tuple[int, ...]
    direction: str
    placed: str
    nodes: Mapping[int, int | None]
    total: Summary
    each: Mapping[int, Summary]
    wrong: int | None


def cells(rows: Iterable[Row]) -> list[Cell]:
    """Every case of which a repeat counts, in the order measured."""
    copies = [row for row in rows if row["kind"] == "copy"]
    groups = grouped(copies, lambda row: (*labels(*_CASE)(row), row["node"] if row["placed"] == "node" else None))
    found = (_cell(group) for group in groups.values())
    return [cell for cell in found if cell]


def _cell(rows: Rows) -> Cell | None:
    first = rows[0]
    repeats = [
        group
        for group in grouped(counted(rows), labels("repeat")).values()
        if len(group) == first["devices"] * FLOWS[first["direction"]]
        and all(row["window_seconds"] is not None and row["window_bytes"] is not None for row in group)
    ]
    if not repeats:
        return None
    compared = [row["wrong_words"] for row in rows if row["wrong_words"] is not None]
    gpus = sorted({row["device"] for row in rows})
    return Cell(
        issued_by=first["issued_by"],
        gpus=tuple(gpus),
        direction=first["direction"],
        placed=first["placed"],
        nodes={row["device"]: row["node"] for row in rows},
        total=summarize([_rate(group) for group in repeats]),
        each={
            gpu: summarize([_rate([row for row in group if row["device"] == gpu]) for group in repeats]) for gpu in gpus
        },
        wrong=sum(compared) if compared else None,
    )


def _rate(rows: Rows) -> float:
    """Bytes/second of these flows together, in the time in which all copied."""
    moved: int = sum(row["window_bytes"] for row in rows)
    return moved / float(rows[0]["window_seconds"]) if rows else 0.0


def devices(found: Iterable[Cell]) -> tuple[int, ...]:
    """All GPUs that were measured."""
    return tuple(sorted({gpu for cell in found for gpu in cell.gpus}))


def directions(found: Iterable[Cell]) -> tuple[str, ...]:
    """Those measured, in their usual order."""
    seen = {cell.direction for cell in found}
    return tuple(direction for direction in FLOWS if direction in seen)


def alone(found: Iterable[Cell], direction: str, issued_by: str = "one_process") -> dict[int, Cell]:
    """GPU → its cell alone, from host memory near it."""
    return {
        cell.gpus[0]: cell
        for cell in found
        if len(cell.gpus) == 1 and cell.placed == "near" and (cell.direction, cell.issued_by) == (direction, issued_by)
    }


def by_node(found: Iterable[Cell], direction: str) -> dict[int, dict[int, Cell]]:
    """GPU → NUMA node → its cell alone, as far as nodes are known."""
    rates: dict[int, dict[int, Cell]] = {}
    for cell in found:
        node = cell.nodes[cell.gpus[0]]
        if len(cell.gpus) == 1 and cell.direction == direction and cell.issued_by == "one_process" and node is not None:
            rates.setdefault(cell.gpus[0], {}).setdefault(node, cell)
    return rates


def at_once(found: Iterable[Cell], direction: str, issued_by: str = "one_process") -> Cell | None:
    """All GPUs, from host memory near each; ``None`` of one GPU."""
    shown = [cell for cell in found if cell.placed == "near"]
    return next(
        (
            cell
            for cell in shown
            if (cell.direction, cell.issued_by) == (direction, issued_by)
            and len(cell.gpus) > 1
            and cell.gpus == devices(shown)
        ),
        None,
    )


def share(found: Sequence[Cell], cell: Cell) -> float | None:
    """What these GPUs reach together, of the sum of their rates alone; ``None`` where one was not measured alone."""
    single = alone(found, cell.direction, cell.issued_by)
    if any(gpu not in single for gpu in cell.gpus):
        return None
    return cell.total.median / sum(single[gpu].total.median for gpu in cell.gpus)


def compared(found: Sequence[Cell], cell: Cell) -> tuple[Summary, Summary]:
    """What its :func:`share` is made of: the rate together, and of the rates alone the one that is known least."""
    single = alone(found, cell.direction, cell.issued_by)
    return cell.total, max((single[gpu].total for gpu in cell.gpus), key=known_within)


def is_slowed(found: Sequence[Cell], cell: Cell, part: float, limit: float = SHARED_UPLINK) -> bool:
    """Whether these GPUs reach less than ``limit`` of their rates alone, and that is no chance."""
    return part < limit and is_distinct(part, together(*compared(found, cell)))


def pairs(found: Sequence[Cell], direction: str) -> dict[tuple[int, int], tuple[Cell, float]]:
    """Every pair, its cell, and its share of the rates alone."""
    known = {}
    for cell in found:
        if len(cell.gpus) == 2 and (cell.direction, cell.issued_by, cell.placed) == (direction, "one_process", "near"):
            part = share(found, cell)
            if part is not None:
                known[cell.gpus[0], cell.gpus[1]] = cell, part
    return known


def shared_uplinks(found: Sequence[Cell], direction: str) -> list[tuple[int, ...]]:
    """GPUs of which each shares an uplink with another one of them: every such group."""
    groups: list[set[int]] = []
    for pair, (cell, part) in pairs(found, direction).items():
        if is_slowed(found, cell, part, ONE_UPLINK):
            joined = set(pair).union(*(group for group in groups if group & set(pair)))
            groups = [group for group in groups if not group & joined] + [joined]
    return sorted(tuple(sorted(group)) for group in groups)


@dataclass(frozen=True)
class Tables:
    """What registering the same memory took on one GPU.

    Attributes:
        contexts: ``every_gpu`` or ``own_gpu``.
        device: the GPU.
        processes: how many registered it.
        bytes: of the memory.
        payers: how many of them have a context on the GPU.
        table_bytes: what the GPU's used memory grew by; ``None`` where it is not known, or not all have registered.
        steps: the same after each process.
    """

    contexts: str
    device: int
    processes: int
    bytes: int
    payers: int
    table_bytes: int | None
    steps: tuple[int, ...]

    @property
    def expected_bytes(self) -> int:
        """By the page table's arithmetic: 8 bytes a 4 KiB page, in the driver's steps, for each that pays."""
        return self.payers * page_table_memory_bytes(self.bytes, GPU_PAGE_SIZES[0])


def tables(rows: Iterable[Row]) -> list[Tables]:
    """What processes took on each GPU, in the order measured."""
    groups = grouped((row for row in rows if row["kind"] == "pin"), labels("contexts", "device"))
    return [_tables(group) for group in groups.values()]


def _tables(rows: Rows) -> Tables:
    first = rows[0]
    before = next((row["used_bytes"] for row in rows if row["step"] == "before"), None)
    after = [row["used_bytes"] for row in rows if row["step"] == "pin"]
    steps = () if before is None or None in after else tuple(used - before for used in after)
    return Tables(
        contexts=first["contexts"],
        device=first["device"],
        processes=first["processes"],
        bytes=first["bytes"],
        payers=first["processes"] if first["contexts"] == "every_gpu" else 1,
        table_bytes=steps[-1] if steps and len(steps) == first["processes"] else None,
        steps=steps,
    )


@dataclass(frozen=True)
class Opened:
    """Memory of one GPU opened by a process whose context is on another one.

    Attributes:
        device: where the memory lies.
        opener: GPU of the process that opened it.
        context_bytes: what the memory's GPU took more afterwards; ``None`` where it is not known.
        seconds: that opening took.
        rates: source (``host``, ``device``) → bytes/second of copies there.
        wrong: words that did not arrive.
    """

    device: int
    opener: int
    context_bytes: int | None
    seconds: float | None
    rates: Mapping[str, Summary]
    wrong: int


def opened(rows: Iterable[Row]) -> list[Opened]:
    """Every pair of GPUs, in the order measured."""
    groups = grouped((row for row in rows if row["kind"] in ("open", "through")), labels("device", "opener"))
    return [_opened(group) for group in groups.values()]


def _opened(rows: Rows) -> Opened:
    opening: Row = next((row for row in rows if row["kind"] == "open"), {})
    before, after = opening.get("used_before_bytes"), opening.get("used_bytes")
    copies = [row for row in rows if row["kind"] == "through"]
    return Opened(
        device=rows[0]["device"],
        opener=rows[0]["opener"],
        context_bytes=None if before is None or after is None else after - before,
        seconds=opening.get("open_seconds"),
        rates={
            source: summarize([row["bytes"] * row["copies"] / row["device_seconds"] for row in group])
            for source, group in grouped(counted(copies), lambda row: row["source"]).items()
        },
        wrong=sum(row["wrong_words"] or 0 for row in copies),
    )
