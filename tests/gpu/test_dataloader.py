"""A real training loop on a real GPU; needs PyTorch."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from pinscope.analysis.held import pool_settings
from pinscope.errors import Cancelled
from pinscope.experiments.dataloader.experiment import Dataloader, DataloaderObservation, DataloaderParams
from pinscope.experiments.dataloader.reading import Loops
from pinscope.lab.cuda import CudaLab
from pinscope.lab.harness import Harness

pytest.importorskip("torch", reason="the extra torch is not installed")
MIB = 2**20
PAGES_OFF = 16 * MIB
"""The kernel batches its pin counters per processor."""


def test_every_combination_trains_on_what_the_loader_made_and_leaves_no_process(
    lab: CudaLab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # PyTorch makes it when it is imported
    params = DataloaderParams.preset("cuda", quick=True).with_overrides({"workers": "2"})
    rows = [row.model_dump() for row in Dataloader().measure(params, lab, Harness())]
    cells = Loops(rows).cells
    assert len(cells) == 2 * 2
    visits = Counter((row["round"], row["pin_memory"], row["non_blocking"]) for row in rows)
    assert len(visits) == 2 * 2 * params.rounds
    assert min(visits.values()) == max(visits.values()) >= params.steps
    assert sum(row["wrong_items"] for row in rows) == 0
    assert multiprocessing.active_children() == []
    pinned = [cell for cell in cells if cell.pin_memory]
    assert all(cell.pinned_bytes is not None and cell.pinned_bytes >= cell.batch_bytes for cell in pinned)
    copies = {pin: min(row["copy_seconds"] for row in rows if row["pin_memory"] == pin) for pin in (False, True)}
    assert copies[False] > 1.5 * copies[True]


def small() -> DataloaderParams:
    """Small pinned batches from two workers, three rounds of two combinations."""
    return DataloaderParams.preset("cuda", quick=True).with_overrides(
        {"batch": 16, "workers": "2", "pin_memory": "on", "steps": 60}
    )


def test_every_step_is_kept_and_each_part_of_it_was_timed_where_it_happened(
    lab: CudaLab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    rows = list(Dataloader().measure(small(), lab, Harness()))
    assert [row.repeat for row in rows] == 3 * 2 * list(range(60))
    assert [row.repeat for row in rows if row.warmup] == 3 * 2 * [0]
    assert [row.round for row in rows[::60]] == [0, 0, 1, 1, 2, 2]
    assert [row.non_blocking for row in rows[::60]] == [False, True, True, False, False, True]
    assert sum(row.wrong_items or 0 for row in rows) == 0
    assert all((row.make_seconds or 0) > 0 and (row.pin_seconds or 0) > 0 for row in rows)
    # Two workers make no more than two batches in the time of a step, and one thread pins no more than one.
    steady = rows[20:60]
    length = sum(row.step_seconds or 0 for row in steady)
    assert sum(row.make_seconds or 0 for row in steady) < 2 * 1.05 * length
    assert sum(row.pin_seconds or 0 for row in steady) < 1.05 * length


def test_pytorch_pins_a_power_of_two_and_keeps_it_until_its_pool_is_emptied(
    lab: CudaLab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On an H200 with PyTorch 2.11 so, with every setting that it has: a batch of 36.75 MiB takes 64 MiB."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    params = DataloaderParams.preset("cuda", quick=True).with_overrides(
        {"workers": "0", "pin_memory": "on", "non_blocking": "on", "pool": True}
    )
    rows = [row.model_dump() for row in Dataloader().measure(params, lab, Harness())]
    assert len(Loops(rows).cells) == 1
    uses = {use.setting: use for use in Loops(rows).uses}
    for setting in ("in_force", "register"):
        use = uses[setting]
        assert use.pinned_bytes == pytest.approx(64 * MIB, abs=PAGES_OFF)
        assert use.kept_bytes == pytest.approx(64 * MIB, abs=PAGES_OFF)
        assert use.left_bytes == pytest.approx(0, abs=PAGES_OFF)
        assert use.pool_bytes == 64 * MIB
        assert (use.again_seconds or 1.0) < (use.pool_seconds or 0.0) / 10
    assert uses["segment"].left_bytes == pytest.approx(64 * MIB, abs=PAGES_OFF)  # never given back
    if pool_settings(use.version, use.batch_bytes)["unrounded"].reason is None:
        assert uses["unrounded"].pool_bytes == use.batch_bytes


def test_a_cancelled_run_keeps_the_combinations_that_were_done_and_leaves_no_process(
    lab: CudaLab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    rows: list[DataloaderObservation] = []
    with pytest.raises(Cancelled):
        rows.extend(Dataloader().measure(small(), lab, Harness(cancelled=lambda: len(rows) > 0)))
    assert len(rows) == 60
    assert multiprocessing.active_children() == []


def test_a_pytorch_that_finds_no_gpu_says_so_and_what_to_do() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from pinscope.experiments.dataloader.torch_loader import Trainer; Trainer(0, print)"],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "NotPossible: PyTorch " in done.stderr
    assert "into PinScope's environment" in done.stderr
