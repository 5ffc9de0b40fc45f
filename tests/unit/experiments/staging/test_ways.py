"""Every way brings the data whole and gives back what it took; what is measured, and how often."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import pytest

from pinscope.experiments.contract import possible
from pinscope.experiments.staging import experiment
from pinscope.experiments.staging.experiment import Bringing, Staging, StagingParams, _repeat, _torch, _why_not
from pinscope.experiments.staging.ways import WAYS, Bench, function_of
from pinscope.lab.harness import Harness
from pinscope.lab.hostmodel import HostModelLab
from tests.unit.experiments.staging.late_engine import LateEngine

KIB = 1024
SIZE = 512 * KIB


@contextmanager
def bench(engine: LateEngine, size: int = SIZE, chunk: int = 16 * KIB) -> Iterator[Bench]:
    with ExitStack() as held:
        lab = held.enter_context(HostModelLab())
        source, target = (
            held.enter_context(lab.ordinary_memory(size, "4k")),
            held.enter_context(lab.device_buffer(size)),
        )
        yield Bench(lab, engine, time.perf_counter, source, target, held.enter_context(engine.lane()), chunk)


@pytest.mark.parametrize("name", [name for name, way in WAYS.items() if not {"cupy", "torch"} & way.kinds])
def test_a_way_brings_the_data_whole_each_time_and_gives_back_what_it_took(name: str) -> None:
    engine = LateEngine()
    with bench(engine) as here, ExitStack() as held:
        steps = function_of(name)(here, 3, held)
        for uses in (1, 2):
            pattern = here.lab.fresh_pattern()
            steps.ready(pattern)
            begun = here.clock()
            marks = steps.run(uses)
            assert begun <= marks.prepared <= marks.copied <= here.clock()
            assert steps.wrong_words(pattern) == (None if name.endswith("_only") else 0)
            assert engine.held == 0


def test_a_way_is_set_up_once_and_its_first_use_is_kept_apart() -> None:
    params = StagingParams.preset("cuda", quick=True).with_overrides(
        {"uses": "1,2", "repeats": 8, "precision": 1e-9, "time_limit": 60, "chunk": "16KiB"}
    )
    with bench(LateEngine()) as here:
        rows = list(_repeat(Bringing("two_buffers", SIZE, 2, params.uses), here, params, Harness()))
    assert [(row.uses, row.warmup, row.setup_seconds is None) for row in rows] == [
        (1, True, False), *[(1, False, True)] * 8, *[(2, False, True)] * 8
    ]  # fmt: skip
    assert all(row.cpu_seconds >= 0 and row.chunk == 16 * KIB and row.wrong_words == 0 for row in rows)


def test_only_as_many_threads_are_taken_as_there_are_processors_and_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    notes: list[str] = []
    params = StagingParams.preset("cuda", quick=False)
    with HostModelLab() as lab:
        cases = possible(Staging().cases(params), Harness(note=notes.append), partial(_why_not, params, lab, {}))
    assert notes == ["Left out: more than 2 threads. This run may use 3 processors."]
    threads = {(case.what.bytes, case.what.threads) for case in cases if case.what.way == "two_buffers"}
    assert {count for size, count in threads if size == 2**16} == {1}
    assert {count for size, count in threads if size == 2**20} == {1, 2}


def test_several_uses_are_measured_only_where_they_say_something_new() -> None:
    params = StagingParams.preset("cuda", quick=False)
    uses = {(case.what.way, case.what.bytes): case.what.uses for case in Staging().cases(params)}
    assert uses["plain", 2**20] == (1, 8)
    assert uses["plain", 2**30] == (1,)
    assert uses["plain_fresh", 2**20] == uses["fill_only", 2**20] == (1,)


def test_a_run_without_pytorch_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment, "find_spec", lambda _: None)
    params = StagingParams.preset("cuda", quick=True).with_overrides({"ways": "plain,torch_to"})
    threads, left_out = _torch(params, Harness())
    assert threads == 1
    ((what, why),) = left_out.values()
    assert (list(left_out), what) == (["torch_to"], "PyTorch's ways")
    assert why.startswith("PyTorch is not installed here; run: ")
