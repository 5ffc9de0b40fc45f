"""What a DataLoader takes of the host, and how its steps are cut into slices."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinscope.lab.loading import SLICE_STEPS, WARM_STEPS, Loading

MIB = 2**20


def loading(workers: int) -> Loading:
    return Loading(batch=64, pixels=256, workers=workers, pin_memory=True, non_blocking=True)


def test_workers_share_the_batches_they_made_ahead_and_the_one_in_use() -> None:
    assert loading(2).batch_bytes == 48 * MIB
    assert loading(2).shared_bytes == 5 * 48 * MIB
    assert loading(0).shared_bytes == 0


def test_a_short_run_is_one_slice_after_the_warm_up() -> None:
    assert list(loading(8).slices(60)) == [(WARM_STEPS, 60)]


@pytest.mark.parametrize(("workers", "uncounted"), [(0, 1), (4, 8)])
def test_after_a_pause_what_was_made_ahead_meanwhile_is_not_counted(workers: int, uncounted: int) -> None:
    assert list(loading(workers).slices(250)) == [(WARM_STEPS, 100), (uncounted, 100), (uncounted, 50)]


@given(st.integers(8, 10_000), st.integers(0, 64))
def test_slices_count_every_step_once_and_each_begins_with_a_warm_up(steps: int, workers: int) -> None:
    slices = list(loading(workers).slices(steps))
    assert sum(counted for _, counted in slices) == steps
    assert all(uncounted >= 1 and 1 <= counted <= SLICE_STEPS for uncounted, counted in slices)
