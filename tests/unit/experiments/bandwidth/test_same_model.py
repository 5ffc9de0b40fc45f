"""A GPU that copies slower than another one of its model is named; one that is as fast is not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pinscope.experiments.bandwidth.findings import slower_than_same_model
from pinscope.store.documents import StoredRow
from tests.data import synthetic

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
