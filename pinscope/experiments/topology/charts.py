"""What a run over all GPUs looks like: pairs, each alone and at once, NUMA nodes."""

from __future__ import annotations

from collections.abc import Iterator

from pinscope.charts.marks import MOST_WIDE, Chart, Square, matrix
from pinscope.charts.plot import RATE, Bar, TimePart, bars
from pinscope.charts.theme import DIRECTION_TITLES
from pinscope.experiments.topology.reading import TOWARDS, WAYS, Host
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bandwidth, format_share

CONDITIONS = (
    TimePart("alone", "copy"),
    *(TimePart(f"all at once, {way.title}", way.style.colour) for way in WAYS.values() if way.style),
)
"""In which a GPU copies, and the key of its colour."""
Grids = dict[str, dict[tuple[int, int], Square]]


def draw(run: ExperimentRun, host: Host) -> Iterator[Chart]:
    """The charts of a run, also of one that still goes on; none of what was not measured."""
    yield from _pairs(host)
    yield from _rates(run, host)


def _pairs(host: Host) -> Iterator[Chart]:
    """For each direction what every pair reaches together, of the rates alone."""
    small, grids = len(host.gpus) > MOST_WIDE, Grids()
    for way in filter(host.pairs, host.directions):
        grid = grids[DIRECTION_TITLES[way]] = {}
        for cell in (*host.pairs(way), *host.alone(way).values()):
            first, other = cell.gpus[0], cell.gpus[-1]
            rate, share = format_bandwidth(cell.rate), 1.0 if cell.alone_share is None else cell.alone_share
            if first == other:
                square = Square(1.0, f"alone<br>{rate}", f"GPU {first} alone, {TOWARDS[way]}: {rate}")
            else:
                hover = f"GPUs {first} and {other} {TOWARDS[way]}: {format_share(share)} of their rates alone, {rate}"
                square = Square(share, f"{format_share(share)}<br>{rate}", hover, f"{100 * share:.0f}")
            grid[first, other] = grid[other, first] = square
    if grids:
        yield matrix(
            "topology-pairs",
            "What each pair of GPUs reaches at once",
            f"What a pair reaches together, {'in per cent' if small else 'as a rate and as a share'} of the sum of its "
            "rates alone; on the diagonal each GPU alone. Below 90 % the two slow each other; below 75 % they share an "
            "uplink, unless both directions run at once: then host memory can be the limit.",
            grids,
            host.gpus,
            ("GPU", "GPU"),
            "What pairs reach at once",
        )


def _rates(run: ExperimentRun, host: Host) -> Iterator[Chart]:
    """Each GPU alone and beside all others, with what its link carries."""
    links = (device.link and device.link.limit_bytes_per_second for device in run.environment.devices)
    link = max((limit for limit in links if limit), default=None)
    for way in host.directions if len(host.gpus) > 1 else ():
        both = way == "bidirectional"
        limit = link and link * (2 if both else 1)
        which = ", both ways together" if both else ""
        dotted = f" Dotted: the most that a GPU's link can carry, {format_bandwidth(limit)}{which}." if limit else ""
        yield bars(
            f"topology-{way}",
            f"Each GPU alone and with all others, {way}",
            f"Over the time in which all copied.{dotted}",
            {"": list(_bars(host, way))},
            RATE,
            "Rates of each GPU",
            limit=limit,
        )


def _bars(host: Host, way: str) -> Iterator[Bar]:
    """A bar for each GPU and condition."""
    for gpu in host.gpus:
        cells = (host.alone(way).get(gpu), *(host.at_once(way, issued_by) for issued_by in WAYS))
        for part, cell in zip(CONDITIONS, cells, strict=True):
            if cell:
                yield Bar(f"GPU {gpu}, {part.name}", cell.own[gpu].median, part)
