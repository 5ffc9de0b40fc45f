"""SYNTHETIC rows of hosts with one to eight GPUs: each has a link, some share an uplink, far nodes are slower."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from pinscope.experiments.topology.experiment import TopologyObservation
from pinscope.records.environment import NumaNode
from pinscope.records.run import Run
from tests.data import synthetic

ROWS = list[dict[str, Any]]
MIB = 2**20
SIZE, COPIES = 256 * MIB, 4
LINK, UPLINK, FAR = 50e9, 60e9, 30e9
"""Bytes/second: of each GPU alone, of all that share an uplink together, and from a far node."""
WAYS = {"h2d": ("h2d",), "d2h": ("d2h",), "bidirectional": ("h2d", "d2h")}


def copied(
    rates: Mapping[int, float], direction: str = "h2d", *, issued_by: str = "one_process", node: int | None = None,
    near: Mapping[int, int] | None = None, repeats: int = 8,
) -> ROWS:  # fmt: skip
    """A case: GPU → its bytes/second each way; a warm-up, then equal repeats."""
    window = COPIES * SIZE / max(rates.values())
    return [
        TopologyObservation(
            kind="copy", repeat=max(number - 1, 0), warmup=number == 0, device=gpu, way=way,  # type: ignore[arg-type]
            gpus="+".join(map(str, rates)), devices=len(rates), direction=direction,  # type: ignore[arg-type]
            issued_by=issued_by, placed="near" if node is None else "node",  # type: ignore[arg-type]
            node=(near or {}).get(gpu) if node is None else node, bytes=SIZE, copies=COPIES, begun_seconds=0.0,
            device_seconds=COPIES * SIZE / rate, window_seconds=window, window_bytes=round(rate * window),
            wrong_words=0 if number == repeats else None,
        ).model_dump()
        for number in range(repeats + 1) for gpu, rate in rates.items() for way in WAYS[direction]
    ]  # fmt: skip


def shared(gpus: Sequence[int], uplinks: Sequence[Sequence[int]]) -> dict[int, float]:
    """What each of these GPUs reaches while all of them copy."""
    rates = dict.fromkeys(gpus, LINK)
    for uplink in uplinks:
        busy = [gpu for gpu in gpus if gpu in uplink]
        rates |= dict.fromkeys(busy, min(LINK, UPLINK / len(busy))) if busy else {}
    return rates


def host(
    gpus: int, uplinks: Sequence[Sequence[int]] = (), directions: Sequence[str] = ("h2d", "d2h"),
    near: Mapping[int, int] | None = None,
) -> ROWS:  # fmt: skip
    """Copies of a host whose GPUs share these uplinks: alone, in pairs, all at once, and by a process each."""
    everyone = tuple(range(gpus))
    groups = dict.fromkeys([*((gpu,) for gpu in everyone), *combinations(everyone, 2), everyone])
    rows: ROWS = []
    for direction in directions:
        for group in groups:
            rows += copied(shared(group, uplinks), direction, near=near)
        for group in [*((gpu,) for gpu in everyone), everyone] if gpus > 1 else []:
            rows += copied(shared(group, uplinks), direction, issued_by="process_each", near=near)
    return rows


def run(gpus: int, nodes: int = 1) -> Run:
    """A run on such a host."""
    environment = synthetic.environment(gpus).model_copy(
        update={
            "nodes": tuple(
                NumaNode(number=number, processors=f"{8 * number}-{8 * number + 7}", memory_bytes=2**37,
                         available_bytes=2**36)
                for number in range(nodes)
            )
        }
    )  # fmt: skip
    return synthetic.run("topology", devices=gpus, environment=environment)
