"""The data loader's budget: what its workers, its data set and its pinned batches take, and what is refused."""

from __future__ import annotations

import importlib.machinery
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinscope.errors import NotEnoughMemory, NotPossible
from pinscope.experiments.contract import budget_of
from pinscope.experiments.dataloader import experiment as dataloader
from pinscope.experiments.dataloader.experiment import Dataloader, DataloaderObservation, DataloaderParams
from pinscope.experiments.dataloader.ways import BACKLOGS, Loading
from pinscope.lab.harness import CONTEXT_BYTES
from pinscope.records.environment import Environment
from pinscope.runner.jobs import Request, prepare
from tests.data import synthetic

MIB = 2**20
BATCH = 64 * 3 * 224**2 * 4


@pytest.fixture(autouse=True)
def _with_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where PyTorch is installed; nothing here imports it."""
    monkeypatch.setattr(dataloader, "find_spec", lambda name: importlib.machinery.ModuleSpec(name, None))


def machine(shm_free: int | None) -> Environment:
    environment = synthetic.environment()
    return environment.model_copy(update={"limits": environment.limits.model_copy(update={"shm_free_bytes": shm_free})})


def quick(**overrides: Any) -> DataloaderParams:
    return DataloaderParams.preset("cuda", quick=True).with_overrides(overrides)


def test_workers_that_need_more_than_dev_shm_has_are_refused_with_both_amounts_and_what_to_do() -> None:
    with pytest.raises(NotEnoughMemory) as refusal:
        budget_of(Dataloader(), quick(batch=64), machine(64 * MIB))
    assert str(refusal.value) == (
        "the loader's workers need 184 MiB in /dev/shm, but only 64 MiB is free there; "
        "give the container more (docker run --shm-size=184m) or take no workers (--set workers=0)"
    )


@pytest.mark.parametrize(("overrides", "free"), [({}, 46 * MIB), ({}, None), ({"workers": "0"}, 0)])
def test_what_dev_shm_holds_passes_and_so_does_what_nobody_knows_or_needs(
    overrides: dict[str, str], free: int | None
) -> None:
    assert budget_of(Dataloader(), quick(**overrides), machine(free)).pinned_bytes > 0


def test_a_preset_takes_smaller_batches_where_dev_shm_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pinscope.runner.jobs.cupy_problem", lambda _environment: None)
    run = prepare(Request("dataloader", "cuda", quick=True), machine(16 * MIB))
    assert run.params["batch"] == 4
    assert "the loader's workers need 45.9 MiB in /dev/shm" in run.notes[0]


def test_the_images_that_items_are_made_from_count_as_host_memory() -> None:
    budget = budget_of(Dataloader(), quick(batch=1, workers="0"), machine(None))
    assert budget.pageable_bytes == (64 + 2 * 2) * BATCH // 64


def test_more_rounds_and_the_steps_that_many_workers_need_take_longer() -> None:
    def seconds(**overrides: Any) -> float:
        return budget_of(Dataloader(), quick(**overrides), machine(None)).seconds

    assert seconds(rounds=6) > seconds(rounds=3)
    assert seconds(workers="64", batch=64) > 5 * seconds(workers="2", batch=64)


def test_without_pytorch_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataloader, "find_spec", lambda _name: None)
    with pytest.raises(NotPossible, match=r"^PyTorch is not installed here; run: .*torch"):
        budget_of(Dataloader(), quick(), machine(None))


def test_only_a_full_run_looks_at_pytorchs_pool_which_takes_a_context_and_longer() -> None:
    assert (quick().pool, DataloaderParams.preset("cuda", quick=False).pool) == (False, True)
    without, looked = (budget_of(Dataloader(), quick(pool=pool), machine(None)) for pool in (False, True))
    assert looked.device_bytes == without.device_bytes + CONTEXT_BYTES
    assert looked.seconds > without.seconds


def test_other_kinds_of_batches_are_measured_by_full_runs_with_the_most_workers_and_both_settings_off_or_on() -> None:
    assert quick().batches == ("one",)
    full = DataloaderParams.preset("cuda", quick=False)
    loadings = [case.what[1] for case in Dataloader().cases(full, machine(None)) if case.what and case.what[0] == 0]
    usual = [loading for loading in loadings if loading.kind == "one"]
    others = [(each.kind, each.workers, each.pin_memory, each.non_blocking) for each in loadings if each not in usual]
    assert len(usual) == 3 * 2 * 2
    assert others == [(kind, 8, both, both) for kind in ("many", "slow") for both in (False, True)]


def test_a_batch_of_many_tensors_pins_each_rounded_up_and_slow_items_take_longer() -> None:
    cases = {
        case.what[1].kind: case
        for case in Dataloader().cases(quick(batch=64, batches="one,many,slow"), machine(None))
        if case.what and case.what[1].pin_memory and case.what[1].non_blocking
    }
    at_once = 2 * 2 + 2
    assert cases["many"].pinned_bytes == at_once * 60 * MIB  # each has 628 KiB
    assert cases["one"].pinned_bytes == at_once * 64 * MIB
    assert cases["slow"].seconds > 2 * cases["one"].seconds


def test_a_row_is_a_whole_step_or_a_look_at_the_pool_with_its_setting() -> None:
    common = {"repeat": 0, "warmup": False, "batch_bytes": BATCH, "pinned_bytes": None}
    with pytest.raises(ValueError, match="a step without pin_memory"):
        DataloaderObservation(**common)
    with pytest.raises(ValueError, match="a pool without setting"):
        DataloaderObservation(kind="pool", **common)


def loading(workers: int) -> Loading:
    return Loading(batch=64, workers=workers, pin_memory=True, non_blocking=True)


def test_workers_share_the_batches_they_made_ahead_and_the_one_in_use() -> None:
    assert loading(2).batch_bytes == 64 * 3 * 224**2 * 4
    assert loading(2).shared_bytes == 5 * loading(2).batch_bytes
    assert loading(0).shared_bytes == 0


@given(st.integers(1, 10_000), st.integers(0, 64))
def test_a_combination_has_enough_steps_to_see_past_what_was_made_ahead(steps: int, workers: int) -> None:
    taken = loading(workers).at_least(steps)
    assert taken >= steps
    assert taken >= BACKLOGS * loading(workers).ahead
    assert taken == steps or workers > 0
