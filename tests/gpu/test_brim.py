"""Filling a control group on a real GPU host: the cliff, whom it harms, and what the group is charged for."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinscope.experiments.brim.experiment import Brim, BrimParams
from pinscope.experiments.brim.reading import climbs
from pinscope.lab.cuda import CudaLab
from pinscope.lab.harness import Harness
from pinscope.lab.own_group import find_place
from tests.gpu.test_cuda_lab import PAGES_OFF, pinned_pages

PLACE = find_place()


@pytest.mark.skipif(PLACE.value is None, reason=PLACE.reason or "")
def test_the_cliff_is_where_the_groups_account_says_and_the_others_in_it_pay(lab: CudaLab) -> None:
    assert PLACE.value is not None
    params = BrimParams.preset("cuda", quick=True).with_overrides({"step_seconds": 0.5})
    before = pinned_pages()
    (climb,) = climbs([row.model_dump() for row in Brim().measure(params, lab, Harness())])
    cliff, killed = climb.cliff, climb.kill
    assert cliff is not None
    assert killed is not None
    assert cliff.kind in {"cache", "slower", "stalled"}
    assert cliff.off(climb.expected_cliff) <= 0.05 * climb.limit
    assert killed.off(climb.expected_kill) <= 0.05 * climb.limit
    assert (climb.times or 0.0) >= 2
    assert (climb.outside_times or 9.9) < (climb.times or 0.0)  # what else goes on counts here; see the recording
    shares = {way: charged / asked for way, (asked, charged) in climb.charged.items()}
    assert shares["registered"] == pytest.approx(1, abs=0.05)
    assert shares["pinned"] == pytest.approx(1, abs=0.05)
    assert shares["write_combined"] < 0.1
    assert climb.gone is True
    assert [path for path in Path(PLACE.value[1]).iterdir() if path.name.startswith("pinscope-")] == []
    assert abs(pinned_pages() - before) <= PAGES_OFF
