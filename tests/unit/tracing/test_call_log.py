"""Entries from many threads: each is kept, and none is written where no memory is any more."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pinscope.tracing import mapped_file
from pinscope.tracing.mapped_file import CallLog
from pinscope.tracing.spool_folder import SpoolFolder

PIECE = 1024
"""Entries; nine pages of memory."""


class Halting:
    """The slots of a log's first piece; who takes the first one stands still until it is let go."""

    def __init__(self, log: CallLog) -> None:
        self.taken, self.let_go = threading.Event(), threading.Event()
        piece, self._slots, unwritten = log._add_piece(log._newest[1])
        log._newest = piece, self, unwritten

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        slot = next(self._slots)
        if slot == 0:
            self.taken.set()
            self.let_go.wait()
        return slot


def mapped(folder: Path) -> int:
    """Pieces that this process has in memory."""
    return sum(str(folder) in line for line in Path("/proc/self/maps").read_text().splitlines())


def entry(correlation: int, function: int) -> tuple[int, ...]:
    return (correlation, function, 0, 0, 0, 1, 2)


def entries(folder: Path) -> list[tuple[int, int]]:
    pieces = [mapped_file.ENTRY.iter_unpack(path.read_bytes()) for path in sorted(folder.glob("calls.*"))]
    return sorted((entry[0], entry[1]) for piece in pieces for entry in piece if entry[-1])


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_file, "PIECE_CALLS", PIECE)


@pytest.mark.parametrize(("calls", "closes"), [(20 * PIECE - 1, False), (1, True)])
def test_a_thread_that_stood_still_for_many_calls_or_when_the_log_was_closed_still_writes_its_own(
    calls: int, closes: bool, tmp_path: Path
) -> None:
    log = CallLog(SpoolFolder.of(tmp_path.stat(), str(tmp_path)))
    slots = Halting(log)
    late = threading.Thread(target=log.note, args=entry(7777, 1))
    late.start()
    assert slots.taken.wait(10)
    try:
        for number in range(calls):
            log.note(*entry(number, 2))
        if closes:
            log.close()
        assert mapped(tmp_path) == 1  # that of the thread that stands still
    finally:
        slots.let_go.set()
        late.join()
    assert mapped(tmp_path) == 0
    assert entries(tmp_path) == sorted([(7777, 1), *((number, 2) for number in range(calls))])


def test_entries_of_many_threads_are_all_kept_and_full_pieces_leave_the_memory(tmp_path: Path) -> None:
    log = CallLog(SpoolFolder.of(tmp_path.stat(), str(tmp_path)))

    def write(thread: int) -> None:
        for number in range(5 * PIECE):
            log.note(*entry(thread * 1_000_000 + number, thread + 1))

    threads = [threading.Thread(target=write, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert mapped(tmp_path) == 0
    assert entries(tmp_path) == [(t * 1_000_000 + n, t + 1) for t in range(4) for n in range(5 * PIECE)]


@pytest.mark.parametrize("calls", [0, 1, PIECE - 1, PIECE, PIECE + 1])
def test_a_log_that_is_closed_leaves_the_memory(calls: int, tmp_path: Path) -> None:
    log = CallLog(SpoolFolder.of(tmp_path.stat(), str(tmp_path)))
    for number in range(calls):
        log.note(*entry(number, 2))
    log.close()
    assert mapped(tmp_path) == 0
    assert entries(tmp_path) == [(number, 2) for number in range(calls)]


def test_a_signal_s_handler_may_make_a_call_while_a_file_is_added(tmp_path: Path) -> None:
    handled: list[int] = []

    class Interrupted(SpoolFolder):
        def open(self, name: str, flags: int) -> int:
            if not handled:
                handled.append(1)
                log.note(*entry(2, 1))
            return super().open(name, flags)

    log = CallLog(Interrupted.of(tmp_path.stat(), str(tmp_path)))
    noting = threading.Thread(target=log.note, args=entry(1, 1), daemon=True)
    noting.start()
    noting.join(10)
    assert not noting.is_alive()
    assert entries(tmp_path) == [(1, 1), (2, 1)]
