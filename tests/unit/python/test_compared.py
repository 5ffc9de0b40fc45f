"""``pinscope.compare``: the answer of the command, for a program."""

from __future__ import annotations

from pathlib import Path

import pytest

import pinscope
from pinscope.analysis.comparison import compare
from pinscope.errors import BadInput
from pinscope.python.session import Comparison
from tests.data.simulated_runs import Host

H200, H100 = pinscope.runs("bandwidth", recordings=True)[:2]


def test_two_runs_have_one_row_for_each_shared_figure_with_its_ratio_and_what_differs_in_the_machines() -> None:
    diff = pinscope.compare(H100.id, H200)
    assert diff.machines["GPU"] == ("NVIDIA H100 80GB HBM3", "NVIDIA H200")
    assert diff.verdict in repr(diff)
    row = diff.frame.dropna(subset=["ratio"]).iloc[-1]
    assert row["ratio"] == pytest.approx(row["b"] / row["a"])
    assert row["ratio.low"] <= row["ratio"] <= row["ratio.high"]
    assert diff.came
    assert not diff.went


def test_cells_are_worse_than_a_share_only_where_their_whole_interval_is() -> None:
    host = Host(1)
    slow = host.side("B", 3, lambda memory, size: 1.15 if memory == "pinned" and size >= 2**20 else 1.0)
    diff = Comparison(compare(host.side("A", 3), slow))
    assert {cell.labels["memory"] for cell in diff.worse(than=0.05)} == {"pinned"}
    assert len(diff.worse()) >= len(diff.worse(than=0.05)) > 0
    assert diff.worse(than=0.3) == diff.better(than=0.05) == []


def test_a_side_without_runs_is_refused_and_several_a_side_count_together(tmp_path: Path) -> None:
    with pytest.raises(BadInput):
        pinscope.compare(H100, [])
    diff = pinscope.compare([H100], [H200])
    assert diff.save(tmp_path / "driver.json").exists()
