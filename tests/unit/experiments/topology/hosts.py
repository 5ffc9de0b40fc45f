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
GIB, MIB = 2**30, 2**20
SIZE, COPIES = 256 * MIB, 4
LINK, UPLINK, FAR = 50e9, 60e9, 30e9
"""Bytes/second: of each GPU alone, of all that share an uplink together, and from a far node."""
WAYS = {"h2d": ("h2d",), "d2h": ("d2h",), "bidirectional": ("h2d", "d2h")}


def copied(
    rates: Mapping[int, float], direction: str = "h2d", *, issued_by: str = "one_process", node: int | None = None,
    near: Mapping[int, int] | None = None, wrong: int = 0, repeats: int = 8,
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
            wrong_words=wrong if number == repeats else None,
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


def registered(
    gpus: int, processes: int, nbytes: int = 8 * GIB, each: int = 16 * MIB, contexts: str = "every_gpu"
) -> ROWS:
    """Each process takes so much on each GPU on which it has a context."""
    used = dict.fromkeys(range(gpus), 3 * GIB)
    common = {"kind": "pin", "repeat": 0, "warmup": False, "bytes": nbytes, "processes": processes}
    rows: ROWS = []
    for process in (None, *range(processes)):
        for gpu in used:
            used[gpu] += each if process is not None and (contexts == "every_gpu" or process == gpu) else 0
        rows += [
            TopologyObservation(
                **common, contexts=contexts, device=gpu, process=process,  # type: ignore[arg-type]
                step="before" if process is None else "pin", used_bytes=used[gpu],
                pin_seconds=None if process is None else 0.3,
            ).model_dump()
            for gpu in used
        ]  # fmt: skip
    return rows


def opened(
    device: int, opener: int, *, context: int = 520 * MIB, host_rate: float = 40e9, peer_rate: float = 45e9,
    wrong: int = 0,
) -> ROWS:  # fmt: skip
    """Memory of one GPU opened by a process on another one, and four copies from each source."""
    common: dict[str, Any] = {"device": device, "opener": opener, "bytes": SIZE}
    rows = [
        TopologyObservation(
            kind="open", repeat=0, warmup=False, used_before_bytes=GIB, used_bytes=GIB + context, open_seconds=0.25,
            **common,
        ).model_dump()
    ]  # fmt: skip
    for source, rate in (("host", host_rate), ("device", peer_rate)):
        rows += [
            TopologyObservation(
                kind="through", repeat=max(number - 1, 0), warmup=number == 0, copies=COPIES, wrong_words=wrong,
                source=source, device_seconds=COPIES * SIZE / rate, **common,  # type: ignore[arg-type]
            ).model_dump()
            for number in range(5)
        ]  # fmt: skip
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
