"""What a DataLoader takes of the host, and how many steps it is followed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pinscope.experiments.dataloader.ways import BACKLOGS, Loading


def loading(workers: int) -> Loading:
    return Loading(batch=64, workers=workers, pin_memory=True, non_blocking=True)


def test_workers_share_the_batches_they_made_ahead_and_the_one_in_use() -> None:
    assert loading(2).batch_bytes == 64 * 3 * 224**2 * 4
    assert loading(2).shared_bytes == 5 * loading(2).batch_bytes
    assert loading(0).shared_bytes == 0


@given(st.integers(1, 10_000), st.integers(0, 64))
def test_a_combination_has_enough_steps_to_see_past_what_was_made_ahead(steps: int, workers: int) -> None:
    taken = loading(workers).at_least(steps)
    assert taken >= steps
    assert taken >= BACKLOGS * loading(workers).ahead
    assert taken == steps or workers > 0
