"""Ways from pageable memory to a real GPU: content whole, nothing left behind, and what each costs."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import cupy
import numpy as np
import pytest
from cupy.cuda import runtime

from pinscope.experiments.staging.experiment import EXPERIMENT, StagingParams
from pinscope.experiments.staging.findings import code
from pinscope.experiments.staging.reading import Staging, of
from pinscope.experiments.staging.ways import WAYS
from pinscope.lab.cuda import CudaLab
from pinscope.lab.harness import Harness
from tests.data import synthetic

MIB = 2**20


def measured(lab: CudaLab, **changes: Any) -> Staging:
    """A quick run; what each way brought was right."""
    params = StagingParams.preset("cuda", quick=True).with_overrides(changes)
    rows = [row.model_dump() for row in EXPERIMENT.measure(params, lab, Harness())]
    assert not any(row["wrong_words"] for row in rows)
    staging = of(synthetic.run("staging"), rows)
    assert staging is not None
    return staging


def test_every_way_brings_the_data_whole_and_all_memory_comes_back(lab: CudaLab) -> None:
    measured(lab, sizes="64KiB", repeats=8)  # libraries load what they need, and keep it
    runtime.deviceSynchronize()
    before = runtime.memGetInfo()[0]
    found = measured(lab, sizes="64KiB,4MiB", uses="1,3", chunk="256KiB", threads="1,4", repeats=8)
    here = {way for way in WAYS if find_spec("torch") or not way.startswith("torch")}
    assert {cell.way for cell in found.cells} == here
    assert before - runtime.memGetInfo()[0] <= 4 * MIB


def test_a_pinned_copy_takes_a_hundredth_of_the_processor_time_of_a_pageable_one(lab: CudaLab) -> None:
    """On an H100, 0.7 against 134 ms a GB."""
    found = measured(lab, sizes="256MiB", ways="plain,in_place", repeats=8, time_limit=1.0)
    seconds = {cell.way: cell.cpu_seconds for cell in found.cells}
    assert seconds["in_place"] <= 0.01 * seconds["plain"]


def test_two_buffers_in_turn_take_as_long_as_the_slower_half_and_beat_a_plain_copy_with_threads(lab: CudaLab) -> None:
    """On an H100, 1.01 times as long with one thread; a quarter of a plain copy with eight."""
    found = measured(
        lab, sizes="256MiB", ways="plain,two_buffers,fill_only,copy_only", threads="1,8", repeats=8, time_limit=1.0
    )
    seconds = {(cell.way, cell.threads): cell.seconds for cell in found.cells}
    assert seconds["two_buffers", 1] < 1.15 * max(seconds["fill_only", 1], seconds["copy_only", 1])
    assert seconds["two_buffers", 8] < 0.6 * seconds["plain", 1]


@pytest.mark.parametrize("way", ["register", "two_buffers", "in_place"])
def test_the_code_of_the_findings_runs_as_pasted(way: str) -> None:
    namespace: dict[str, Any] = {}
    exec(code(way, threads=4, chunk=MIB) or "", namespace)  # noqa: S102 - that is what a user does with it
    expected = np.full(MIB, 2, np.float32) if way == "in_place" else np.arange(MIB)
    assert np.array_equal(cupy.asnumpy(namespace["on_gpu"]), expected)
    if way == "two_buffers":
        small = namespace["Stager"](threads=3, chunk=4096)
        data = np.random.default_rng(7).integers(0, 256, MIB + 5, dtype=np.uint8)
        for length in (0, 1, 4097, data.size):
            assert np.array_equal(cupy.asnumpy(small.to_gpu(data[:length])), data[:length])
        small.pool.shutdown()
        namespace["stager"].pool.shutdown()
