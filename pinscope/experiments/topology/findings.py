"""What a run over all GPUs found out: shared uplinks, far NUMA nodes, and slow GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pinscope.analysis.rules import BELOW_LIKE, SAME_RATE
from pinscope.analysis.statistics import Summary, exceeds, measured
from pinscope.analysis.texts import Costed, Text, saying, times
from pinscope.experiments.topology import reading
from pinscope.records.run import ONE_WAYS, Finding, Quantity, costing

CODE = """\
import os

# Before CUDA starts. Numbers are those of nvidia-smi; one GPU of each uplink.
os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
os.environ["CUDA_VISIBLE_DEVICES"] = "{}"
"""
"""Keeps a program to these GPUs, whatever order CUDA would number them in."""
_SPREAD = "Schedule large transfers of these GPUs at different times"
_PAIR = "{groups}: a pair copies {cell.towards} at {part} of its rates alone"
_TOGETHER = "{pair} together copy at {cell.rate:rate}. "
_PER_DIRECTION: Mapping[str, Text] = {
    "shared-uplink-{}": Text(
        when="a pair reaches less than 75 % of its rates alone in that direction",
        title=_PAIR,
        detail=_TOGETHER + "They share the link from a PCIe switch to the processor.",
        advice="Run programs that copy at the same time on GPUs that share no uplink, such as {chosen}; "
        "'nvidia-smi topo -m' shows the switches.",
    ),
    "shared-uplink-{}/all": Text(
        when="so does every GPU with another one",
        title=_PAIR,
        detail=_TOGETHER + "What they share is an uplink, the link between processors, or host memory: with every GPU "
        "slowed, this run cannot say which.",
        advice=f"{_SPREAD}: no choice of GPUs avoids it.",
    ),
    "slower-together-{}": Text(
        when="a pair reaches less than 90 % of its rates alone in that direction, and none less than 75 %",
        title="{pair} slow each other down: together they copy {cell.towards} at {part} of their rates alone",
        detail=_TOGETHER + "A shared uplink would leave about half: the limit is more likely host memory, the link "
        "between processors, or another user of these.",
        advice=f"Run it again while the computer and its other virtual machines are idle. {_SPREAD} if it repeats.",
    ),
}
TEXTS: Mapping[str, Text] = {
    **{rule.format(way): text for way in ONE_WAYS for rule, text in _PER_DIRECTION.items()},
    "all-at-once-slower": Text(
        when="three GPUs or more reach less than 90 % of their rates alone, though no two share an uplink",
        title="{pair} together copy {cell.towards} at {part} of their rates alone, though no two share an uplink",
        detail="The limit lies behind the uplinks: the link between processors, or host memory.",
        advice=f"Take each GPU's host memory from the NUMA node near it. {_SPREAD}.",
    ),
    "slower-both-ways": Text(
        when="all GPUs reach less than 90 % of their rates alone while all copy both ways",
        title="{pair}, all copying both ways at once, reach {part} of their rates alone",
        detail="Together they copy at {cell.rate:rate}, both ways counted. This run does not say what limits them.",
        advice="Plan with this rate, not with the sum, where all GPUs copy both ways at once.",
        severity="note",
    ),
    "gpu-slower-than-others": Text(
        when="a GPU alone is slower than another one of its model",
        title="GPU {gpu} alone copies {slow.towards} at {slow.rate:rate}, GPU {other} of its model at {fast.rate:rate}",
        detail="Each copied alone, with pinned memory on the NUMA node near it.",
        advice="'pinscope run bandwidth --device {gpu}' shows how its link is trained, and its errors.",
    ),
    "far-node-slower": Text(
        when="a GPU is slower by more than 5 % with host memory on another NUMA node",
        title="GPU {gpu} reaches {part:share} of its rate with host memory on NUMA node {far} instead of node {near}, "
        "{slow.towards}",
        detail="{slow.rate:rate} with node {far}, {fast.rate:rate} with node {near}[; the system names the slower "
        "node ({named}) as the one near the GPU].",
        advice="Start programs of GPU {gpu} with 'numactl --cpunodebind={near} --membind={near}', or "
        "take pinned memory in a thread that runs on that node.",
    ),
    "all-reduce-slowed": Text(
        when="NCCL's all-reduce or copies take more than 5 % longer beside each other than alone",
        title="Beside copies {towards} NCCL's all-reduce takes {reduce} as long; the copies take {copies}",
        detail="An all-reduce of {beside.bytes:bytes} takes {beside.reduce_alone.median:seconds} alone, "
        "{beside.reduce.median:seconds} while every GPU copies.",
        advice="Where a step waits for its all-reduce, copy while the GPUs compute instead.",
    ),
}
say = saying(TEXTS)


def verdict(host: reading.Host, concluded: Sequence[Finding]) -> str | None:
    """Who shares an uplink, or that none does; of one GPU what it reaches; ``None`` where too little was measured."""
    if not host.cells:
        return None
    slowed = (f"{finding.title}." for finding in concluded if finding.rule.startswith(reading.PAIRS_SLOWED))
    return next(slowed, None) or reading.all_words(host) or reading.single_words(host)


def _slower(rule: str, cell: reading.Cell, code: str | None = None, **values: Any) -> Costed:
    """GPUs that reach less together than alone."""
    rates = {f"{reading.gpus_words(cell.gpus)} at once": cell.bytes_per_second}
    rates |= {f"GPU {gpu} alone": alone for gpu, alone in zip(cell.gpus, cell.alone, strict=True)}
    times = 1 / max(cell.alone_share or 0.0, 1e-9)
    values |= {"cell": cell, "pair": reading.gpus_words(cell.gpus), "part": cell.share_words, "code": code}
    severity = TEXTS[rule].severity if rule == "slower-both-ways" else costing(times)
    return say(rule, *_named(rates, cell.direction), cost=times, severity=severity, **values)


def _named(rates: Mapping[str, Summary], direction: str) -> list[Quantity]:
    return [measured(f"{name}, {direction}", rate, reading.RATE) for name, rate in rates.items()]


def _pairs(host: reading.Host) -> Iterator[Costed]:
    """For each direction the GPUs that share an uplink, or slow each other."""
    for way in ONE_WAYS:
        pair = min(host.pairs(way), key=reading.share_of, default=None)
        groups = host.uplinks(way)
        if pair and groups:
            sharing = {gpu for group in groups for gpu in group}
            chosen = sorted([*(group[0] for group in groups), *(gpu for gpu in host.gpus if gpu not in sharing)])
            rule = f"shared-uplink-{way}" if len(chosen) > 1 else f"shared-uplink-{way}/all"
            code = CODE.format(",".join(map(str, chosen))) if len(chosen) > 1 else None
            yield _slower(rule, pair, code, groups=_groups(groups), chosen=reading.gpus_words(chosen))
        elif pair and pair.is_slowed():
            yield _slower(f"slower-together-{way}", pair)


def _groups(groups: Sequence[Sequence[int]]) -> str:
    """``GPUs 0 and 1 share an uplink, GPUs 2 and 3 another``."""
    head, *others = map(reading.gpus_words, groups)
    several = [f"{head} share an uplink", *(f"{other} another" for other in others)]
    return ", ".join(several) if len(groups) <= 3 else f"{len(groups)} groups of GPUs share an uplink each"


def _together(host: reading.Host) -> Iterator[Costed]:
    """All at once are slower: one way though no two share an uplink; both ways."""
    worst, both = host.worst, host.at_once("bidirectional")
    if worst and worst.is_slowed() and len(worst.gpus) > 2 and not host.uplinks(worst.direction):
        yield _slower("all-at-once-slower", worst)
    if both and both.is_slowed():
        yield _slower("slower-both-ways", both)


def _slow(host: reading.Host) -> Iterator[Costed]:
    """The GPU that is slower alone than another one of the same model by most."""
    slow = []
    for single in map(host.alone, ONE_WAYS):
        for gpu, cell in single.items():
            best = max(
                (other for peer, other in single.items() if host.names.get(peer) == host.names.get(gpu)), key=_rate
            )
            if cell.rate < BELOW_LIKE * best.rate and exceeds(best.bytes_per_second, cell.bytes_per_second):
                slow.append((cell, best))
    if slow:
        cell, best = min(slow, key=lambda pair: pair[0].rate / pair[1].rate)
        names = (f"GPU {cell.gpus[0]} alone", f"GPU {best.gpus[0]} alone")
        yield from _differ("gpu-slower-than-others", cell, best, names, other=best.gpus[0])


def _nodes(host: reading.Host) -> Iterator[Costed]:
    """What host memory on another NUMA node costs the GPU that it costs most."""
    ranked = [sorted(nodes.values(), key=_rate) for way in ONE_WAYS for nodes in host.by_node(way).values()]
    slow, *_, fast = min((cells for cells in ranked if len(cells) > 1), key=_kept, default=[None, None])
    if slow and fast and _kept((slow, fast)) < 1 - SAME_RATE:
        gpu = slow.gpus[0]
        far, near = slow.nodes[gpu], fast.nodes[gpu]
        names = (f"GPU {gpu} and memory on node {far}", f"GPU {gpu} and memory on node {near}")
        named = far if slow.placed == "near" else None
        yield from _differ("far-node-slower", slow, fast, names, far=far, near=near, named=named)


def _all_reduce(host: reading.Host) -> Iterator[Costed]:
    """What copies and NCCL's all-reduce cost each other, in the direction in which it is most."""
    slowed = [
        beside
        for beside in host.besides
        if (beside.reduce_ratio > 1 + SAME_RATE and exceeds(beside.reduce, beside.reduce_alone))
        or (beside.copies_ratio > 1 + SAME_RATE and exceeds(beside.copies, beside.copies_alone))
    ]
    if slowed:
        beside = max(slowed, key=lambda beside: max(beside.reduce_ratio, beside.copies_ratio))
        figures = {
            "All-reduce alone": beside.reduce_alone,
            "All-reduce beside copies": beside.reduce,
            "Four copies alone": beside.copies_alone,
            "Four copies beside the all-reduce": beside.copies,
        }
        yield say(
            "all-reduce-slowed",
            *(measured(f"{name}, {beside.direction}", figure, "seconds") for name, figure in figures.items()),
            cost=max(beside.reduce_ratio, beside.copies_ratio),
            severity="by cost",
            beside=beside,
            towards=f"{reading.TOWARDS[beside.direction]}s",
            reduce=times(beside.reduce_ratio, beside.reduce, beside.reduce_alone),
            copies=times(beside.copies_ratio, beside.copies, beside.copies_alone),
        )


def _rate(cell: reading.Cell) -> float:
    return cell.rate


def _kept(cells: Sequence[reading.Cell]) -> float:
    """Of the fastest one's rate, by the slowest: the first."""
    return cells[0].rate / cells[-1].rate if cells[-1].rate else 1.0


def _differ(
    rule: str, slow: reading.Cell, fast: reading.Cell, names: tuple[str, str], **values: Any
) -> Iterator[Costed]:
    """Two that differ, unless that may be chance."""
    if exceeds(fast.bytes_per_second, slow.bytes_per_second):
        evidence = _named(dict(zip(names, (slow.bytes_per_second, fast.bytes_per_second), strict=True)), slow.direction)
        values |= {"gpu": slow.gpus[0], "part": _kept((slow, fast)), "slow": slow, "fast": fast}
        times = fast.rate / slow.rate
        yield say(rule, *evidence, cost=times, severity="by cost", **values)


RULES = (_pairs, _together, _nodes, _all_reduce, _slow)
