"""Cells, where pinning pays, and whether a GPU copies slower than its like, on rows whose answer is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pinscope.experiments.bandwidth.findings import slower_than_same_model
from pinscope.experiments.bandwidth.reading import Cell, Copies, same_sizes
from pinscope.store.documents import StoredRow
from tests.data import synthetic


def row(seconds: float, nbytes: int, **labels: Any) -> dict[str, Any]:
    direction = labels.get("direction", "h2d")
    return {
        "repeat": 0, "warmup": False, "memory": "pinned", "direction": direction, "copier": "engine",
        "bytes": nbytes, "device": 0, "devices": 1, "device_seconds": seconds, "wall_seconds": seconds * 2,
        "one_more_seconds": seconds, "one_more_copies": 1, "backing": None, "cache": None,
        "issue_seconds": 1e-6, "h2d_seconds": None if direction == "d2h" else seconds,
        "d2h_seconds": None if direction == "h2d" else seconds, "wrong_words": 0, **labels,
    }  # fmt: skip


def cells(rows: list[dict[str, Any]]) -> list[Cell]:
    return Copies(synthetic.run("bandwidth"), rows).cells


def test_gpus_and_the_number_of_them_at_once_are_kept_apart() -> None:
    rows = [row(1.0, 8, device=d, devices=n) for d in (0, 1) for n in (1, 2)]
    copies = Copies(synthetic.run("bandwidth"), rows)
    assert {(curve[0].device, curve[0].devices) for curve in copies.curves} == {(0, 1), (0, 2), (1, 1), (1, 2)}
    assert [curve[0].device for curve in copies.alone] == [0]


def test_speedups_compare_only_sizes_that_both_have() -> None:
    fast, slow = cells([row(1.0, 8), row(1.0, 16)]), cells([row(3.0, 16, memory="pageable")])
    assert same_sizes(fast, slow) == [(fast[1], slow[0])]


def test_pinning_pays_from_the_size_after_which_it_always_pays() -> None:
    for ratios, start in [((1.0, 2.0, 3.0), 2), ((2.0, 1.0, 3.0), 4), ((2.0, 2.0), 1), ((2.0, 1.05), None)]:
        times = {2**power: ratio for power, ratio in enumerate(ratios)}
        fast = [row(1.0, size) for size in times for _ in range(8)]
        slow = [row(ratio, size, memory="pageable") for size, ratio in times.items() for _ in range(8)]
        assert Copies(synthetic.run("bandwidth"), fast + slow).gains["h2d"].start == start


ROWS = synthetic.bandwidth_rows(sizes=(2**12, 2**28))


def slower(times: float, ways: Sequence[str] = ("h2d", "d2h")) -> list[StoredRow]:
    """The same rows from a GPU that takes so many times as long for these directions."""
    return [
        {**row, "one_more_seconds": row["one_more_seconds"] * times} if row["direction"] in ways else row
        for row in ROWS
    ]


@pytest.mark.parametrize("times", [0.5, 1.0, 1.08])
def test_a_gpu_that_is_about_as_fast_is_not_named(times: float) -> None:
    run = synthetic.run("bandwidth")
    assert slower_than_same_model(run, slower(times), run, ROWS, "GPU 1") is None


@pytest.mark.parametrize(("times", "severity"), [(1.2, "note"), (2.0, "warning")])
def test_a_slower_gpu_is_named_with_both_rates_and_what_that_costs(times: float, severity: str) -> None:
    run = synthetic.run("bandwidth")
    finding = slower_than_same_model(run, slower(times, ["d2h"]), run, ROWS, "GPU 1")
    assert finding is not None
    assert finding.severity == severity
    own, other = finding.evidence[:2]
    assert own.name == "Pinned d2h"
    assert isinstance(own.value, float)
    assert isinstance(other.value, float)
    assert other.value / own.value == pytest.approx(times)
    assert "GPU 1 at" in finding.title


def test_a_rate_that_noise_may_have_made_low_is_not_named() -> None:
    run = synthetic.run("bandwidth")
    wild = [
        {**row, "one_more_seconds": row["one_more_seconds"] * (0.8 + number % 5 / 5)} for number, row in enumerate(ROWS)
    ]
    assert slower_than_same_model(run, wild, run, ROWS, "GPU 1") is None


def test_copies_that_are_mostly_latency_are_not_compared() -> None:
    run = synthetic.run("bandwidth")
    small = [row for row in slower(3) if row["bytes"] < 2**24]
    assert slower_than_same_model(run, small, run, ROWS, "GPU 1") is None
