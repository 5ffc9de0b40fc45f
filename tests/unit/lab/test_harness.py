"""The harness repeats as long as it must and no longer, and no run takes more than is safe.

No test waits: the clock is passed in.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pinscope.analysis.statistics import looks, summarize
from pinscope.errors import Cancelled, NoDevice, NotEnoughMemory
from pinscope.experiments.contract import Params
from pinscope.experiments.registry import EXPERIMENTS
from pinscope.lab.harness import (
    SAFE_DEVICE_SHARE,
    SAFE_HOST_SHARE,
    SAFE_MEMLOCK_SHARE,
    Harness,
    Precision,
    Turn,
    binding_limit,
    check_budget,
    safe_pinned_bytes,
)
from pinscope.lab.hostmodel import STAGING_BYTES
from pinscope.records.base import Budget
from pinscope.records.environment import Device, Limits
from pinscope.records.run import LabKind


class Procedure:
    """Takes the turns of a harness; every reading lasts ``seconds`` by the fake clock."""

    def __init__(self, precision: Precision, readings: list[float], seconds: float = 0.0) -> None:
        now = [100.0]
        self.values: list[float] = []
        self.turns: list[Turn] = []
        for turn in Harness(clock=lambda: now[0]).turns(precision, self.values):
            self.turns.append(turn)
            now[0] += seconds
            if not turn.warmup:
                self.values.append(readings[turn.repeat % len(readings)])


def test_steady_readings_end_at_the_least_number_of_repeats() -> None:
    taken = Procedure(Precision(relative=0.01, most=60), [1.0, 1.001])
    assert len(taken.values) == 8


def test_noisy_readings_go_on_until_the_median_is_known_well_enough() -> None:
    source = random.Random(5)
    readings = [source.gauss(10.0, 1.0) for _ in range(5000)]
    taken = Procedure(Precision(relative=0.02, most=5000, seconds=1e9), readings)
    planned = looks(8, 5000)
    assert len(taken.values) in planned[1:-1]
    before = taken.values[: planned[planned.index(len(taken.values)) - 1]]
    assert summarize(taken.values, drift=0.0).uncertainty <= 0.02 < summarize(before, drift=0.0).uncertainty


@pytest.mark.parametrize(
    ("precision", "seconds", "count"),
    [
        (Precision(relative=0.01, most=60, seconds=1e9), 0.0, 60),
        (Precision(relative=0.01, most=1000, seconds=2.0, warmups=0), 0.125, 16),
        (Precision(least=3, seconds=2.0), 10.0, 3),
    ],
    ids=["the most repeats", "the turn that passes the time limit", "the least, though the time is over"],
)
def test_hopeless_readings_end_at_a_limit(precision: Precision, seconds: float, count: int) -> None:
    taken = Procedure(precision, [1.0, 5.0], seconds)
    assert [turn.repeat for turn in taken.turns if not turn.warmup] == list(range(count))


def test_warmups_come_first_are_told_apart_and_take_no_time_from_the_limit() -> None:
    precision = Precision(relative=0.01, most=1000, seconds=1.0, warmups=3)
    taken = Procedure(precision, [1.0, 5.0], seconds=0.125)
    assert taken.turns[:4] == [Turn(0, True), Turn(1, True), Turn(2, True), Turn(0, False)]
    assert not any(turn.warmup for turn in taken.turns[3:])
    assert len(taken.values) == 8


def test_a_cancel_stops_the_run_before_the_next_reading_and_is_noticed_at_progress() -> None:
    values: list[float] = []
    harness = Harness(cancelled=lambda: len(values) >= 3)

    def measure() -> None:
        for turn in harness.turns(Precision(), values):
            if not turn.warmup:
                values.append(1.0)

    with pytest.raises(Cancelled, match="cancelled"):
        measure()
    assert len(values) == 3
    with pytest.raises(Cancelled):
        next(harness.turns(Precision(), []))  # a warm-up
    with pytest.raises(Cancelled):
        harness.progress(0.5, "copying")


def test_progress_is_passed_on_and_kept_between_0_and_1() -> None:
    reported: list[tuple[float, str]] = []
    harness = Harness(report=lambda fraction, message: reported.append((fraction, message)))
    for fraction in (-0.1, 0.25, 1.5):
        harness.progress(fraction, "4 KiB")
    assert reported == [(0.0, "4 KiB"), (0.25, "4 KiB"), (1.0, "4 KiB")]


def test_what_a_turn_counts_stops_the_repeats_and_a_warm_up_counts_nothing() -> None:
    turns = []
    for turn in Harness().turns(Precision(relative=0.1, least=3, most=30, seconds=60.0, warmups=2)):
        turn.count(7.0)
        turns.append(turn)
    assert [turn.labels for turn in turns[:3]] == [
        {"repeat": 0, "warmup": True}, {"repeat": 1, "warmup": True}, {"repeat": 0, "warmup": False},
    ]  # fmt: skip
    assert turns[-1].values == [7.0] * (len(turns) - 2)
    assert len(turns) < 32


TRIALS = 500
"""Each share is known to one percent; those below are above 98 %, or well below what is asked."""
Values = NDArray[np.float64]
Noise = Callable[[np.random.Generator, tuple[int, int]], Values]
"""Values around a true median of 1."""


def normal(random: np.random.Generator, shape: tuple[int, int]) -> Values:
    return random.normal(1.0, 0.03, shape)


def skewed(random: np.random.Generator, shape: tuple[int, int]) -> Values:
    return 0.97 + 0.03 * random.lognormal(0.0, 1.0, shape)  # its median is e⁰


def two_states(random: np.random.Generator, shape: tuple[int, int], lasting: float = 1 / 0.7) -> Values:
    """Three of ten repeats are 5 % slower; a slow state lasts ``lasting`` repeats on average (1/0.7: by chance)."""
    leave, enter = 1 / lasting, 1 / lasting * 0.3 / 0.7
    slow = np.empty(shape, dtype=bool)
    slow[:, 0] = random.random(shape[0]) < 0.3
    for turn in range(1, shape[1]):
        chance = random.random(shape[0])
        slow[:, turn] = np.where(slow[:, turn - 1], chance >= leave, chance < enter)
    # Below the median of all lie five sevenths of the fast ones: 0.566 standard deviations above their middle.
    return 1.0 - 0.566 * 0.003 + 0.05 * slow + random.normal(0.0, 0.003, shape)


SHAPES: dict[str, Noise] = {"normal 3 %": normal, "skewed": skewed, "two states": two_states}


def asked_by_default() -> dict[str, Precision]:
    """The stopping rule of each experiment's presets, each different one once."""
    rules: dict[Precision, str] = {}
    for entry in EXPERIMENTS:
        for lab in entry.experiment.labs:
            for quick in (False, True):
                if issubclass(entry.experiment.Params, Params) and entry.experiment.labs[lab] is None:
                    preset = cast("Params", entry.experiment.Params.preset(lab, quick))
                    rules.setdefault(preset.harness_precision(), f"{entry.experiment.name} {lab} quick={quick}")
    return {name: precision for precision, name in rules.items()}


ASKED = asked_by_default()


def covered(noise: Noise, precision: Precision, pace: float) -> float:
    """Share of trials whose interval, as a reading shows it later, holds the true median.

    Args:
        noise: what is repeated.
        precision: how well, and until when.
        pace: seconds that a value of 1 takes.
    """
    all_values = noise(np.random.default_rng(7), (TRIALS, precision.most)).tolist()
    right = 0
    for trial in all_values:
        taken: list[float] = []
        now = [0.0]
        for turn in Harness(clock=partial(now.__getitem__, 0)).turns(precision, taken):
            if not turn.warmup:
                taken.append(trial[turn.repeat])
                now[0] += pace * trial[turn.repeat]
        low, high = summarize(taken).interval or (-np.inf, np.inf)
        right += low <= 1.0 <= high
    return right / TRIALS


@pytest.mark.parametrize("shape", SHAPES)
def test_at_least_94_percent_of_intervals_hold_the_true_median(shape: str) -> None:
    """At the default precisions, with repeats so long that the time limit may end them too."""
    for precision in ASKED.values():
        assert covered(SHAPES[shape], precision, pace=precision.seconds / 25) >= 0.94


def test_states_that_last_for_two_repeats_are_still_covered_and_long_ones_are_not() -> None:
    """What the documents say less about: nothing seen within few repeats shows a state that outlasts them."""
    precision = Precision(0.01, most=60, seconds=1e9)
    assert covered(partial(two_states, lasting=2.0), precision, 0.0) >= 0.94
    assert covered(partial(two_states, lasting=10.0), precision, 0.0) < 0.9


MIB, GIB = 2**20, 2**30
SIZES = st.integers(0, 2**42)


def limits(available: int = 64 * GIB, cgroup: int | None = None, memlock: int | None = None) -> Limits:
    return Limits(
        host_total_bytes=128 * GIB, host_available_bytes=available, cgroup_headroom_bytes=cgroup,
        memlock_headroom_bytes=memlock, shm_free_bytes=None,
    )  # fmt: skip


def needs(pinned: int = 0, pageable: int = 0, device: int = 0) -> Budget:
    return Budget(pinned_bytes=pinned, pageable_bytes=pageable, device_bytes=device, seconds=1.0)


def gpu(free: int | None) -> Device:
    return Device(
        index=3, uuid="GPU-0", name="a GPU", pci_bus_id=None, numa_node=None, memory_total_bytes=free,
        memory_free_bytes=free, compute_capability=None, link=None,
    )  # fmt: skip


GPU = gpu(80 * GIB)


def test_what_cuda_may_pin_is_a_share_of_the_tightest_host_limit() -> None:
    for where, expected, name in [
        (limits(), 32 * GIB, "available on the host"),
        (limits(cgroup=8 * GIB), 4 * GIB, "left in the cgroup"),
        (limits(available=4 * GIB, cgroup=8 * GIB), 2 * GIB, "available on the host"),
        (limits(memlock=64 * MIB), 32 * GIB, "available on the host"),
        (limits(available=0), 0, "available on the host"),
    ]:
        assert safe_pinned_bytes(where, "cuda") == expected
        assert binding_limit(where, "cuda") == name


def test_what_the_host_model_may_lock_is_also_bound_by_rlimit_memlock_less_its_own_staging() -> None:
    where = limits(memlock=64 * MIB)
    assert safe_pinned_bytes(where, "host") == int(64 * MIB * SAFE_MEMLOCK_SHARE) - STAGING_BYTES
    assert binding_limit(where, "host") == "left under RLIMIT_MEMLOCK"
    assert safe_pinned_bytes(limits(memlock=4096), "host") == 0
    assert safe_pinned_bytes(limits(memlock=None), "host") == 32 * GIB - STAGING_BYTES


@given(SIZES, st.none() | SIZES, st.none() | SIZES, st.sampled_from(["host", "cuda"]))
def test_what_is_called_safe_passes_and_a_byte_more_is_refused(
    available: int, cgroup: int | None, memlock: int | None, lab: LabKind
) -> None:
    where = limits(available, cgroup, memlock)
    safe = safe_pinned_bytes(where, lab)
    device = GPU if lab == "cuda" else None
    if safe:
        check_budget(needs(pinned=safe), where, device, lab)
    with pytest.raises(NotEnoughMemory):
        check_budget(needs(pinned=safe + 1 + 8 * (safe == 0)), where, device, lab)


def test_a_refusal_says_need_safe_share_binding_limit_and_advice_in_one_line() -> None:
    for budget, where, lab, words in [
        (
            needs(pinned=6 * GIB), limits(cgroup=8 * GIB), "cuda",
            r"^the run needs 6 GiB of pinned memory, but only 4 GiB is safe here: 50.0 % of 8 GiB left in the cgroup; "
            r"give the container \(its cgroup\) more memory or choose smaller sizes$",
        ),
        (needs(pinned=64 * MIB), limits(memlock=8 * MIB), "host", r"of locked memory, .*MEMLOCK; raise it \(ulimit -l"),
        (needs(4 * GIB, 5 * GIB), limits(10 * GIB), "cuda", "needs 9 GiB of host memory, but only 8 GiB is safe"),
        (needs(device=65 * GIB), limits(), "cuda", "needs 65 GiB of GPU .* 64 GiB is safe .* 80 GiB free on GPU 3"),
    ]:  # fmt: skip
        with pytest.raises(NotEnoughMemory, match=words) as refusal:
            check_budget(budget, where, GPU if lab == "cuda" else None, lab)
        assert "\n" not in str(refusal.value)
        assert refusal.value.exit_code == 3


def test_what_just_fits_host_and_gpu_passes() -> None:
    assert (SAFE_HOST_SHARE, SAFE_DEVICE_SHARE) == (0.8, 0.8)
    check_budget(needs(4 * GIB, 4 * GIB), limits(10 * GIB), GPU, "cuda")
    check_budget(needs(device=64 * GIB), limits(), GPU, "cuda")


@pytest.mark.parametrize(("device", "lab"), [(None, "host"), (gpu(None), "cuda")])
def test_device_memory_of_the_host_model_and_of_a_gpu_that_shares_the_hosts_is_host_memory(
    device: Device | None, lab: LabKind
) -> None:
    where, budget = limits(available=10 * GIB), needs(pinned=GIB, pageable=GIB, device=7 * GIB)
    check_budget(budget, where, GPU, "cuda")
    with pytest.raises(NotEnoughMemory, match="of host memory"):
        check_budget(budget, where, device, lab)


def test_a_gpu_run_without_a_gpu_is_refused() -> None:
    with pytest.raises(NoDevice, match="no such GPU"):
        check_budget(needs(), limits(), None, "cuda")
