"""Every way brings the data whole and gives back what it took; what is measured, and how often."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import pytest

from pinscope.analysis.cells import of_kind
from pinscope.errors import MeasurementFailed
from pinscope.experiments.contract import possible
from pinscope.experiments.staging import experiment
from pinscope.experiments.staging.experiment import Bringing, Staging, StagingParams, _repeat, _torch, _why_not
from pinscope.experiments.staging.ways import WAYS, Bench, Meanwhile, function_of
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


def test_a_way_brings_the_data_whole_each_time_and_gives_back_what_it_took() -> None:
    for name in [name for name, way in WAYS.items() if not {"cupy", "torch"} & way.kinds]:
        engine = LateEngine()
        with bench(engine) as here, ExitStack() as held:
            steps = function_of(name)(here, 3, held)
            for uses in (1, 2):
                pattern = here.lab.fresh_pattern()
                steps.ready(pattern)
                begun = here.clock()
                marks = steps.run(uses)
                assert begun <= marks.prepared <= marks.copied <= here.clock()
                assert steps.wrong_words(pattern) == (None if "half" in WAYS[name].kinds else 0)
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
    which = "more than 2 threads; rings with more than 1 threads"
    assert notes == [f"Left out: {which}. This run may use 3 processors."]
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


def test_a_quick_run_brings_nothing_back_and_a_full_one_in_every_way() -> None:
    def measured(quick: bool) -> set[str]:
        return {case.what.way for case in Staging().cases(StagingParams.preset("cuda", quick=quick))}

    back = set(of_kind(WAYS, "back"))
    assert (back & measured(quick=False), back & measured(quick=True)) == (back, set())


@pytest.mark.parametrize(("half", "beside"), [("ring_copies", True), ("ring_drain", True), ("ring_drain_alone", False)])
def test_the_other_half_goes_on_while_one_is_timed_and_ends_with_it(half: str, beside: bool) -> None:
    with bench(LateEngine()) as here, ExitStack() as held:
        before = threading.active_count()
        steps = function_of(half)(here, 2, held)
        idle = threading.active_count()
        steps.ready(here.lab.fresh_pattern())
        assert (threading.active_count() > idle) == beside
        steps.run(1)
        assert steps.wrong_words(here.lab.fresh_pattern()) is None
    assert threading.active_count() <= before


def test_what_breaks_off_beside_a_half_is_raised_and_leaves_no_thread() -> None:
    def broken() -> None:
        raise MeasurementFailed("the other half broke off")

    before = threading.active_count()
    with ExitStack() as held:
        meanwhile = Meanwhile(held, lambda: None, [broken])
        meanwhile.start()
        with pytest.raises(MeasurementFailed, match="broke off"):
            meanwhile.stop()
    assert threading.active_count() == before
