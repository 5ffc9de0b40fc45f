"""What PyTorch's pinned allocator takes, and that no advice can corrupt memory."""

from __future__ import annotations

import re

from pinscope.analysis.held import ROUNDING_ADVICE, UNROUNDED_SINCE, rounded_up


def test_requests_are_rounded_up_to_powers_of_two() -> None:
    assert [rounded_up(size) for size in (1, 2**20, 2**20 + 1)] == [1, 2**20, 2**21]


def test_the_setting_against_rounding_is_advised_only_from_the_release_on_that_compares_sizes() -> None:
    """PyTorch 2.13.0 knows the key and hands out blocks that are too small (pytorch#192722)."""
    assert UNROUNDED_SINCE == "2.14"
    sentence = next(one for one in re.split(r"(?<=[a-z)])\. ", ROUNDING_ADVICE) if "pinned_max_round" in one)
    assert "PyTorch 2.14 and later" in sentence
    assert ROUNDING_ADVICE.endswith("Never set that in PyTorch 2.13: it can corrupt memory there (pytorch#192722).")
