"""Pinning growing amounts on a real GPU host, beside an ordinary process."""

from __future__ import annotations

from pinscope.experiments.pressure.experiment import Pressure, PressureParams
from pinscope.experiments.pressure.reading import stages
from pinscope.lab.cuda import CudaLab
from pinscope.lab.harness import Harness
from tests.gpu.test_cuda_lab import PAGES_OFF, pinned_pages

MIB = 2**20


def test_what_is_pinned_is_gone_for_everybody_and_comes_back(lab: CudaLab) -> None:
    params = PressureParams.preset("cuda", quick=True)
    before = pinned_pages()
    seen: list[int] = []

    def look(_share: float, message: str) -> None:
        if message.endswith(" pinned"):
            seen.append(pinned_pages() - before)

    rows = [row.model_dump() for row in Pressure().measure(params, lab, Harness(report=look))]
    found = stages(rows)
    assert [stage.phase for stage in found.all] == ["before", *["held"] * params.steps, "after"]
    most = found.most_bytes
    assert most >= 1024 * MIB
    assert abs(max(seen) - most // 4096) <= PAGES_OFF
    assert abs(pinned_pages() - before) <= PAGES_OFF
    lost = found.lost_per_byte
    assert lost is not None
    assert 0.9 < lost < 1.1
