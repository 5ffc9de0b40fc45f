"""The experiments on a real GPU, through the command line and in child processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from cupy.cuda import runtime

from pinscope.analysis.rules.link import SLOW_LINK
from pinscope.experiments.bandwidth.reading import Cell, Copies
from pinscope.experiments.overlap.reading import Cell as PassCell
from pinscope.experiments.overlap.reading import Passes
from pinscope.experiments.overlap.ways import Recipe
from pinscope.probes.environment import capture_environment
from pinscope.runner.jobs import Request, prepare, reconcile, start
from pinscope.store.store import Store
from tests.data import synthetic

NVBANDWIDTH_H200 = {"h2d": 55.50e9, "d2h": 55.41e9}
"""Bytes/second of nvbandwidth 0.8 at 512 MiB on an H200 in a PCIe Gen5 x16 slot."""
FULL = Recipe("pinned", True, 2, True)


def pinscope(*arguments: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pinscope", *arguments], capture_output=True, text=True, timeout=timeout, check=False
    )


def run(*arguments: str) -> dict[str, Any]:
    done = pinscope("run", *arguments, "--lab", "cuda", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def at_512_mib() -> list[Cell]:
    document = run("bandwidth", "--set", "sizes=512MiB", "--set", "copiers=engine", "--set", "time_limit=4")
    return Copies(synthetic.run("bandwidth"), document["observations"]).cells


@pytest.mark.parametrize("direction", ["h2d", "d2h"])
def test_pinned_copies_reach_the_rate_of_nvbandwidth(at_512_mib: list[Cell], direction: str) -> None:
    (cell,) = (c for c in at_512_mib if (c.memory, c.direction, c.devices) == ("pinned", direction, 1)
               and c.device == 0)  # fmt: skip
    device = capture_environment().devices[0]
    assert device.link is not None
    if device.name == "NVIDIA H200" and (device.link.generation_max, device.link.width_max) == (5, 16):
        assert cell.bytes_per_second == pytest.approx(NVBANDWIDTH_H200[direction], rel=0.01)
    else:
        assert cell.bytes_per_second > SLOW_LINK * (device.link.limit_bytes_per_second or 0)
    assert cell.one_more_seconds.spread < 0.01


def test_every_kind_is_measured_and_every_word_arrives(at_512_mib: list[Cell]) -> None:
    kinds = {cell.memory for cell in at_512_mib}
    assert kinds == {"pageable", "pinned", "write_combined", "mapped", "registered"}
    assert sum(cell.wrong_words for cell in at_512_mib) == 0


def test_pageable_copies_are_slower_and_hold_the_cpu(at_512_mib: list[Cell]) -> None:
    by_kind = {c.memory: c for c in at_512_mib if c.direction == "h2d" and c.device == 0}
    pinned, pageable = by_kind["pinned"], by_kind["pageable"]
    assert pinned.bytes_per_second > 2 * pageable.bytes_per_second
    assert pageable.issue_seconds.median > 100 * pinned.issue_seconds.median


@pytest.fixture(scope="module")
def overlap_passes() -> Mapping[tuple[str, Recipe], PassCell]:
    document = run("overlap", "--quick", "--set", "chunks=64")
    cells = Passes(synthetic.run("overlap"), document["observations"]).cells
    return {(cell.direction, cell.recipe): cell for cell in cells}


@pytest.mark.parametrize("direction", ["h2d", "d2h"])
def test_the_full_recipe_hides_the_shorter_side(
    overlap_passes: Mapping[tuple[str, Recipe], PassCell], direction: str
) -> None:
    cell = overlap_passes[direction, FULL]
    assert cell.overlap >= 0.95
    assert cell.corrupted_chunks == 0


@pytest.mark.parametrize("direction", ["h2d", "d2h"])
@pytest.mark.parametrize(
    "recipe",
    [Recipe("pageable", True, 2, True), Recipe("pinned", False, 2, True), Recipe("pinned", True, 1, True)],
    ids=lambda recipe: recipe.label,
)
def test_nothing_is_hidden_with_an_ingredient_missing(
    overlap_passes: Mapping[tuple[str, Recipe], PassCell], direction: str, recipe: Recipe
) -> None:
    cell = overlap_passes[direction, recipe]
    assert cell.overlap < 0.1
    assert cell.corrupted_chunks == 0


@pytest.mark.parametrize("direction", ["h2d", "d2h"])
def test_without_events_chunks_are_corrupted(
    overlap_passes: Mapping[tuple[str, Recipe], PassCell], direction: str
) -> None:
    assert overlap_passes[direction, Recipe("pinned", True, 2, False)].corrupted_chunks > 0


def test_all_quick_takes_less_than_two_and_a_half_minutes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # PyTorch makes it when it is imported
    begun = time.monotonic()
    done = pinscope("run", "all", "--quick", "--lab", "cuda", "--json")
    took = time.monotonic() - begun
    assert done.returncode == 0, done.stderr
    assert {one["run"]["status"] for one in json.loads(done.stdout)["runs"]} == {"done"}
    assert took < 150, f"{took:.0f} s"


def test_a_killed_run_keeps_what_it_measured_and_frees_the_gpu() -> None:
    free = runtime.memGetInfo()[0]
    with Store() as store:
        job = start(store, prepare(Request("bandwidth", "cuda"), capture_environment()))
        while store.run(job.run_id).observations < 20:
            assert job.poll() is None
            time.sleep(0.05)
        os.kill(job.pid, signal.SIGKILL)
        job.wait(10)
        assert reconcile(store) == [job.run_id]
        assert store.run(job.run_id).status == "interrupted"
        assert len(store.observations(job.run_id)) >= 20
        again = start(store, prepare(Request("overlap", "cuda", quick=True), capture_environment()))
        assert again.wait(60) == 0
    assert abs(runtime.memGetInfo()[0] - free) < 64 * 2**20


def test_two_runs_on_one_gpu_take_turns() -> None:
    with Store() as store:
        request = Request("bandwidth", "cuda", quick=True, overrides={"sizes": "64MiB", "memory": "pinned"})
        jobs = [start(store, prepare(request, capture_environment())) for _ in range(2)]
        waited = set()
        while any(job.poll() is None for job in jobs):
            waited |= {store.run(job.run_id).progress.waiting_for for job in jobs} - {None}
            time.sleep(0.05)
        assert [job.wait(1) for job in jobs] == [0, 0]
    assert any(job.run_id in words for job in jobs for words in waited)


def test_a_gpu_that_is_not_there_is_refused_with_those_that_are() -> None:
    done = pinscope("run", "bandwidth", "--device", "42", "--json")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "no GPU 42; there are: 0" in done.stderr


@pytest.mark.two_gpus
def test_several_gpus_at_once_are_measured_beside_each_alone() -> None:
    document = run("bandwidth", "--quick", "--set", "memory=pinned", "--set", "sizes=256MiB")
    cells = Copies(synthetic.run("bandwidth"), document["observations"]).cells
    measured = {(cell.device, cell.devices) for cell in cells if cell.copier == "engine"}
    count = runtime.getDeviceCount()
    assert {(device, devices) for device in range(count) for devices in (1, count)} <= measured
