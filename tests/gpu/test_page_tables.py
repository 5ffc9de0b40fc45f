"""What pinned memory takes on a real GPU: page tables per pinned byte, on every GPU, and all of it returned."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from cupy.cuda import runtime

from pinscope.experiments.page_tables.reading import Cell, cells_of
from pinscope.lab.backing import touch, why_not_backing
from pinscope.lab.cuda import CudaLab
from pinscope.records.run import Backing

GIB, MIB = 2**30, 2**20
PAGES_OFF = 256 * 4096
"""The kernel batches its pin counters per processor; so far off may they be, in bytes."""


def run(*arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "pinscope", "run", *arguments, "--lab", "cuda", "--json"],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def is_h200() -> bool:
    return bool(runtime.getDeviceProperties(0)["name"].startswith(b"NVIDIA H200"))


@pytest.fixture(scope="module")
def at_16_gib() -> Mapping[tuple[str, str], Cell]:
    sizes = ("--set", "total=16GiB", "--set", "steps=256")
    ways = ("--set", "memory=pinned,registered", "--set", "backings=4k,thp,shm")
    document = run("page_tables", *sizes, *ways, "--set", "all_devices=false")
    assert document["run"]["params"]["total"] == 16 * GIB
    return {(cost.memory, cost.backing): cost for cost in cells_of(document["observations"])}


WAYS = [("pinned", ""), ("registered", "4k"), ("registered", "thp"), ("registered", "shm")]


@pytest.mark.parametrize("way", WAYS)
def test_each_pinned_gib_takes_8_bytes_a_page_of_gpu_memory(
    at_16_gib: Mapping[tuple[str, str], Cell], way: tuple[str, str]
) -> None:
    cost = at_16_gib[way]
    if is_h200():
        assert cost.per_byte == pytest.approx(2 * MIB / GIB, rel=0.02)
        assert cost.page_bytes == 4096
    assert cost.per_byte is None or cost.straight
    assert cost.host_pinned_bytes == pytest.approx(16 * GIB, abs=PAGES_OFF * 4)


@pytest.mark.parametrize("way", WAYS)
def test_all_of_it_returns_after_freeing(at_16_gib: Mapping[tuple[str, str], Cell], way: tuple[str, str]) -> None:
    left = at_16_gib[way].left_bytes
    assert left is not None
    assert left <= 2 * MIB


def test_time_goes_into_touching_not_into_registering(at_16_gib: Mapping[tuple[str, str], Cell]) -> None:
    cost = at_16_gib["registered", "4k"]
    assert cost.touch_seconds_per_gib is not None
    assert cost.pin_seconds_per_gib is not None
    assert cost.touch_seconds_per_gib.median > 3 * cost.pin_seconds_per_gib.median


@pytest.fixture
def huge_page_pool() -> Iterator[None]:
    """64 MiB of 2 MiB pages in the pool, given back afterwards; root may reserve them."""
    pool = Path("/proc/sys/vm/nr_hugepages")
    before = pool.read_text()
    if why_not_backing("hugetlb", 64 * MIB) and os.access(pool, os.W_OK):
        pool.write_text(str(int(before) + 64))
    yield
    if pool.read_text() != before:
        pool.write_text(before)


@pytest.mark.usefixtures("huge_page_pool")
@pytest.mark.parametrize("backing", ["4k", "thp", "hugetlb", "shm"])
def test_cuda_sees_registered_memory_of_each_backing_as_pinned(backing: Backing) -> None:
    if reason := why_not_backing(backing, 64 * MIB):
        pytest.skip(reason)
    with CudaLab(0) as lab:
        before = lab.memory_state()
        with lab.ordinary_memory(64 * MIB, backing) as memory:
            touch(memory)
            with lab.register(memory) as registered, lab.device_buffer(64 * MIB) as device, lab.stream() as stream:
                assert runtime.pointerGetAttributes(registered.address).type == 1  # cudaMemoryTypeHost
                held = lab.memory_state()
                pattern = lab.fresh_pattern()
                lab.fill(registered, pattern)
                lab.copy_to_device(device, registered, stream)
                stream.synchronize()
                assert lab.wrong_words(device, pattern) == 0
            assert runtime.pointerGetAttributes(memory.address).type == 0  # cudaMemoryTypeUnregistered
        assert before.pinned_bytes is not None
        assert held.pinned_bytes is not None
        assert held.pinned_bytes - before.pinned_bytes == pytest.approx(64 * MIB, abs=PAGES_OFF)


def test_both_meters_see_gpu_memory_come_and_go() -> None:
    with CudaLab(0) as lab:
        before = lab.memory_state()
        with lab.device_buffer(256 * MIB):
            held = lab.memory_state()
        after = lab.memory_state()
    assert not held.missing
    for name in ("device_used_bytes", "nvml_used_bytes"):
        assert getattr(held, name) - getattr(before, name) == 256 * MIB
        assert getattr(after, name) == getattr(before, name)


@pytest.mark.two_gpus
def test_every_gpu_with_a_context_pays() -> None:
    ways = ("--set", "memory=pinned,registered", "--set", "backings=thp")
    document = run("page_tables", "--set", "total=8GiB", *ways)
    found = cells_of(document["observations"])
    assert {cost.device for cost in found} == set(range(runtime.getDeviceCount()))
    for cost in found:
        assert cost.per_byte is not None
        if is_h200():
            assert cost.per_byte == pytest.approx(2 * MIB / GIB, rel=0.1)
        assert cost.left_bytes is not None
        assert cost.left_bytes <= 2 * MIB
    assert "every-gpu-pays" in {finding["rule"] for finding in document["run"]["findings"]}
