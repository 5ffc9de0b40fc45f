"""An engine for tests: copies late, by a thread of its own, so that a buffer written again too early is noticed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from pinscope.experiments.staging.ways import MOST_SLOTS, SLOTS
from pinscope.lab.backing import OwnMemory
from pinscope.lab.pattern import copy_words

LATE_SECONDS = 0.001


class LateLane:
    def __init__(self, thread: ThreadPoolExecutor) -> None:
        self._thread = thread
        self._marks: list[Future[None] | None] = [None] * MOST_SLOTS

    def copy(self, target: int, source: int, nbytes: int) -> None:
        self._thread.submit(self._later, target, source, nbytes)

    copy_back = copy

    def mark(self, slot: int = 0) -> None:
        self._marks[slot] = self._thread.submit(lambda: None)

    def wait(self, slot: int = 0) -> None:
        mark = self._marks[slot]
        if mark is not None:
            mark.result(60)

    @staticmethod
    def _later(target: int, source: int, nbytes: int) -> None:
        time.sleep(LATE_SECONDS)
        copy_words(target, source, nbytes)


class LateEngine:
    """Memory of the process; ``held`` counts what is allocated or registered now."""

    def __init__(self) -> None:
        self._memory: dict[int, OwnMemory] = {}
        self.held = 0

    def prepare(self) -> None:
        return None

    @contextmanager
    def lane(self, spinning: bool = False, slots: int = SLOTS) -> Iterator[LateLane]:
        with ThreadPoolExecutor(1) as thread:
            yield LateLane(thread)

    def copy_now(self, target: int, source: int, nbytes: int) -> None:
        copy_words(target, source, nbytes)

    copy_back_now = copy_now

    def wait_for_copies(self) -> None:
        return None

    def allocate(self, nbytes: int) -> int:
        memory = OwnMemory(nbytes)
        self._memory[memory.address] = memory
        self.held += 1
        return memory.address

    def free(self, address: int) -> None:
        self._memory.pop(address).close()
        self.held -= 1

    def register(self, address: int, nbytes: int) -> None:
        self.held += 1

    def unregister(self, address: int) -> None:
        self.held -= 1
