"""The open ranges of threads, where they do not end as they began."""

from __future__ import annotations

import threading

import pytest

from pinscope.tracing import stacks
from pinscope.tracing.stacks import Ranges


def test_parts_may_end_in_any_order() -> None:
    open_ranges = Ranges(lambda _: None)
    for name in ("load", "step"):
        open_ranges.enter_part(name)
    load, step = 1, 2
    open_ranges.leave_part("load")
    assert open_ranges.current() == step
    open_ranges.enter_part("load")
    open_ranges.leave_part("step")
    assert open_ranges.current() == load
    open_ranges.leave_part("load")
    assert open_ranges.current() == 0


def test_threads_that_end_within_a_range_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "MOST_THREADS", 4)
    open_ranges = Ranges(lambda _: None)
    open_ranges.push("of the main thread", 0)
    for _ in range(20):
        thread = threading.Thread(target=open_ranges.push, args=("never popped", 0))
        thread.start()
        thread.join()
        assert len(open_ranges._open) <= 4
    assert open_ranges.current() == 1
