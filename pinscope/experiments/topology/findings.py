"""Shared uplinks, far NUMA nodes, slow GPUs, what processes add, and what could not be measured on this host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pinscope.analysis.conclusions import Costed, dearest_first, exceeds, joined, part_of
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
    compared,
    devices,
    is_slowed,
    pairs,
    share,
    shared_uplinks,
)
from pinscope.experiments.topology.verdict import worst_direction
from pinscope.experiments.topology.words import ALL_TOWARDS, TOWARDS, gpus_words, groups_words, not_slower_words
from pinscope.records.finding import Finding, Quantity, costing, finding, good, note, quantity, wrong_data
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bandwidth, format_bytes, format_seconds, format_share

SAME_RATE = 0.05
"""Rates that differ by less are the same."""
LEAST_CONTEXT = 64 * 2**20
"""GPU memory from which on opening memory has made a context."""
_RATE = "bytes/second"
_SPREAD = "Schedule large transfers of these GPUs at different times"
_QUEUED = "Large copies from pinned memory were queued before they began, so the rates leave out the time of the calls"


def topology_findings(
    run: ExperimentRun, found: Sequence[Cell], tables: Sequence[Tables], opened: Sequence[Opened]
) -> tuple[Finding, ...]:
    """What is dearest to ignore first; what could not be measured is among the notes."""
    return dearest_first(
        [
            *_wrong(found, opened),
            *_uplinks(found),
            *_together(found),
            *_both_ways(found),
            *_slow(run, found),
            *_nodes(found),
            *_processes(found),
            *_tables(tables),
            *_contexts(opened),
            *_through(found, opened),
            *_not_measured(run, found),
        ]
    )


def _wrong(found: Sequence[Cell], opened: Sequence[Opened]) -> Iterator[Costed]:
    words = [
        *((cell.wrong or 0, gpus_words(cell.gpus)) for cell in found),
        *((one.wrong, f"memory of GPU {one.device} opened from GPU {one.opener}") for one in opened),
    ]
    wrong = [pair for pair in words if pair[0]]
    if wrong:
        yield (
            0.0,
            wrong_data(
                "content-wrong",
                quantity("Wrong words", sum(count for count, _ in wrong), "count"),
                title="Data arrived wrong on a GPU",
                detail=f"The first case: {wrong[0][1]}.",
            ),
        )


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
        elif is_slowed(found, pair, part):
            yield 1 / part, _slowed(found, pair, part)
    if least and min(least)[0] >= SHARED_UPLINK:
        part, way, pair = min(least, key=lambda one: one[0])
        yield (
            1.0,
            good(
                "own-uplinks",
                *(_pair_quantities(found, pair)),
                title=f"{not_slower_words(devices(found))}: a pair reaches at least "
                f"{part_of(part, *compared(found, pair))} of the sum of its rates alone",
                detail=f"The lowest share: {gpus_words(pair.gpus)}, {ALL_TOWARDS[way]}.",
                advice="Nothing to do for copies one way.",
            ),
        )


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
    where = (
        "What they share is an uplink, the link between processors, or host memory: with every GPU slowed, this run "
        "cannot say which"
        if whole
        else "They share the link from a PCIe switch to the processor"
    )
    chosen = _one_of_each(groups, everyone)
    apart = (
        f"{_SPREAD}: no choice of GPUs avoids it."
        if len(chosen) < 2
        else "Run programs that copy at the same time on GPUs that share no uplink, such as "
        f"{gpus_words(chosen)}; 'nvidia-smi topo -m' shows the switches."
    )
    return finding(
        costing(1 / max(part, 1e-9)),
        f"shared-uplink-{way}",
        *_pair_quantities(found, pair),
        title=f"{groups_words(groups)}: a pair copies {ALL_TOWARDS[way]} at "
        f"{part_of(part, *compared(found, pair))} of the sum of its "
        "rates alone",
        detail=f"{gpus_words(pair.gpus)} together copy at {format_bandwidth(pair.total.median)}. {where}.",
        advice=apart,
        code=_visible(chosen) if len(chosen) > 1 else None,
    )


def _slowed(found: Sequence[Cell], pair: Cell, part: float) -> Finding:
    """A pair that reaches less together, but more than one uplink would leave it."""
    way = pair.direction
    return finding(
        costing(1 / part),
        f"slower-together-{way}",
        *_pair_quantities(found, pair),
        title=f"{gpus_words(pair.gpus)} slow each other down: together they copy {ALL_TOWARDS[way]} at "
        f"{part_of(part, *compared(found, pair))} of the sum of their rates alone",
        detail=f"Together they copy at {format_bandwidth(pair.total.median)}. A shared uplink would leave about half, "
        "so the limit is more likely host memory, the link between processors, or another user of these.",
        advice="Run it again while the computer is idle, its other virtual machines included. "
        f"{_SPREAD} if it repeats.",
    )


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
    if worst is None or len(devices(found)) < 3 or shared_uplinks(found, worst[0]):
        return
    way, part = worst
    cell = at_once(found, way)
    if cell is None or not is_slowed(found, cell, part):
        return
    yield (
        1 / max(part, 1e-9),
        finding(
            costing(1 / max(part, 1e-9)),
            "all-at-once-slower",
            measured(f"All {len(cell.gpus)} GPUs at once, {way}", cell.total, _RATE),
            quantity("Sum of each alone", cell.total.median / part if part else None, _RATE),
            title=f"All {len(cell.gpus)} GPUs together copy {ALL_TOWARDS[way]} at "
            f"{part_of(part, *compared(found, cell))} of the sum of their rates alone, though no two share an uplink",
            detail="The limit lies behind the uplinks: the link between processors, or host memory.",
            advice=f"Take each GPU's host memory from the NUMA node near it. {_SPREAD}.",
        ),
    )


def _both_ways(found: Sequence[Cell]) -> Iterator[Costed]:
    """All GPUs that copy both ways at once reach less than each alone."""
    cell = at_once(found, "bidirectional")
    part = share(found, cell) if cell else None
    if cell is None or part is None or not is_slowed(found, cell, part):
        return
    yield (
        1 / max(part, 1e-9),
        note(
            "slower-both-ways",
            measured(f"All {len(cell.gpus)} GPUs at once, both ways", cell.total, _RATE),
            *(
                measured(f"GPU {gpu} alone, both ways", one.total, _RATE)
                for gpu, one in sorted(alone(found, cell.direction).items())
            ),
            title=f"{gpus_words(cell.gpus)}, all copying both ways at once, reach "
            f"{part_of(part, *compared(found, cell))} of the sum of their rates alone",
            detail=f"Together they copy at {format_bandwidth(cell.total.median)}, both directions counted. This run "
            "does not say what limits them.",
            advice="Plan with this rate, not with the sum, where all GPUs copy both ways at once.",
        ),
    )


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
            if part < BELOW_LIKE and exceeds(best.total, cell.total) and (worst is None or part < worst[0]):
                worst = part, way, cell, best
    if worst is None:
        return
    part, way, cell, best = worst
    yield (
        1 / max(part, 1e-9),
        finding(
            costing(1 / max(part, 1e-9)),
            "gpu-slower-than-others",
            measured(f"GPU {cell.gpus[0]} alone, {way}", cell.total, _RATE),
            measured(f"GPU {best.gpus[0]} alone, {way}", best.total, _RATE),
            title=f"GPU {cell.gpus[0]} copies alone at {format_bandwidth(cell.total.median)} {TOWARDS[way]}, GPU "
            f"{best.gpus[0]} of the same model at {format_bandwidth(best.total.median)}",
            detail="Each copied alone, with pinned memory on the NUMA node near it.",
            advice=f"'pinscope run bandwidth --device {cell.gpus[0]}' shows how its link is trained, and its errors.",
        ),
    )


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
        yield (
            1.0,
            good(
                "nodes-alike",
                *evidence,
                title="The NUMA node of host memory hardly matters to copies: the slowest reaches "
                f"{format_share(part)} of the best node's rate",
                detail="One GPU copied at a time; latency was not measured.",
            ),
        )
        return
    if not exceeds(fast_cell.total, slow_cell.total):
        return
    yield (
        1 / max(part, 1e-9),
        finding(
            costing(1 / max(part, 1e-9)),
            "far-node-slower",
            *evidence,
            title=f"GPU {gpu} reaches {format_share(part)} of its rate with host memory on NUMA node {slow_node} "
            f"instead of node {fast_node}, {TOWARDS[way]}",
            detail=f"{format_bandwidth(slow_cell.total.median)} with node {slow_node}, "
            f"{format_bandwidth(fast_cell.total.median)} with node {fast_node}{_says_otherwise(slow_cell)}.",
            advice=f"Start programs of GPU {gpu} with 'numactl --cpunodebind={fast_node} --membind={fast_node}', or "
            "take pinned memory in a thread that runs on that node.",
        ),
    )


def _says_otherwise(slow: Cell) -> str:
    return "; the system names the slower node as the one near the GPU" if slow.placed == "near" else ""


def _processes(found: Sequence[Cell]) -> Iterator[Costed]:
    """One process for all GPUs beside a process for each."""
    known = [
        (one, each)
        for way in ONE_WAY
        if (one := at_once(found, way)) and (each := at_once(found, way, "process_each")) and each.total.median
    ]
    if not known:
        return
    one, each = max(known, key=lambda pair: abs(pair[0].total.median / pair[1].total.median - 1))
    ratio = one.total.median / each.total.median
    evidence = (
        measured(f"One process for all GPUs, {one.direction}", one.total, _RATE),
        measured(f"One process per GPU, {one.direction}", each.total, _RATE),
    )
    single, several = format_bandwidth(one.total.median), format_bandwidth(each.total.median)
    if abs(ratio - 1) <= SAME_RATE:
        yield (
            1.0,
            good(
                "processes-alike",
                *evidence,
                title=f"One process copies on {len(one.gpus)} GPUs about as fast as one process per GPU: {single} and "
                f"{several}",
                detail=f"{_QUEUED}.",
            ),
        )
        return
    if not (exceeds(one.total, each.total) or exceeds(each.total, one.total)):
        return
    faster = "one process per GPU" if ratio < 1 else "one process for all GPUs"
    yield (
        max(ratio, 1 / max(ratio, 1e-9)),
        finding(
            costing(max(ratio, 1 / max(ratio, 1e-9))),
            "processes-differ",
            *evidence,
            title=f"One process for all GPUs copies at {single} {ALL_TOWARDS[one.direction]}, one process per GPU at "
            f"{several}",
            detail=f"{_QUEUED}. The two were measured one after the other: what else uses host memory may have "
            "changed.",
            advice=f"Run it again; if it repeats, copy from {faster}.",
        ),
    )


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
    detail = (
        "Each process takes 8 bytes of GPU memory for each 4 KiB page, on every GPU on which it has a context"
        f"{_own(own)}."
    )
    if off:
        worst = max(off, key=lambda one: abs((one.table_bytes or 0) - one.expected_bytes))
        steps = abs((worst.table_bytes or 0) - worst.expected_bytes) / GRANULE_BYTES
        yield (
            1.0,
            note(
                "page-tables-differ",
                *evidence,
                title=f"Page tables of {many} on GPU {worst.device} are {format_bytes(worst.table_bytes)}; "
                f"{format_bytes(worst.expected_bytes)} were expected",
                detail=f"{detail} They differ by {steps:.3g} of the steps of {format_bytes(GRANULE_BYTES)} in which "
                "the driver takes GPU memory.",
                advice="One step can be room that the driver had taken before. If it is more, run it again while "
                "nothing else uses the GPUs.",
            ),
        )
        return
    yield (
        1.0,
        note(
            "page-tables-everywhere",
            *evidence,
            title=f"{many} that register{' the same' if first.processes > 1 else 's'} {format_bytes(first.bytes)} take"
            f"{'' if first.processes > 1 else 's'} {format_bytes(first.table_bytes)} for page tables on {on}",
            detail=detail,
            advice="Give a process only the GPUs that it uses (CUDA_VISIBLE_DEVICES): on the others it takes neither "
            "page tables nor a context.",
        ),
    )


def _where(one: Tables) -> str:
    return "every GPU" if one.contexts == "every_gpu" else "one GPU each"


def _own(own: Sequence[Tables]) -> str:
    taken = sorted({one.table_bytes for one in own if one.table_bytes is not None})
    if not taken:
        return ""
    words = joined([format_bytes(one) for one in taken])
    return f". With one process per GPU, each with a context there alone, page tables take {words} on a GPU"


def _contexts(opened: Sequence[Opened]) -> Iterator[Costed]:
    """What opening memory of another GPU takes there, while the opener's own GPU is the current one."""
    known = [one for one in opened if one.context_bytes is not None]
    if not known:
        return
    most = max(known, key=lambda one: one.context_bytes or 0)
    taken = most.context_bytes or 0
    evidence = [
        quantity(f"GPU {one.device}, opened from GPU {one.opener}", one.context_bytes, "bytes") for one in known[:8]
    ]
    took = f" It took {format_seconds(most.seconds)}." if most.seconds is not None else ""
    opening = f"Opening memory of GPU {most.device} from a process on GPU {most.opener}"
    how = f"The process called cudaIpcOpenMemHandle with its own GPU as the current device.{took}"
    if taken < LEAST_CONTEXT:
        yield (
            1.0,
            good(
                "open-without-context",
                *evidence,
                title=f"{opening} takes {format_bytes(max(taken, 0))} there: no context",
                detail=f"{how} What it takes with the memory's GPU as the current device was not measured.",
                advice="Open such memory with the process's own GPU as the current device.",
            ),
        )
        return
    yield (
        1.0,
        note(
            "open-costs-context",
            *evidence,
            title=f"{opening} takes {format_bytes(taken)} there, as much as a context",
            detail=how,
            advice="Count as much for every process on every GPU whose memory it opens.",
        ),
    )


def _through(found: Sequence[Cell], opened: Sequence[Opened]) -> Iterator[Costed]:
    """How fast copies through opened memory are."""
    for source, words in (("host", "its pinned memory"), ("device", "its own GPU's memory")):
        rates = [(one.rates[source], one) for one in opened if source in one.rates]
        if not rates:
            continue
        slowest, one = min(rates, key=lambda pair: pair[0].median)
        single = alone(found, "h2d").get(one.device)
        beside = (
            f" From host memory a process on GPU {one.device} itself copies at {format_bandwidth(single.total.median)}."
            if single
            else ""
        )
        faster = single is not None and exceeds(slowest, single.total)
        yield (
            1.0,
            note(
                f"through-from-{source}",
                *(measured(f"GPU {other.opener} into GPU {other.device}", rate, _RATE) for rate, other in rates[:8]),
                title=f"A process on GPU {one.opener} copies from {words} into memory of GPU {one.device} at "
                f"{format_bandwidth(slowest.median)}",
                detail=f"The slowest of {len(rates)} combinations of GPUs; the memory was opened by CUDA IPC.{beside}",
                advice="Where several processes need the same data, one can pin it and copy it into the GPU memory "
                "of the others."
                if source == "host"
                else "Give GPU data to a process on another GPU this way, not through host memory."
                if faster
                else "To give GPU data to a process on another GPU, host memory may be as fast: compare both.",
            ),
        )


def _not_measured(run: ExperimentRun, found: Sequence[Cell]) -> Iterator[Costed]:
    """What this host has too little of to show."""
    gpus, nodes = len(devices(found)) or 1, len(run.environment.nodes)
    lacks, hidden, wanted = [], [], []
    if gpus == 1:
        lacks.append("one GPU")
        hidden += ["shared uplinks", "one process beside one per GPU", "memory opened across GPUs"]
        wanted.append("several GPUs, all of them visible (CUDA_VISIBLE_DEVICES)")
    if not any(len(found_nodes) > 1 for way in ONE_WAY for found_nodes in by_node(found, way).values()):
        lacks.append({0: "no NUMA node named by the kernel", 1: "one NUMA node"}.get(nodes, "no choice of NUMA nodes"))
        hidden.append("the cost of a far node")
        wanted.append("several NUMA nodes, with node=near")
    if not found or not lacks:
        return
    yield (
        1.0,
        note(
            "not-measured-here",
            quantity("GPUs measured", gpus, "count"),
            quantity("NUMA nodes", nodes, "count"),
            title=f"With {joined(lacks)} this run could not measure {joined(hidden)}",
            detail="The run page leaves out figures and charts of it.",
            advice=f"Run it on a host with {joined(wanted)}.",
        ),
    )
