"""Shared uplinks, far NUMA nodes, slow GPUs, what processes add, and what this host could not tell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pinscope.analysis.conclusions import Costed, dearest_first, joined, part_words
from pinscope.analysis.page_table_model import GRANULE_BYTES
from pinscope.analysis.rules.link import BELOW_LIKE, SHARED_UPLINK
from pinscope.analysis.statistics import measured
from pinscope.experiments.topology.arithmetic import (
    ONE_WAY,
    Cell,
    Opened,
    Tables,
    alone,
    at_once,
    by_node,
    devices,
    pairs,
    shared_uplinks,
)
from pinscope.experiments.topology.verdict import worst_direction
from pinscope.experiments.topology.words import ALL_TOWARDS, TOWARDS, gpus_words, groups_words
from pinscope.records.finding import Finding, Quantity, costing, finding, good, note, quantity, wrong_data
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bandwidth, format_bytes, format_seconds

SAME_RATE = 0.05
"""Rates that differ by less are the same."""
LEAST_CONTEXT = 64 * 2**20
"""GPU memory from which on opening memory has cost a context."""
_RATE = "bytes/second"


def topology_findings(
    run: ExperimentRun, found: Sequence[Cell], tables: Sequence[Tables], opened: Sequence[Opened]
) -> tuple[Finding, ...]:
    """What is dearest to ignore first; what could not be told is among the notes."""
    return dearest_first(
        [
            *_wrong(found, opened), *_uplinks(found), *_together(found), *_slow(run, found), *_nodes(found),
            *_processes(found), *_tables(tables), *_contexts(opened), *_through(found, opened),
            *_not_told(run, found),
        ]
    )  # fmt: skip


def _wrong(found: Sequence[Cell], opened: Sequence[Opened]) -> Iterator[Costed]:
    words = [*((cell.wrong or 0, gpus_words(cell.gpus)) for cell in found),
             *((one.wrong, f"memory of GPU {one.device} opened from GPU {one.opener}") for one in opened)]  # fmt: skip
    wrong = [pair for pair in words if pair[0]]
    if wrong:
        yield 0.0, wrong_data(
            "content-wrong", quantity("Wrong words", sum(count for count, _ in wrong), "count"),
            title="Data arrived wrong on a GPU", detail=f"The first case: {wrong[0][1]}.",
        )  # fmt: skip


def _uplinks(found: Sequence[Cell]) -> Iterator[Costed]:
    """For each direction the GPUs that share an uplink, or slow each other; one finding where none does."""
    least: list[tuple[float, str, Cell]] = []
    for way in ONE_WAY:
        known = pairs(found, way)
        if not known:
            continue
        pair, part = min(known.values(), key=lambda one: one[1])
        least.append((part, way, pair))
        groups = shared_uplinks(found, way)
        if groups:
            yield 1 / max(part, 1e-9), _shared(found, groups, pair, part, devices(found))
        elif part < SHARED_UPLINK:
            yield 1 / part, _slowed(found, pair, part)
    if least and min(least)[0] >= SHARED_UPLINK:
        part, way, pair = min(least, key=lambda one: one[0])
        yield (
            1.0,
            good(
                "own-uplinks",
                *(_pair_quantities(found, pair)),
                title=f"No two of {len(devices(found))} GPUs share an uplink: every pair reaches {_at_least(part)} of "
                "its rates alone",
                detail=f"The least: {gpus_words(pair.gpus)}, {ALL_TOWARDS[way]}.",
            ),
        )


def _at_least(part: float) -> str:
    words = part_words(part)
    return words if words == "all" else f"at least {words}"


def _pair_quantities(found: Sequence[Cell], pair: Cell) -> tuple[Quantity, ...]:
    single = alone(found, pair.direction)
    return (
        measured(f"{gpus_words(pair.gpus)} at once, {pair.direction}", pair.total, _RATE),
        *(measured(f"GPU {gpu} alone, {pair.direction}", single[gpu].total, _RATE) for gpu in pair.gpus),
    )


def _shared(
    found: Sequence[Cell], groups: Sequence[tuple[int, ...]], pair: Cell, part: float, everyone: Sequence[int]
) -> Finding:
    way = pair.direction
    whole = [group for group in groups if len(group) == len(everyone)]
    where = "an uplink, the link between processors, or host memory" if whole else "a PCIe switch or an uplink"
    chosen = _one_of_each(groups, everyone)
    apart = (
        "Spread transfers over time: no choice of GPUs avoids it."
        if len(chosen) < 2
        else f"Programs that copy at the same time run faster on GPUs that share none, such as {gpus_words(chosen)}; "
        "nvidia-smi topo -m shows the switches."
    )
    return finding(
        costing(1 / max(part, 1e-9)), f"shared-uplink-{way}", *_pair_quantities(found, pair),
        title=f"{groups_words(groups)}: at once a pair reaches {part_words(part)} of its rates alone, "
        f"{ALL_TOWARDS[way]}",
        detail=f"{gpus_words(pair.gpus)} reach {format_bandwidth(pair.total.median)} together. They share {where}.",
        advice=apart, code=_visible(chosen) if len(chosen) > 1 else None,
    )  # fmt: skip


def _slowed(found: Sequence[Cell], pair: Cell, part: float) -> Finding:
    """A pair that reaches less together, but more than one uplink would leave it."""
    way = pair.direction
    return finding(
        costing(1 / part), f"slower-together-{way}", *_pair_quantities(found, pair),
        title=f"{gpus_words(pair.gpus)} slow each other: at once they reach {part_words(part)} of their rates alone, "
        f"{ALL_TOWARDS[way]}",
        detail=f"{format_bandwidth(pair.total.median)} together. An uplink as wide as one GPU's link would leave half: "
        "host memory, the link between processors, or another user of these is more likely.",
        advice="Run it again while nothing else works on the host, other virtual machines included. If it repeats, "
        "spread transfers over time.",
    )  # fmt: skip


def _one_of_each(groups: Sequence[tuple[int, ...]], everyone: Sequence[int]) -> list[int]:
    """One GPU of each group, and those that share with none."""
    sharing = {gpu for group in groups for gpu in group}
    return sorted([*(group[0] for group in groups), *(gpu for gpu in everyone if gpu not in sharing)])


def _visible(chosen: Sequence[int]) -> str:
    """Code that keeps a program to these GPUs, whatever order CUDA would number them in."""
    return (
        "import os\n\n"
        "# Before CUDA starts. Numbers are those of nvidia-smi; one GPU of each uplink.\n"
        'os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"\n'
        f'os.environ["CUDA_VISIBLE_DEVICES"] = "{",".join(map(str, chosen))}"\n'
    )


def _together(found: Sequence[Cell]) -> Iterator[Costed]:
    """All at once are slower though no two share an uplink."""
    worst = worst_direction(found)
    if worst is None or worst[1] >= SHARED_UPLINK or len(devices(found)) < 3 or shared_uplinks(found, worst[0]):
        return
    way, part = worst
    cell = at_once(found, way)
    if cell is None:
        return
    yield 1 / max(part, 1e-9), finding(
        costing(1 / max(part, 1e-9)), "all-at-once-slower",
        measured(f"All {len(cell.gpus)} GPUs at once, {way}", cell.total, _RATE),
        quantity("Sum of each alone", cell.total.median / part if part else None, _RATE),
        title=f"All {len(cell.gpus)} GPUs at once reach {part_words(part)} of their rates alone, {ALL_TOWARDS[way]}, "
        "though no two share an uplink",
        detail="What they share lies behind the uplinks: the link between processors, or host memory.",
        advice="Take each GPU's host memory from the NUMA node near it, and spread transfers over time.",
    )  # fmt: skip


def _slow(run: ExperimentRun, found: Sequence[Cell]) -> Iterator[Costed]:
    """A GPU that is slower alone than another one of the same model."""
    names = {device.index: device.name for device in run.environment.devices}
    worst: tuple[float, str, Cell, Cell] | None = None
    for way in ONE_WAY:
        single = alone(found, way)
        for cell in single.values():
            like = [other for gpu, other in single.items() if names.get(gpu) == names.get(cell.gpus[0])]
            best = max(like, key=lambda other: other.total.median)
            part = cell.total.median / best.total.median if best.total.median else 1.0
            if part < BELOW_LIKE and (worst is None or part < worst[0]):
                worst = part, way, cell, best
    if worst is None:
        return
    part, way, cell, best = worst
    yield 1 / max(part, 1e-9), finding(
        costing(1 / max(part, 1e-9)), "gpu-slower-than-others",
        measured(f"GPU {cell.gpus[0]} alone, {way}", cell.total, _RATE),
        measured(f"GPU {best.gpus[0]} alone, {way}", best.total, _RATE),
        title=f"GPU {cell.gpus[0]} copies alone at {format_bandwidth(cell.total.median)} {TOWARDS[way]}, GPU "
        f"{best.gpus[0]} of the same model at {format_bandwidth(best.total.median)}",
        detail="Both copied from pinned memory near them, with no other GPU beside.",
        advice=f"'pinscope run bandwidth --device {cell.gpus[0]}' shows how its link is trained, and its errors.",
    )  # fmt: skip


def _nodes(found: Sequence[Cell]) -> Iterator[Costed]:
    """What host memory on another NUMA node costs the GPU that it costs most."""
    worst: tuple[float, Cell, int, Cell, int] | None = None
    for way in ONE_WAY:
        for nodes in by_node(found, way).values():
            if len(nodes) < 2:
                continue
            slow, fast = (pick(nodes, key=lambda node: nodes[node].total.median) for pick in (min, max))
            part = nodes[slow].total.median / nodes[fast].total.median if nodes[fast].total.median else 1.0
            if worst is None or part < worst[0]:
                worst = part, nodes[slow], slow, nodes[fast], fast
    if worst is None:
        return
    part, slow_cell, slow_node, fast_cell, fast_node = worst
    gpu, way = slow_cell.gpus[0], slow_cell.direction
    evidence = (
        measured(f"GPU {gpu} and memory on node {slow_node}, {way}", slow_cell.total, _RATE),
        measured(f"GPU {gpu} and memory on node {fast_node}, {way}", fast_cell.total, _RATE),
    )
    if part >= 1 - SAME_RATE:
        yield 1.0, good(
            "nodes-alike", *evidence,
            title=f"Host memory on any NUMA node copies alike: {_at_least(part)} of the best node's rate",
            detail="One GPU alone at a time; latency was not measured.",
        )  # fmt: skip
        return
    yield 1 / max(part, 1e-9), finding(
        costing(1 / max(part, 1e-9)), "far-node-slower", *evidence,
        title=f"GPU {gpu} reaches {part_words(part)} of its rate with host memory on NUMA node {slow_node} instead of "
        f"node {fast_node}, {TOWARDS[way]}",
        detail=f"{format_bandwidth(slow_cell.total.median)} against {format_bandwidth(fast_cell.total.median)}"
        f"{_says_otherwise(slow_cell, slow_node)}.",
        advice=f"Start programs of GPU {gpu} with 'numactl --cpunodebind={fast_node} --membind={fast_node}', or take "
        "pinned memory in a thread that runs on that node.",
    )  # fmt: skip


def _says_otherwise(slow: Cell, node: int) -> str:
    return "; the system names the slower node as the one near the GPU" if slow.placed == "near" else ""


def _processes(found: Sequence[Cell]) -> Iterator[Costed]:
    """One process for all GPUs beside a process for each."""
    known = [
        (one, each) for way in ONE_WAY
        if (one := at_once(found, way)) and (each := at_once(found, way, "process_each")) and each.total.median
    ]  # fmt: skip
    if not known:
        return
    one, each = max(known, key=lambda pair: abs(pair[0].total.median / pair[1].total.median - 1))
    ratio = one.total.median / each.total.median
    evidence = (
        measured(f"One process for all GPUs, {one.direction}", one.total, _RATE),
        measured(f"A process for each GPU, {one.direction}", each.total, _RATE),
    )
    rates = f"{format_bandwidth(one.total.median)} against {format_bandwidth(each.total.median)}"
    if abs(ratio - 1) <= SAME_RATE:
        yield 1.0, good(
            "processes-alike", *evidence,
            title=f"One process feeds all {len(one.gpus)} GPUs as fast as a process for each: {rates}",
            detail="Large copies from pinned memory, queued before they begin: the time of calls and of Python's "
            "interpreter is not in it.",
        )  # fmt: skip
        return
    slower = "One process for all GPUs" if ratio < 1 else "A process for each GPU"
    yield max(ratio, 1 / max(ratio, 1e-9)), finding(
        costing(max(ratio, 1 / max(ratio, 1e-9))), "processes-differ", *evidence,
        title=f"{slower} copies slower {ALL_TOWARDS[one.direction]}: one process for all reaches {rates} by a process "
        "for each",
        detail="The same copies on the same GPUs, queued before they begin, but one way after the other: what else "
        "uses host memory may have changed.",
        advice="Run it again; if it repeats, issue copies the faster way.",
    )  # fmt: skip


def _tables(tables: Sequence[Tables]) -> Iterator[Costed]:
    """Whether page tables are what their arithmetic says, on each GPU."""
    known = [one for one in tables if one.table_bytes is not None]
    every = [one for one in known if one.contexts == "every_gpu"]
    if not every:
        return
    off = [one for one in known if one.table_bytes != one.expected_bytes]
    first, own = every[0], [one for one in known if one.contexts == "own_gpu"]
    gpus = len(every)
    evidence = [
        quantity(
            f"GPU {one.device}, {one.processes} processes with a context on {_where(one)}", one.table_bytes, "bytes"
        )
        for one in known
    ]
    on = "the GPU" if gpus == 1 else f"each of {gpus} GPUs"
    many = f"{first.processes} process{'es' if first.processes > 1 else ''}"
    detail = f"8 bytes of GPU memory a 4 KiB page, for each process and each GPU on which it has a context{_own(own)}."
    if off:
        worst = max(off, key=lambda one: abs((one.table_bytes or 0) - one.expected_bytes))
        steps = abs((worst.table_bytes or 0) - worst.expected_bytes) / GRANULE_BYTES
        yield 1.0, note(
            "page-tables-differ", *evidence,
            title=f"Page tables of {many} on GPU {worst.device} are {format_bytes(worst.table_bytes)}; "
            f"{format_bytes(worst.expected_bytes)} were expected",
            detail=f"{detail} They differ by {steps:.3g} of the driver's steps of {format_bytes(GRANULE_BYTES)}.",
            advice="A step more or less is room in what the driver had taken before. If it is more, run it again while "
            "nothing else uses the GPUs.",
        )  # fmt: skip
        return
    yield 1.0, note(
        "page-tables-everywhere", *evidence,
        title=f"{many} that register{'' if first.processes > 1 else 's'} {format_bytes(first.bytes)} take"
        f"{'' if first.processes > 1 else 's'} {format_bytes(first.table_bytes)} of page tables on {on}",
        detail=detail,
        advice="Give a process only the GPUs that it uses (CUDA_VISIBLE_DEVICES): on the others it takes neither page "
        "tables nor a context.",
    )  # fmt: skip


def _where(one: Tables) -> str:
    return "every GPU" if one.contexts == "every_gpu" else "one GPU each"


def _own(own: Sequence[Tables]) -> str:
    taken = sorted({one.table_bytes for one in own if one.table_bytes is not None})
    if not taken:
        return ""
    words = joined([format_bytes(one) for one in taken])
    return f"; of {own[0].processes} processes with a context on one GPU each, a GPU pays {words}"


def _contexts(opened: Sequence[Opened]) -> Iterator[Costed]:
    """Whether opening memory of another GPU costs a context there."""
    known = [one for one in opened if one.context_bytes is not None]
    if not known:
        return
    most = max(known, key=lambda one: one.context_bytes or 0)
    taken = most.context_bytes or 0
    evidence = [
        quantity(f"GPU {one.device}, opened from GPU {one.opener}", one.context_bytes, "bytes") for one in known[:8]
    ]
    took = f" Opening took {format_seconds(most.seconds)}." if most.seconds is not None else ""
    if taken < LEAST_CONTEXT:
        yield 1.0, good(
            "open-without-context", *evidence,
            title=f"Opening another GPU's memory takes {format_bytes(max(taken, 0))} there: no context",
            detail=f"The opener's context is on its own GPU (cudaIpcOpenMemHandle with peer access).{took}",
        )  # fmt: skip
        return
    yield 1.0, note(
        "open-costs-context", *evidence,
        title=f"Opening memory of GPU {most.device} in a process on GPU {most.opener} takes {format_bytes(taken)} "
        "there: a context",
        detail=f"A process has a context on every GPU whose memory it opens.{took}",
        advice="Count a context for every process on every GPU whose memory it opens.",
    )  # fmt: skip


def _through(found: Sequence[Cell], opened: Sequence[Opened]) -> Iterator[Costed]:
    """How fast copies through opened memory are."""
    for source, words in (("host", "its pinned memory"), ("device", "its own GPU's memory")):
        rates = [(one.rates[source], one) for one in opened if source in one.rates]
        if not rates:
            continue
        slowest, one = min(rates, key=lambda pair: pair[0].median)
        single = alone(found, "h2d").get(one.device)
        beside = (
            f" The GPU's own process reaches {format_bandwidth(single.total.median)} from host memory."
            if single and source == "host" else ""
        )  # fmt: skip
        yield 1.0, note(
            f"through-from-{source}",
            *(measured(f"GPU {other.opener} into GPU {other.device}", rate, _RATE) for rate, other in rates[:8]),
            title=f"A process on GPU {one.opener} copies from {words} into memory of GPU {one.device} at "
            f"{format_bandwidth(slowest.median)}",
            detail=f"The slowest of {len(rates)} directed pairs of GPUs, through memory opened by CUDA IPC.{beside}",
            advice="Let one process copy into the memory of others where that rate is enough; it needs no second copy "
            "of pinned memory.",
        )  # fmt: skip


def _not_told(run: ExperimentRun, found: Sequence[Cell]) -> Iterator[Costed]:
    """What this host has too little of to show."""
    gpus, nodes = len(devices(found)) or 1, len(run.environment.nodes)
    lacks, hidden = [], []
    if gpus == 1:
        lacks.append("one GPU")
        hidden += ["shared uplinks", "one process beside a process each", "memory opened across GPUs"]
    if nodes == 1:
        lacks.append("one NUMA node")
        hidden.append("the cost of a far node")
    elif not any(len(found_nodes) > 1 for way in ONE_WAY for found_nodes in by_node(found, way).values()):
        lacks.append("no choice of NUMA nodes" if nodes else "NUMA nodes that the kernel does not tell")
        hidden.append("the cost of a far node")
    if not found or not lacks:
        return
    yield 1.0, note(
        "not-told-here", quantity("GPUs measured", gpus, "count"), quantity("NUMA nodes", nodes, "count"),
        title=f"This run had {joined(lacks)}, so it could not tell: {joined(hidden)}",
        detail="No chart is drawn of what was not measured.",
        advice="Run it on a host with several GPUs and NUMA nodes, with all of them visible (CUDA_VISIBLE_DEVICES) and "
        "node=near.",
    )  # fmt: skip
