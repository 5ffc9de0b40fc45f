"""Pinning growing amounts on a real GPU host, beside an ordinary process or until a control group is full."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinscope.experiments.pressure.experiment import Pressure, PressureParams
from pinscope.experiments.pressure.reading import Climb, OnHost, courses
from pinscope.lab.cgroup_sandbox import find_place
from pinscope.lab.cuda import CudaLab
from pinscope.lab.harness import Harness
from tests.gpu.test_cuda_lab import PAGES_OFF, pinned_pages

MIB = 2**20
PLACE = find_place()


def test_what_is_pinned_is_gone_for_everybody_and_comes_back(lab: CudaLab) -> None:
    params = PressureParams.preset("cuda", quick=True)
    before = pinned_pages()
    seen: list[int] = []

    def look(_share: float, message: str) -> None:
        if message.endswith(" pinned"):
            seen.append(pinned_pages() - before)

    (run,) = courses([row.model_dump() for row in Pressure().measure(params, lab, Harness(report=look))])
    assert isinstance(run, OnHost)
    assert [stage.phase for stage in run.all] == ["before", *["held"] * params.steps, "after"]
    most = run.most_bytes
    assert most >= 1024 * MIB
    assert abs(max(seen) - most // 4096) <= PAGES_OFF
    assert abs(pinned_pages() - before) <= PAGES_OFF
    lost = run.lost_per_byte
    assert lost is not None
    assert 0.9 < lost < 1.1


@pytest.mark.skipif(PLACE.value is None, reason=PLACE.reason or "")
def test_the_cliff_is_where_the_groups_account_says_and_the_others_in_it_pay(lab: CudaLab) -> None:
    assert PLACE.value is not None
    params = PressureParams.preset("cuda", quick=True).with_overrides({"group": "limited"})
    before = pinned_pages()
    (climb,) = courses([row.model_dump() for row in Pressure().measure(params, lab, Harness())])
    assert isinstance(climb, Climb)
    cliff, killed = climb.cliff, climb.kill
    assert cliff is not None
    assert killed is not None
    assert cliff.kind in {"cache", "slower", "stalled"}
    for mark, expected in ((cliff, climb.expected_cliff), (killed, climb.expected_kill)):
        assert expected is not None
        assert mark.below_bytes - 0.05 * climb.limit <= expected <= mark.bytes + 0.05 * climb.limit
    assert (climb.times or 0.0) >= 2
    assert (climb.outside_times or 9.9) < (climb.times or 0.0)  # what else goes on counts here; see the recording
    shares = {way: charged / asked for way, (asked, charged) in climb.charged.items()}
    assert shares["registered"] == pytest.approx(1, abs=0.05)
    assert shares["pinned"] == pytest.approx(1, abs=0.05)
    assert shares["write_combined"] < 0.1
    assert climb.gone is True
    assert [path for path in Path(PLACE.value[1]).iterdir() if path.name.startswith("pinscope-")] == []
    assert abs(pinned_pages() - before) <= PAGES_OFF
