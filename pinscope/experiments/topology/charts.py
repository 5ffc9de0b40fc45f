"""What a run over all GPUs looks like: pairs, each alone and at once, NUMA nodes, page tables, opened memory."""

from __future__ import annotations

from collections.abc import Iterator

from pinscope.analysis.rows import Rows
from pinscope.charts.chart import Chart
from pinscope.charts.matrix import Square
from pinscope.charts.plot import RATE, Length, Scale, TimePart, lengths, matrix
from pinscope.charts.theme import DIRECTION_TITLES
from pinscope.experiments.topology.reading import Host
from pinscope.experiments.topology.ways import SOURCES, TOWARDS, WAYS
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bandwidth, format_bytes, format_share

PAGES = Scale("Page tables (MiB)", 2**20, format_bytes)
MOST_WIDE = 4
"""With more columns a phone has room for a few letters in each."""
CONDITIONS = (
    TimePart("alone", "copy"),
    *(TimePart(f"all at once, {way.title}", way.style.colour) for way in WAYS.values() if way.style),
)
"""In which a GPU copies, and the key of its colour."""
Grids = dict[str, dict[tuple[str, str], Square]]


def draw(run: ExperimentRun, rows: Rows) -> Iterator[Chart]:
    """The charts of a run, also of one that still goes on; none of what was not measured."""
    host = Host(rows)
    yield from _pairs(host)
    yield from _rates(run, host)
    yield from _nodes(host)
    yield from _tables(host)
    yield from _opened(host)


def _name(gpu: int) -> str:
    return f"GPU {gpu}"


def _pairs(host: Host) -> Iterator[Chart]:
    """For each direction what every pair reaches together, of the rates alone."""
    small, grids = len(host.gpus) > MOST_WIDE, Grids()
    for way in filter(host.pairs, host.directions):
        grid = grids[DIRECTION_TITLES[way]] = {}
        for cell in (*host.pairs(way), *host.alone(way).values()):
            first, other = cell.gpus[0], cell.gpus[-1]
            rate, share = format_bandwidth(cell.rate), 1.0 if cell.alone_share is None else cell.alone_share
            if first == other:
                square = Square(1.0, "" if small else f"alone<br>{rate}", f"GPU {first} alone, {TOWARDS[way]}: {rate}")
            else:
                text = f"{100 * share:.0f}" if small else f"{format_share(share)}<br>{rate}"
                hover = f"GPUs {first} and {other} {TOWARDS[way]}: {format_share(share)} of their rates alone, {rate}"
                square = Square(share, text, hover)
            grid[_name(first), str(other)] = grid[_name(other), str(first)] = square
    if grids:
        yield matrix(
            "topology-pairs",
            "What each pair of GPUs reaches at once",
            f"What a pair reaches together, {'in per cent' if small else 'as a rate and as a share'} of the sum of its "
            "rates alone; on the diagonal each GPU alone. Below 90 % the two slow each other; below 75 % they share an "
            "uplink, unless both directions run at once: then host memory can be the limit.",
            grids,
            list(map(str, host.gpus)),
            list(map(_name, host.gpus)),
            ("GPU", "GPU"),
            "What pairs reach at once",
        )


def _rates(run: ExperimentRun, host: Host) -> Iterator[Chart]:
    """Each GPU alone and beside all others, with what its link carries; of one GPU a bar for each direction."""
    links = (device.link and device.link.limit_bytes_per_second for device in run.environment.devices)
    link = max((limit for limit in links if limit), default=None)
    several = len(host.gpus) > 1
    for way in host.directions if several else ("rates",):
        names = {way: ""} if several else {direction: direction for direction in host.directions}
        bars = [bar for direction, words in names.items() for bar in _bars(host, direction, words)]
        if not bars:
            continue
        both = way == "bidirectional"
        limit = link and link * (2 if both else 1)
        which = ", both ways together" if both else "" if several else " one way"
        dotted = f" Dotted: the most that a GPU's link can carry, {format_bandwidth(limit)}{which}." if limit else ""
        yield lengths(
            f"topology-{way}",
            f"Each GPU alone and with all others, {way}" if several else "The GPU alone",
            ("Over the time in which all copied." if several else "From pinned memory near the GPU.") + dotted,
            {"": bars},
            RATE,
            "Rates of each GPU" if several else "Rates of the GPU",
            limit=limit,
        )


def _bars(host: Host, way: str, words: str) -> Iterator[Length]:
    """A bar for each condition; ``words``: in place of its name."""
    for gpu in host.gpus:
        cells = (host.alone(way).get(gpu), *(host.at_once(way, issued_by) for issued_by in WAYS))
        for look, cell in zip(CONDITIONS, cells, strict=True):
            if cell:
                yield Length(f"GPU {gpu}, {words or look.name}", cell.own[gpu].median, look)


def _nodes(host: Host) -> Iterator[Chart]:
    """Each GPU with host memory on each NUMA node, where it was measured on several."""
    nodes, grids = set[int](), Grids()
    for way in filter(host.by_node, host.directions):
        grid = grids[DIRECTION_TITLES[way]] = {}
        for gpu, own in host.by_node(way).items():
            best = max(cell.rate for cell in own.values())
            nodes |= own.keys()
            for node, cell in own.items():
                text = format_bandwidth(cell.rate) + (" (near)" if cell.placed == "near" else "")
                hover = f"GPU {gpu} and node {node} {TOWARDS[way]}: {text}"
                grid[_name(gpu), f"node {node}"] = Square(cell.rate / best if best else 1.0, text, hover)
    if len(nodes) > 1:
        yield matrix(
            "topology-nodes",
            "Host memory on each NUMA node",
            "Each GPU alone. The colour compares a node with the GPU's best one. Near: the node that the system names "
            "for the GPU.",
            grids,
            [f"node {node}" for node in sorted(nodes)],
            list(map(_name, host.gpus)),
            ("NUMA node of the host memory", "GPU"),
            "Rates by NUMA node",
        )


def _tables(host: Host) -> Iterator[Chart]:
    """Page tables on each GPU, beside what their arithmetic says."""
    look, known = TimePart("page tables", "page_table"), [table for table in host.tables if table.is_known]
    bars = [
        Length(table.title, size, look, f"{format_bytes(size)}, expected {format_bytes(table.expected_bytes)}")
        for table, size in ((table, table.table_bytes or 0) for table in known)
    ]
    if bars:
        shared = format_bytes(known[0].bytes)
        yield lengths(
            "topology-tables",
            "Page tables of processes on each GPU",
            f"What the used memory of each GPU grew by while processes registered the same {shared}. Expected: 8 bytes "
            "for each 4 KiB page and each process with a context on the GPU.",
            {"": bars},
            PAGES,
            "Page tables on each GPU",
        )


def _opened(host: Host) -> Iterator[Chart]:
    """Rates of copies into opened memory, by opener and owner."""
    gpus, grids = sorted({gpu for opened in host.opened for gpu in (opened.device, opened.opener)}), Grids()
    for source, way in SOURCES.items():
        rates = {opened: opened.rates[source].median for opened in host.opened if source in opened.rates}
        for opened, rate in rates.items():
            text, best = format_bandwidth(rate), max(rates.values())
            hover = f"GPU {opened.opener} into memory of GPU {opened.device}, from {way.words}: {text}"
            square = Square(rate / best if best else 1.0, text.split()[0] if len(gpus) > MOST_WIDE else text, hover)
            grids.setdefault(way.title, {})[_name(opened.opener), str(opened.device)] = square
    if grids:
        yield matrix(
            "topology-ipc",
            "Copies into another GPU's memory, opened by CUDA IPC",
            "Rows: the GPU of the process that opened the memory and copies. Columns: where the memory lies.",
            grids,
            list(map(str, gpus)),
            list(map(_name, gpus)),
            ("Memory on GPU", "Opened from"),
            "Rates into opened memory",
        )
