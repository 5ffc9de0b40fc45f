"""The frame of the campaigns: what a child took is measured, and a seed repeats an attempt."""

from __future__ import annotations

from tests.faults.campaign import Campaign
from tests.faults.child import base_bytes, run_pinscope


def test_a_child_is_measured_and_ended_at_its_limit() -> None:
    listed = run_pinscope("runs", "list")
    assert (listed.exit_code, listed.traceback, listed.timed_out) == (0, False, False), listed.stderr
    assert 0 < listed.peak_bytes < 4 * base_bytes()
    assert run_pinscope("live", time_limit=1.0).timed_out


def test_an_attempt_is_repeated_by_its_number() -> None:
    one, other = Campaign("one"), Campaign("one")
    assert one.random(7).random() == other.random(7).random() != one.random(8).random()
