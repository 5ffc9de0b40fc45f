"""What a process holds, as one amount; and what PyTorch's pinned allocator takes."""

from __future__ import annotations

from pinscope.analysis.rules import ROUNDING_ADVICE, UNROUNDED_SINCE, held_bytes, rounded_up
from tests.data.synthetic_snapshot import GIB


def test_memory_that_cuda_pinned_and_that_is_locked_or_pinned_for_rdma_too_counts_once() -> None:
    assert held_bytes(GIB, 3 * GIB, 2 * GIB) == 4 * GIB
    assert held_bytes(3 * GIB, None, 2 * GIB, 3 * GIB) == 3 * GIB
    assert held_bytes(GIB, GIB, 5 * GIB, GIB) == 5 * GIB


def test_what_is_not_known_is_left_out_and_nothing_known_is_no_amount() -> None:
    assert held_bytes(GIB, None, None) == GIB
    assert held_bytes(None, None, 0, 0) == 0
    assert held_bytes(None, None, None, None) is None


def test_driver_memory_comes_on_top() -> None:
    assert held_bytes(GIB, 2 * GIB, GIB, driver_memory=3 * GIB) == 6 * GIB
    assert held_bytes(None, None, None, driver_memory=GIB) == GIB


def test_requests_are_rounded_up_to_powers_of_two() -> None:
    assert [rounded_up(size) for size in (1, 2**20, 2**20 + 1)] == [1, 2**20, 2**21]


def test_the_setting_against_rounding_is_advised_only_from_the_release_on_that_compares_sizes() -> None:
    """PyTorch 2.13.0 knows the key and hands out blocks that are too small (pytorch#192722)."""
    assert UNROUNDED_SINCE == "2.14"
    assert "PyTorch 2.14 and later do not round" in ROUNDING_ADVICE
    assert ROUNDING_ADVICE.endswith("Never set that in PyTorch 2.13: it can corrupt memory there (pytorch#192722).")
