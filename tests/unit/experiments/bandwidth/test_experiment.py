"""What the bandwidth experiment copies, and what its rows say, on the host model."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from pinscope.experiments.bandwidth import ways
from pinscope.experiments.bandwidth.experiment import Bandwidth, BandwidthObservation, BandwidthParams
from pinscope.experiments.contract import budget_of
from pinscope.lab.harness import Harness
from pinscope.lab.hostmodel import HostModelLab
from pinscope.probes.proc import Answer
from tests.data import synthetic

MIB = 2**20


@pytest.fixture
def small_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ways, "COLD_BYTES", 32 * MIB)
    monkeypatch.setattr(ways, "LEAST_CACHE_BYTES", MIB)
    monkeypatch.setattr(ways, "last_level_cache_bytes", lambda: Answer(MIB))


def measured(overrides: Mapping[str, object]) -> list[BandwidthObservation]:
    params = BandwidthParams.preset("host", quick=True).with_overrides({"repeats": 8, "time_limit": 0.05, **overrides})
    with HostModelLab() as lab:
        return list(Bandwidth().measure(params, lab, Harness()))


@pytest.mark.usefixtures("small_caches")
def test_pageable_memory_is_copied_in_every_state_and_arrives() -> None:
    rows = measured({"memory": "pageable,pinned", "caches": "cold,warm", "sizes": "64KiB,2MiB"})
    found = {(row.memory, row.backing, row.cache, row.direction, row.bytes) for row in rows}
    one_way = ("h2d", "d2h")
    assert found == {
        *(("pageable", "4k", "cold", way, size) for way in (*one_way, "bidirectional") for size in (2**16, 2 * MIB)),
        *(("pageable", "4k", "warm", way, 2**16) for way in one_way),  # 2 MiB are more than the caches hold
        *(("pinned", None, None, way, size) for way in (*one_way, "bidirectional") for size in (2**16, 2 * MIB)),
        *(("pinned", None, "warm", way, 2**16) for way in one_way),
    }
    assert sum(row.wrong_words for row in rows) == 0


def test_one_more_copy_is_the_one_copy_where_it_is_large_and_the_mean_of_many_where_it_is_small() -> None:
    rows = measured({"memory": "pinned", "directions": "h2d", "sizes": "64KiB,32MiB"})
    large = [row for row in rows if row.bytes == 32 * MIB]
    assert {row.one_more_copies for row in rows if row not in large} == {64}
    assert {row.one_more_copies for row in large} == {1}
    assert all(row.one_more_seconds == row.device_seconds for row in large)


@pytest.mark.usefixtures("small_caches")
def test_memory_that_is_only_warm_is_copied_both_ways_and_at_every_size() -> None:
    rows = measured({"memory": "pageable", "sizes": "64KiB,2MiB"})  # the larger one does not fit in the caches
    assert {(row.cache, row.direction, row.bytes) for row in rows} == {
        ("warm", way, size) for way in ("h2d", "d2h", "bidirectional") for size in (2**16, 2 * MIB)
    }


def test_the_budget_counts_what_drives_cold_memory_out_of_the_caches() -> None:
    params = BandwidthParams.preset("cuda", quick=True).with_overrides({"memory": "pageable", "sizes": "1GiB"})
    cold = budget_of(Bandwidth(), params, synthetic.environment()).pageable_bytes
    warm = budget_of(Bandwidth(), params.with_overrides({"caches": "warm"}), synthetic.environment()).pageable_bytes
    assert warm == 2 * 2**30
    assert cold == 2 * (2**30 + ways.evicting_bytes())


@pytest.mark.usefixtures("small_caches")
def test_all_states_that_are_left_out_for_one_reason_are_one_note() -> None:
    notes: list[str] = []
    overrides = {"memory": "pageable,registered", "caches": "cold", "copiers": "engine,kernel", "sizes": "64KiB"}
    params = BandwidthParams.preset("host", quick=True).with_overrides({"repeats": 8, "time_limit": 0.05, **overrides})
    with HostModelLab() as lab:
        list(Bandwidth().measure(params, lab, Harness(note=notes.append)))
    (left_out,) = [note for note in notes if note.startswith("Left out")]
    assert left_out.startswith("Left out: pageable, 4k, cold memory by kernel; registered, 4k memory by kernel. ")
