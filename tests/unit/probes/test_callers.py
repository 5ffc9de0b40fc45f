"""Which process a thread belongs to, and that a process is known again."""

from __future__ import annotations

import os
import threading
import time

from pinscope.probes.process import LiveCallers

NOBODY = 2**22 + 1


def test_a_process_is_known_again_by_its_start_and_whatever_it_calls_itself() -> None:
    callers = LiveCallers()
    one = callers.of(os.getpid())
    assert one is not None
    assert one == callers.of(os.getpid())
    assert 0 < one.started <= time.clock_gettime(time.CLOCK_BOOTTIME)
    assert one == type(one)(one.pid, one.started, "another name")
    assert one != type(one)(one.pid, one.started + 1, one.name)
    assert callers.of(NOBODY) is None


def test_a_thread_leads_to_its_process() -> None:
    callers = LiveCallers()
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        assert thread.native_id is not None
        assert thread.native_id != os.getpid()
        assert callers.owner(thread.native_id) == os.getpid()
    finally:
        done.set()
        thread.join()
    assert callers.owner(NOBODY) is None
