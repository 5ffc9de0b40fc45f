"""Strategies to pin memory, with calls that take notes instead of a GPU: what is pinned when, and what is undone."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

import numpy as np
import pytest

from pinscope.errors import MeasurementFailed
from pinscope.lab.backing import OwnMemory
from pinscope.lab.pinning import PAGE, TOUCH_BYTES, Pinner, touch_pages
from pinscope.records.pinning_strategy import STRATEGIES

MIB = 2**20
SIZE = 3 * TOUCH_BYTES + 5 * PAGE
"""Several parts to touch, and a last one that is not full."""


class Notes:
    """Calls that only take notes, of the content of the memory too."""

    def __init__(self, fail_at: int | None = None) -> None:
        self.held: dict[int, int] = {}
        self.log: list[tuple[str, int]] = []
        self.untouched = 0
        self._fail_at = fail_at
        self._allocated: dict[int, OwnMemory] = {}
        self._lock = threading.Lock()

    def allocate(self, nbytes: int) -> int:
        mapping = OwnMemory(nbytes)
        self._allocated[mapping.address] = mapping
        self._note("allocate", mapping.address, nbytes)
        return mapping.address

    def free(self, address: int) -> None:
        self._allocated.pop(address).close()
        self.log.append(("free", self.held.pop(address)))

    def register(self, address: int, nbytes: int) -> None:
        self._note("register", address, nbytes)
        self.untouched += resident_bytes(address, nbytes) < nbytes // PAGE * PAGE

    def unregister(self, address: int) -> None:
        self.log.append(("unregister", self.held.pop(address)))

    def _note(self, call: str, address: int, nbytes: int) -> None:
        with self._lock:
            if self._fail_at == len(self.log):
                raise MeasurementFailed("refused")
            self.held[address] = nbytes
            self.log.append((call, nbytes))


def resident_bytes(address: int, nbytes: int) -> int:
    """Bytes of whole pages that are backed by memory (mincore)."""
    pages = -(-nbytes // PAGE)
    states = (ctypes.c_ubyte * pages)()
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(nbytes), states) == 0
    return int((np.frombuffer(states, dtype=np.uint8) & 1).sum()) * PAGE


def pinner(name: str, calls: Notes, chunk: int | None = TOUCH_BYTES, threads: int = 3) -> Pinner:
    # THP may be off where tests run; what is under test does not depend on it.
    strategy = STRATEGIES[name]
    backing = "4k" if strategy.backing else None
    return Pinner(strategy.model_copy(update={"backing": backing}), calls, chunk, threads)


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_pins_all_of_it_and_gives_all_of_it_back(name: str) -> None:
    calls = Notes()
    with pinner(name, calls).pinned(SIZE) as held:
        assert sum(length for _, length in held.pieces) == SIZE == sum(calls.held.values())
        assert (len(held.pieces) > 1) == STRATEGIES[name].chunked
        assert held.pin_seconds >= 0
    assert calls.held == {}


@pytest.mark.parametrize("name", [name for name, one in STRATEGIES.items() if one.backing])
def test_registered_pieces_lie_side_by_side_in_order(name: str) -> None:
    with pinner(name, Notes()).pinned(SIZE) as held:
        for (start, length), (after, _) in zip(held.pieces, held.pieces[1:], strict=False):
            assert start + length == after


@pytest.mark.parametrize("name", [name for name, one in STRATEGIES.items() if one.touched])
def test_every_page_is_touched_before_it_is_registered(name: str) -> None:
    calls = Notes()
    with pinner(name, calls, chunk=TOUCH_BYTES + 3 * PAGE).pinned(SIZE) as held:
        assert (held.touch_seconds is None) == (name == "thp_pipeline")
    assert calls.untouched == 0


def test_an_untouched_strategy_leaves_touching_to_the_call() -> None:
    calls = Notes()
    with pinner("register_untouched", calls).pinned(4 * MIB) as held:
        assert held.touch_seconds is None
    assert calls.untouched == 1


@pytest.mark.parametrize("name", [name for name, one in STRATEGIES.items() if one.chunked])
def test_what_was_pinned_is_undone_when_a_later_piece_is_refused(name: str) -> None:
    calls = Notes(fail_at=2)
    with pytest.raises(MeasurementFailed, match="refused"), pinner(name, calls).pinned(SIZE):
        pass
    assert calls.held == {}
    assert [call for call, _ in calls.log if call in ("unregister", "free")] != []


def test_memory_is_unpinned_before_it_is_unmapped(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Notes()
    closed: list[dict[int, int]] = []
    original: Callable[[OwnMemory], None] = OwnMemory.close

    def close(mapping: OwnMemory) -> None:
        closed.append(dict(calls.held))
        original(mapping)

    monkeypatch.setattr(OwnMemory, "close", close)
    with pinner("thp_register_chunks", calls).pinned(SIZE):
        pass
    assert closed == [{}]


def test_touching_writes_one_byte_of_every_page_and_no_other() -> None:
    with OwnMemory(10 * PAGE) as mapping:
        ctypes.memset(mapping.address, 7, 10 * PAGE)
        touch_pages(mapping.address + 2 * PAGE, 5 * PAGE + 1)
        content = ctypes.string_at(mapping.address, 10 * PAGE)
    assert [at for at, value in enumerate(content) if value != 7] == [page * PAGE for page in range(2, 8)]
