"""What a run over all GPUs looks like: pairs, each alone and at once, NUMA nodes, page tables, opened memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pinscope.charts.bars import Part, bars, limit_marks
from pinscope.charts.chart import Chart, alt_text
from pinscope.charts.matrix import Square, matrices
from pinscope.charts.theme import DIRECTION_TITLES
from pinscope.experiments.topology.arithmetic import (
    FLOWS,
    Cell,
    Opened,
    Tables,
    alone,
    at_once,
    by_node,
    cells,
    devices,
    directions,
    opened,
    pairs,
    tables,
)
from pinscope.experiments.topology.words import TOWARDS
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bandwidth, format_bytes, format_share

MIB = 2**20
_MOST_WIDE = 4
"""With more columns a phone has room for a few letters in each."""
_CONDITIONS = (
    ("alone", "copy"),
    ("all at once, one process", "pinned"),
    ("all at once, one process per GPU", "workers"),
)
_SOURCES = {"host": "From the opener's pinned memory", "device": "From the opener's own GPU"}


def draw(run: ExperimentRun, rows: Sequence[Mapping[str, Any]]) -> Iterator[Chart]:
    """The charts of a run, also of one that still goes on; none of what was not measured."""
    found = cells(rows)
    yield from _pairs(found)
    yield from _rates(run, found)
    yield from _nodes(found)
    yield from _tables(tables(rows))
    yield from _opened(opened(rows))


def _name(gpu: int) -> str:
    return f"GPU {gpu}"


def _pairs(found: Sequence[Cell]) -> Iterator[Chart]:
    """For each direction what every pair reaches together, of the rates alone."""
    known = {way: shares for way in directions(found) if (shares := pairs(found, way))}
    if not known:
        return
    gpus = devices(found)
    small = len(gpus) > _MOST_WIDE
    squares = []
    for way, shares in known.items():
        drawn = {(_name(gpu), str(gpu)): square for gpu, square in _alone_squares(found, way, small).items()}
        for (one, other), (cell, part) in shares.items():
            square = Square(
                part,
                _short(part, cell.total.median, small),
                f"GPUs {one} and {other} at once: {format_bandwidth(cell.total.median)}, {format_share(part)} of their "
                "rates alone",
            )
            drawn |= {(_name(one), str(other)): square, (_name(other), str(one)): square}
        squares.append(drawn)
    ends = [
        (f"GPUs {one} and {other} {TOWARDS[way]}", format_share(part))
        for way, shares in known.items()
        for (one, other), (_, part) in shares.items()
    ]
    yield Chart(
        "topology-pairs",
        "What each pair of GPUs reaches at once",
        "What a pair reaches together, "
        f"{'in per cent' if small else 'as a rate and as a share'} of the sum of its rates alone; on the diagonal each "
        "GPU alone. Below 90 % the two slow each other; below 75 % they share an uplink, unless both directions run "
        "at once: then host memory can be the limit.",
        matrices(
            [DIRECTION_TITLES[way] for way in known],
            list(map(str, gpus)),
            list(map(_name, gpus)),
            squares,
            ("GPU", "GPU"),
        ),
        alt_text("What pairs reach at once, of their rates alone", ends[:60]),
    )


def _short(part: float, rate: float, small: bool) -> str:
    """What is written in a square; of a small one the per cent alone."""
    return f"{100 * part:.0f}" if small else f"{format_share(part)}<br>{format_bandwidth(rate)}"


def _alone_squares(found: Sequence[Cell], way: str, small: bool) -> dict[int, Square]:
    rates = {gpu: cell.total.median for gpu, cell in alone(found, way).items()}
    return {
        gpu: Square(
            1.0, "" if small else f"alone<br>{format_bandwidth(rate)}", f"GPU {gpu} alone: {format_bandwidth(rate)}"
        )
        for gpu, rate in rates.items()
    }


def _rates(run: ExperimentRun, found: Sequence[Cell]) -> Iterator[Chart]:
    """Each GPU alone and beside all others, with what its link carries; of one GPU a bar for each direction."""
    several = len(devices(found)) > 1
    whole = [(way, gpu, *bar) for way in directions(found) for gpu in devices(found) for bar in _bars(found, way, gpu)]
    for way in directions(found) if several else [None]:
        shown = [bar for bar in whole if way in (None, bar[0])]
        if not shown:
            continue
        names = [f"{_bar_name(bar, several)}: {format_bandwidth(bar[3])}" for bar in shown]
        ends = [(_bar_name(bar, several), format_bandwidth(bar[3])) for bar in shown]
        parts = [
            Part(title, colour, {name: bar[3] for name, bar in zip(names, shown, strict=True) if bar[2] == title})
            for title, colour in _CONDITIONS
        ]
        figure = bars(names, [part for part in parts if part.values], "Rate (GB/s)", format_bandwidth, scale=1e9)
        limit = _limit(run, way or "h2d")
        dotted = ""
        if limit is not None:
            limit_marks(figure, names, limit / 1e9)
            figure.update_xaxes(range=[0, 1.04 * max(limit, *(bar[3] for bar in shown)) / 1e9])
            dotted = f" Dotted: the most that a GPU's link can carry, {format_bandwidth(limit)}" + (
                f"{', both ways together' if way == 'bidirectional' else '' if several else ' one way'}."
            )
        yield Chart(
            f"topology-{way or 'rates'}",
            f"Each GPU alone and with all others, {way}" if several else "The GPU alone",
            ("Over the time in which all copied." if several else "From pinned memory near the GPU.") + dotted,
            figure,
            alt_text("Rates of each GPU" if several else "Rates of the GPU", ends),
        )


def _bars(found: Sequence[Cell], way: str, gpu: int) -> Iterator[tuple[str, float]]:
    """Condition and rate of each bar of a GPU."""
    single = alone(found, way).get(gpu)
    together = (at_once(found, way), at_once(found, way, "process_each"))
    for (title, _), cell in zip(_CONDITIONS, (single, *together), strict=True):
        if cell:
            yield title, cell.each[gpu].median


def _bar_name(bar: tuple[str, int, str, float], several: bool) -> str:
    way, gpu, title, _ = bar
    return f"GPU {gpu}, {title}" if several else f"GPU {gpu}, {way}"


def _limit(run: ExperimentRun, way: str) -> float | None:
    """What the fastest link of the GPUs can carry, in as many directions as are shown."""
    limits = [device.link.limit_bytes_per_second for device in run.environment.devices if device.link]
    known = [limit for limit in limits if limit is not None]
    return max(known) * FLOWS[way] if known else None


def _nodes(found: Sequence[Cell]) -> Iterator[Chart]:
    """Each GPU with host memory on each NUMA node, where it was measured on several."""
    known = {way: rates for way in directions(found) if (rates := by_node(found, way))}
    nodes = sorted({node for rates in known.values() for own in rates.values() for node in own})
    if len(nodes) < 2:
        return
    squares, ends = [], []
    for way, rates in known.items():
        drawn = {}
        for gpu, own in sorted(rates.items()):
            best = max(cell.total.median for cell in own.values())
            for node, cell in sorted(own.items()):
                rate = cell.total.median
                near = " (near)" if cell.placed == "near" else ""
                text = f"{format_bandwidth(rate)}{near}"
                part = rate / best if best else 1.0
                drawn[_name(gpu), f"node {node}"] = Square(part, text, f"GPU {gpu} and node {node}, {way}: {text}")
                ends.append((f"GPU {gpu} and node {node} {TOWARDS[way]}", format_bandwidth(rate)))
        squares.append(drawn)
    yield Chart(
        "topology-nodes",
        "Host memory on each NUMA node",
        "Each GPU alone. The colour compares a node with the GPU's best one. Near: the node that the system names for "
        "the GPU.",
        matrices(
            [DIRECTION_TITLES[way] for way in known],
            [f"node {node}" for node in nodes],
            [_name(gpu) for gpu in devices(found)],
            squares,
            ("NUMA node of the host memory", "GPU"),
        ),
        alt_text("Rates by NUMA node", ends[:60]),
    )


def _tables(taken: Sequence[Tables]) -> Iterator[Chart]:
    """Page tables on each GPU, beside what their arithmetic says."""
    known = {_tables_name(one): one for one in taken if one.table_bytes is not None and one.table_bytes >= 0}
    if not known:
        return
    ends = {
        name: f"{format_bytes(one.table_bytes)}, expected {format_bytes(one.expected_bytes)}"
        for name, one in known.items()
    }
    part = Part("page tables", "page_table", {name: float(one.table_bytes or 0) for name, one in known.items()})
    first = next(iter(known.values()))
    yield Chart(
        "topology-tables",
        "Page tables of processes on each GPU",
        f"What the used memory of each GPU grew by while processes registered the same {format_bytes(first.bytes)}. "
        "Expected: 8 bytes for each 4 KiB page and each process with a context on the GPU.",
        bars(list(known), [part], "Page tables (MiB)", format_bytes, scale=MIB, ends=ends),
        alt_text("Page tables on each GPU", ends.items()),
    )


def _tables_name(one: Tables) -> str:
    where = "every GPU" if one.contexts == "every_gpu" else "one GPU each"
    return f"GPU {one.device}, {one.processes} processes with a context on {where}"


def _opened(reached: Sequence[Opened]) -> Iterator[Chart]:
    """Rates of copies into opened memory, by opener and owner."""
    known = [source for source in _SOURCES if any(source in one.rates for one in reached)]
    if not known:
        return
    gpus = sorted({gpu for one in reached for gpu in (one.device, one.opener)})
    squares, ends = [], []
    for source in known:
        rates = [(one, one.rates[source].median) for one in reached if source in one.rates]
        unit = "" if len(gpus) > _MOST_WIDE else " GB/s"
        best = max(rate for _, rate in rates)
        squares.append(
            {
                (_name(one.opener), str(one.device)): Square(
                    rate / best if best else 1.0,
                    format_bandwidth(rate).replace(" GB/s", unit),
                    f"GPU {one.opener} into memory of GPU {one.device}: {format_bandwidth(rate)}",
                )
                for one, rate in rates
            }
        )
        ends += [(f"GPU {one.opener} into GPU {one.device}, {source}", format_bandwidth(rate)) for one, rate in rates]
    yield Chart(
        "topology-ipc",
        "Copies into another GPU's memory, opened by CUDA IPC",
        "Rows: the GPU of the process that opened the memory and copies. Columns: where the memory lies.",
        matrices(
            [_SOURCES[source] for source in known],
            list(map(str, gpus)),
            list(map(_name, gpus)),
            squares,
            ("Memory on GPU", "Opened from"),
        ),
        alt_text("Rates into opened memory", ends[:60]),
    )
