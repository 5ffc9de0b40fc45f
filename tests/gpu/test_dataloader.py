"""A real training loop on a real GPU; needs PyTorch."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from pinscope.analysis.dataloader import combinations
from pinscope.experiments.dataloader import Dataloader, DataloaderParams
from pinscope.lab.cuda import CudaLab
from pinscope.lab.harness import Harness

pytest.importorskip("torch", reason="the extra torch is not installed")


def test_every_combination_trains_on_what_the_loader_made_and_leaves_no_process(
    lab: CudaLab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # PyTorch makes it when it is imported
    params = DataloaderParams.preset("cuda", quick=True)
    rows = [row.model_dump() for row in Dataloader().measure(params, lab, Harness())]
    found = combinations(rows)
    assert len(found) == 2 * 2 * 2
    assert sum(row["wrong_items"] for row in rows) == 0
    assert multiprocessing.active_children() == []
    pinned = [one for one in found if one.pin_memory]
    assert all(one.pinned_bytes is None or one.pinned_bytes >= one.batch_bytes for one in pinned)
    copies = {one.pin_memory: one.copy_bytes_per_second for one in found if one.workers == 2}
    assert copies[True] > 1.5 * copies[False]
