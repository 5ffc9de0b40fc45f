"""SYNTHETIC runs for tests of charts and reports: computed from simple formulas, measured on no machine.

Rows have the shape of stored rows. Rates are round numbers that no GPU has, so that nobody takes them for a
recording.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from itertools import product
from typing import Any

import numpy as np

from pinscope.records.base import Budget
from pinscope.records.environment import Device, Environment, HugePages, Limits, Link
from pinscope.records.run import ExperimentRun, LabKind, Run
from pinscope.report.facts import Document, open_document

Row = dict[str, Any]

RATES = {"pinned": 50e9, "pageable": 10e9, "write_combined": 49e9, "mapped": 50e9, "registered": 48e9}
"""Invented bytes/second of endless copies."""
LATENCY = 5e-6
"""Invented seconds of one more empty copy."""
ALONE = 3e-6
"""Invented seconds that one copy from an idle stream takes more."""
STATES = {"cuda": (("4k", "cold"), ("thp", "warm")), "host": (("4k", "warm"),)}
NO_STATE = ((None, None),)
"""Backing and cache of pageable memory, and of other kinds."""
SIZES = tuple(4096 * 4**k for k in range(10))


def environment(devices: int = 1) -> Environment:
    """A machine that does not exist."""
    link = Link(
        kind="pcie", generation_now=5, width_now=16, generation_max=5, width_max=16,
        limit_bytes_per_second=57.6e9, raw_bytes_per_second=63.0e9,
    )  # fmt: skip
    return Environment(
        captured_at=datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC), pinscope_version="0.1.0", pinscope_commit="0000000",
        host="synthetic-host", machine_id="synthetic", os="Synthetic Linux", kernel="0.0", architecture="x86_64",
        cpu="Synthetic CPU", cpus=8, numa_nodes=1, page_bytes=4096,
        huge_pages=HugePages(
            transparent="madvise", hugetlb_page_bytes=2**21, hugetlb_total_pages=0, hugetlb_free_pages=0
        ),
        limits=Limits(
            host_total_bytes=2**37, host_available_bytes=2**36, cgroup_headroom_bytes=None,
            memlock_headroom_bytes=None, shm_free_bytes=2**35,
        ),
        virtualization=None, python="3.11.0", packages={"numpy": "2.0"}, driver="000.00", cuda_driver="13.0",
        devices=tuple(
            Device(
                index=index, uuid=f"GPU-synthetic-{index}", name="Synthetic GPU", pci_bus_id=f"00000000:0{index}:00.0",
                numa_node=0, memory_total_bytes=80 * 2**30, memory_free_bytes=79 * 2**30, compute_capability="9.0",
                link=link,
            )
            for index in range(devices)
        ),
        missing={"virtualization": "nothing shows a hypervisor"},
    )  # fmt: skip


def run(experiment: str, lab: LabKind = "cuda", devices: int = 1, **changes: Any) -> Run:
    """A finished synthetic run; ``changes`` replace fields."""
    params: dict[str, Any] = {"precision": 0.01, "repeats": 60, "time_limit": 2.0}
    if experiment == "bandwidth":
        params |= {"sizes": list(SIZES), "memory": list(RATES), "directions": ["h2d", "d2h"]}
    else:
        params |= {"chunk": 2**25, "chunks": 64, "directions": ["h2d", "d2h"], "combinations": "all"}
    fields: dict[str, Any] = {
        "id": f"synthetic{experiment}{lab}", "experiment": experiment, "lab": lab, "device": 0, "status": "done",
        "quick": False, "params": params,
        "budget": Budget(pinned_bytes=2**30, pageable_bytes=2**30, device_bytes=2**30, seconds=60.0),
        "environment": environment(devices if lab == "cuda" else 0),
        "created_at": datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC),
        "finished_at": datetime(2030, 1, 2, 3, 5, 5, tzinfo=UTC),
        "notes": ("These figures are synthetic: computed for a test, measured on no machine.",),
    }  # fmt: skip
    return ExperimentRun(**fields | changes)


@cache
def document(experiment: str, lab: LabKind = "cuda") -> Document:
    """A small synthetic run with everything that is derived from it."""
    if experiment == "bandwidth":
        return document_of("bandwidth", bandwidth_rows(lab, repeats=3, sizes=SIZES[::3]), lab)
    rows = overlap_rows(balances=("balanced",), depths=(1, 2), every_combination=False, repeats=3)
    return document_of("overlap", rows, lab)


def document_of(experiment: str, rows: list[Row], lab: LabKind = "cuda", **changes: Any) -> Document:
    """These rows as a run, with everything that is derived from it; ``changes`` replace fields of the run."""
    return open_document(run(experiment, lab, observations=len(rows), **changes), rows)


def changed(whole: Document, **changes: Any) -> Document:
    """The same document with fields of its run replaced; what was derived stays."""
    return replace(whole, run=whole.run.model_copy(update=changes))


def bandwidth_rows(
    lab: LabKind = "cuda", repeats: int = 9, devices: int = 1, sizes: Sequence[int] = SIZES
) -> list[Row]:
    """t = α + bytes/β with a little noise; with several devices also all of them at once."""
    noise = np.random.default_rng(7)
    kinds = RATES if lab == "cuda" else {name: RATES[name] for name in ("pageable", "pinned", "registered")}
    copiers = ("engine", "kernel") if lab == "cuda" else ("engine",)
    found: list[Row] = []
    for memory, copier, way in product(kinds, copiers, ("h2d", "d2h", "bidirectional")):
        if copier == "kernel" and memory == "pageable":
            continue
        for state, size, repeat in product(
            STATES[lab] if memory == "pageable" else NO_STATE, sizes, range(-1, repeats)
        ):
            labels = {"memory": memory, "direction": way, "copier": copier, "bytes": size}
            found.append(_copy(labels | dict(zip(("backing", "cache"), state, strict=True)), repeat, 0, 1, noise))
    if devices > 1:
        for device, way, repeat in product(range(devices), ("h2d", "d2h"), range(-1, repeats)):
            labels = {
                "memory": "pinned", "direction": way, "copier": "engine", "bytes": max(sizes), "backing": None,
                "cache": None,
            }  # fmt: skip
            if device:
                found.append(_copy(labels, repeat, device, 1, noise))
            found.append(_copy(labels, repeat, device, devices, noise))
    return found


def _copy(labels: Row, repeat: int, device: int, devices: int, noise: np.random.Generator) -> Row:
    memory, way, size = labels["memory"], labels["direction"], labels["bytes"]
    rate = RATES[memory] * (0.9 if labels["copier"] == "kernel" else 1) * (0.7 if devices > 1 else 1)
    if labels["cache"] == "warm":
        rate *= 1.5
    if memory == "pageable" and way == "bidirectional":
        rate /= 2  # one after the other
    wobble = 1 + abs(float(noise.normal(0, 0.004 if memory != "pageable" else 0.03)))
    seconds = (LATENCY + size / rate) * wobble
    return {
        "repeat": max(repeat, 0), "warmup": repeat < 0, **labels, "device": device, "devices": devices,
        "device_seconds": seconds + ALONE, "one_more_seconds": seconds, "one_more_copies": max(2**25 // size, 1),
        "wall_seconds": seconds + 4e-6,
        "issue_seconds": seconds * 0.9 if memory == "pageable" else 1.5e-6 * wobble,
        "h2d_seconds": None if way == "d2h" else seconds, "d2h_seconds": None if way == "h2d" else seconds,
        "wrong_words": 0,
    }  # fmt: skip


def overlap_rows(
    balances: Sequence[str] = ("copy_bound", "balanced", "compute_bound"),
    depths: Sequence[int] = (1, 2, 4, 8),
    every_combination: bool = True,
    chunks: int = 64,
    repeats: int = 7,
) -> list[Row]:
    """Pipelines by a small simulation of two ordered queues; the last repeat of each keeps its spans."""
    found: list[Row] = []
    for way, balance in product(("h2d", "d2h"), balances):
        for memory, stream, depth, events in product(("pinned", "pageable"), (True, False), depths, (True, False)):
            missing = [memory != "pinned", not stream, depth < 2, not events]
            if not every_combination and (sum(missing) > 1 or depth > 2):
                continue
            labels = {
                "direction": way, "balance": balance, "memory": memory, "separate_stream": stream, "depth": depth,
                "events": events, "bytes": 2**25, "chunks": chunks,
            }  # fmt: skip
            found.extend(_pipeline(labels, repeats))
    return found


def _pipeline(labels: Row, repeats: int) -> Iterator[Row]:
    pinned_copy = labels["bytes"] / RATES["pinned"]
    copy = labels["bytes"] / RATES[labels["memory"]]
    kernel = pinned_copy * {"copy_bound": 0.5, "balanced": 1.0, "compute_bound": 2.0}[labels["balance"]]
    spans = _simulate(labels, copy, kernel)
    chunks = labels["chunks"]
    end = max(span["end_seconds"] for span in spans)
    kernels = sorted(span["start_seconds"] for span in spans if span["lane"] == "compute")
    idle = kernels[-1] + kernel - kernels[0] - chunks * kernel
    unsafe = labels["separate_stream"] and not labels["events"]
    empty = dict.fromkeys(
        ("device_seconds", "wall_seconds", "issue_seconds", "stall_seconds", "copy_alone_seconds",
            "pinned_copy_seconds",
         "compute_alone_seconds", "corrupted_chunks", "lane", "chunk", "start_seconds", "end_seconds")
    )  # fmt: skip
    for repeat in range(-1, repeats):
        wobble = 1 + 0.0002 * (repeat + 1)
        yield {
            "repeat": max(repeat, 0), "warmup": repeat < 0, "kind": "pass", **labels, **empty,
            "device_seconds": end * wobble, "wall_seconds": end * wobble + 1e-5,
            "issue_seconds": chunks * (copy * 0.9 if labels["memory"] == "pageable" else 1.5e-6),
            "stall_seconds": max(idle, 0.0) * wobble, "copy_alone_seconds": chunks * copy,
            "pinned_copy_seconds": chunks * pinned_copy,
            "compute_alone_seconds": chunks * kernel, "corrupted_chunks": 2 + repeat % 3 if unsafe else 0,
        }  # fmt: skip
    for span in spans:
        yield {"repeat": repeats - 1, "warmup": False, "kind": "span", **labels, **empty, **span}


def _simulate(labels: Row, copy: float, kernel: float) -> list[Row]:
    """Start and end of every copy and kernel: the first lane feeds the second through a ring of buffers."""
    order = (("copy", copy), ("compute", kernel))
    (first, first_length), (second, second_length) = order if labels["direction"] == "h2d" else order[::-1]
    free = {"copy": 0.0, "compute": 0.0}
    emptied: list[float] = []
    spans: list[Row] = []

    def add(lane: str, chunk: int, earliest: float, length: float) -> float:
        start = max(earliest, free[lane])
        free[lane] = start + length
        if not labels["separate_stream"]:
            free["copy"] = free["compute"] = start + length
        spans.append({"lane": lane, "chunk": chunk, "start_seconds": start, "end_seconds": start + length})
        return start + length

    for chunk in range(labels["chunks"]):
        ordered = labels["events"] and labels["separate_stream"]
        reused = emptied[chunk - labels["depth"]] if ordered and chunk >= labels["depth"] else 0.0
        filled = add(first, chunk, reused, first_length)
        emptied.append(add(second, chunk, filled if ordered else 0.0, second_length))
    return spans
