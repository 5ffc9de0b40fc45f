"""Strategies to pin memory, pieces whose length is measured, and pinscope.pinned_empty, with a driver that takes notes.

What is pinned when, what is undone, and what is refused.
"""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise

import numpy as np
import pytest

import pinscope
from pinscope.errors import InvalidParameter, MeasurementFailed, NotEnoughMemory, NotPossible
from pinscope.lab.backing import PAGE, OwnMemory
from pinscope.lab.pinned_array import PinnedArray, pinned_empty
from pinscope.lab.pinning import LEAST_BYTES, SHARE, TOO_LONG, TOUCH_BYTES, GentlePinner, Pinner, touch_pages
from pinscope.records.registration import STRATEGIES
from tests.unit.lab.driver import RATE, Driver

MIB = 2**20
SIZE = 3 * TOUCH_BYTES + 5 * PAGE
"""Several parts to touch, and a last one that is not full."""


def pinner(name: str, calls: Driver, chunk: int | None = TOUCH_BYTES, threads: int = 3) -> Pinner:
    # THP may be off where tests run; what is under test does not depend on it.
    strategy = STRATEGIES[name]
    backing = "4k" if strategy.backing else None
    return Pinner(strategy._replace(backing=backing), calls, chunk, threads)


def test_every_strategy_pins_all_of_it_in_order_and_gives_all_of_it_back() -> None:
    for name in STRATEGIES:
        calls, strategy = Driver(), STRATEGIES[name]
        with pinner(name, calls, chunk=TOUCH_BYTES + 3 * PAGE).pinned(SIZE) as held:
            assert sum(length for _, length in held.pieces) == SIZE == sum(calls.held.values())
            assert (len(held.pieces) > 1) == strategy.chunked
            assert held.pin_seconds >= 0
            if strategy.backing:
                assert all(start + length == after for (start, length), (after, _) in pairwise(held.pieces))
            if strategy.touched:
                assert calls.untouched == 0
                assert (held.touch_seconds is None) == (name == "thp_pipeline")
        assert calls.held == {}


def test_an_untouched_strategy_leaves_touching_to_the_call() -> None:
    calls = Driver()
    with pinner("register_untouched", calls).pinned(4 * MIB) as held:
        assert held.touch_seconds is None
    assert calls.untouched == 1


def test_what_was_pinned_is_undone_when_a_later_piece_is_refused() -> None:
    for name in [name for name, strategy in STRATEGIES.items() if strategy.chunked]:
        calls = Driver(fail_at=2)
        with pytest.raises(MeasurementFailed, match="refused"), pinner(name, calls).pinned(SIZE):
            pass
        assert calls.held == {}
        assert {"unregister", "free"} & set(calls.calls)


def test_memory_is_unpinned_before_it_is_unmapped(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Driver()
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


GENTLE_SIZE = 128 * MIB


@contextmanager
def pinned(
    driver: Driver, longest_wait: float, nbytes: int = GENTLE_SIZE
) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """The chunk, and (offset, bytes) of each piece, in order. The longest call is as long as it is said to be."""
    with OwnMemory(nbytes, "4k") as memory, ExitStack() as undo:
        pinner = GentlePinner(driver, longest_wait, 2, driver.clock, driver.sleep)
        pieces = pinner.register(memory.address, nbytes, undo.callback)
        assert pieces.chunk is not None
        assert pieces.longest_call == pytest.approx(max(seconds for _, seconds in driver.of("register")))
        yield pieces.chunk, sorted((address - memory.address, length) for address, length in driver.held.items())


def test_no_call_takes_longer_than_the_limit_and_twice_the_length_would_exceed_its_share() -> None:
    for longest_wait in [2e-4, 5e-4, 1e-3, 1.5e-3]:
        driver = Driver()
        with pinned(driver, longest_wait) as (chunk, pieces):
            assert chunk / RATE <= SHARE * longest_wait < 2 * chunk / RATE
            assert {length for _, length in pieces} == {chunk}
            assert sum(length for _, length in pieces) == GENTLE_SIZE
        assert max(seconds for call in ("register", "unregister") for _, seconds in driver.of(call)) <= longest_wait
        assert driver.untouched == 0
        assert driver.held == {}


def test_a_generous_limit_still_leaves_eight_pieces_with_a_pause_after_each_call_in_which_others_go_first() -> None:
    driver = Driver()
    with pinned(driver, 10.0) as (chunk, pieces):
        assert (chunk, len(pieces)) == (GENTLE_SIZE // 8, 8)
    assert all("sleep" in pair for pair in pairwise(driver.calls))


def test_a_slow_call_now_and_then_does_not_shorten_the_pieces() -> None:
    late = Driver(seconds=lambda nbytes, number: nbytes / RATE + (5e-3 if number % 3 == 0 else 0.0))
    with pinned(late, 4e-3) as (chunk, pieces), pinned(Driver(), 4e-3) as (usual, others):
        assert (chunk, pieces) == (usual, others)


def test_pieces_get_shorter_when_the_driver_gets_slower_and_keep_to_one_grid() -> None:
    usual_calls = 6
    driver = Driver(seconds=lambda nbytes, number: nbytes / RATE * (4 if number > usual_calls else 1))
    with pinned(driver, 1e-3) as (chunk, pieces):
        lengths = [length for _, length in pieces]
        assert chunk == min(lengths) < max(lengths)
        assert all(at % length == 0 for at, length in pieces)
        assert {at % chunk for at, _ in pieces} == {0}
        assert lengths[-1] / RATE * 4 <= TOO_LONG * 1e-3


def test_the_last_piece_is_as_long_as_what_is_left_and_a_limit_that_cannot_be_kept_gives_shortest_pieces() -> None:
    with pinned(Driver(), 1e-3, 33 * MIB + 4096) as (chunk, pieces):
        assert pieces[-1][1] == (33 * MIB + 4096) % chunk
    with pinned(Driver(), 1e-3, 5000) as (chunk, pieces):
        assert (chunk, pieces) == (LEAST_BYTES, [(0, 5000)])
    with pinned(Driver(), 1e-5) as (chunk, pieces):
        assert (chunk, len(pieces)) == (LEAST_BYTES, GENTLE_SIZE // LEAST_BYTES)


def test_a_piece_that_cannot_be_unpinned_leaves_no_other_pinned() -> None:
    class Stuck(Driver):
        def unregister(self, address: int) -> None:
            super().unregister(address)
            if len(self.held) in (5, 2):
                raise MeasurementFailed(f"stuck with {len(self.held)}")

    driver = Stuck()
    with pytest.raises(MeasurementFailed, match="stuck with 2"), pinned(driver, 1e-3) as (_, pieces):
        assert len(pieces) > 5
    assert driver.held == {}


def test_thousands_of_pieces_leave_little_for_the_search_for_garbage() -> None:
    def objects(pieces: int) -> int:
        with pinned(Driver(), 1e-5, pieces * LEAST_BYTES):
            gc.collect()
            return len(gc.get_objects())

    few, many = objects(20), objects(320)
    assert many - few < 2 * 300  # one is the (offset, bytes) that this test asks for


def test_what_was_pinned_is_undone_when_a_piece_is_refused() -> None:
    def refuse(nbytes: int, number: int) -> float:
        if number == 12:
            driver.held.popitem()
            raise MeasurementFailed("refused")
        return nbytes / RATE

    driver = Driver(seconds=refuse)
    with pytest.raises(MeasurementFailed, match="refused"), pinned(driver, 1e-3):
        pass
    assert driver.held == {}


def test_the_array_is_registered_as_asked_and_says_to_what_multiples_a_copy_must_keep() -> None:
    for chunk, limit, pieces, kept in [
        (None, None, [8 * MIB], None), ("3MiB", None, [3 * MIB, 3 * MIB, 2 * MIB], 3 * MIB),
        (2 * MIB, None, [2 * MIB] * 4, 2 * MIB), ("1GiB", None, [8 * MIB], 2**30),
        ("auto", 10, [2 * MIB] * 4, 2 * MIB),
    ]:  # fmt: skip
        calls = Driver()
        array = pinned_empty("8MiB", chunk=chunk, longest_wait=limit, calls=calls)
        assert list(calls.held.values()) == pieces
        assert min(calls.held) == array.ctypes.data
        assert (array.chunk, array[:10].chunk) == (kept, None)
        del array
        gc.collect()
        assert calls.held == {}
    assert pinned_empty("8MiB", chunk="auto", calls=Driver(can_register=False)).chunk is None


def test_the_array_says_how_long_its_longest_call_was_and_a_warning_where_that_was_too_long() -> None:
    assert pinned_empty("8MiB", calls=Driver()).longest_call is None
    kept = pinned_empty("8MiB", chunk="auto", longest_wait=10, calls=Driver())
    assert kept.longest_call is not None
    assert 0 < kept.longest_call < 10
    with pytest.warns(RuntimeWarning, match=r"held the driver for up to .* longer than longest_wait \(1.00 ns\)"):
        assert pinned_empty("8MiB", chunk="auto", longest_wait=1e-9, calls=Driver()).chunk == 2 * MIB


def test_a_view_keeps_the_memory_pinned_and_the_last_user_unpins_it_after_the_gpu_is_done() -> None:
    calls = Driver()
    array = pinned_empty(MIB, dtype="float32", calls=calls)
    views = [np.asarray(array)[10:20], array.view("uint8")[::3], memoryview(array)]
    del array
    while views:
        gc.collect()
        assert len(calls.held) == 1
        views.pop()
    gc.collect()
    assert calls.held == {}
    assert calls.calls == ["register", "synchronize", "unregister"]


def test_leaving_the_block_unpins_once_also_after_an_error_and_the_array_stays_readable() -> None:
    calls = Driver()
    array = pinned_empty(shape=(3, 1024), dtype="int32", calls=calls)
    with suppress(RuntimeError), array:
        array[:] = 5
        assert len(calls.held) == 1
        raise RuntimeError("broken off")
    assert calls.held == {}
    assert int(array.sum()) == 5 * 3 * 1024
    del array
    gc.collect()
    assert calls.calls.count("unregister") == 1


@pytest.mark.parametrize("make", [lambda a: a[:10], lambda a: a.copy()], ids=["view", "copy"])
def test_a_view_or_a_copy_is_no_context_manager(make: object) -> None:
    array = pinned_empty(MIB, calls=Driver())
    with pytest.raises(TypeError, match="only the array that pinned_empty returned"), make(array):  # type: ignore[operator]
        pass


def test_results_of_arithmetic_are_ordinary_arrays_but_for_those_that_go_into_the_array_itself() -> None:
    array = whole = pinned_empty(MIB, calls=Driver())
    array[:] = 1
    assert type(array + 1) is np.ndarray
    assert type(array.sum()) is not PinnedArray
    array += 1
    assert array is whole
    assert np.add(array, 1, out=array) is whole
    assert set(np.unique(np.asarray(whole))) == {3}
    with array:
        pass


def test_the_shape_may_be_a_number_of_numpys() -> None:
    assert pinned_empty(shape=np.int64(5), dtype="int16", calls=Driver()).shape == (5,)
    with pytest.raises(NotEnoughMemory):
        pinned_empty(shape=(np.int64(2**33 + 1), np.int64(2**31)), calls=Driver())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_memory_is_freed_although_the_driver_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Driver(can_register=False)
    array = pinned_empty(MIB, calls=calls)

    def fail() -> None:
        raise MeasurementFailed("the driver has failed")

    monkeypatch.setattr(calls, "synchronize", fail)
    del array
    gc.collect()
    assert calls.calls[-1] == "free"


def test_what_was_pinned_is_undone_when_a_later_chunk_is_refused() -> None:
    calls = Driver(fail_at=2)
    with pytest.raises(MeasurementFailed, match="refused"):
        pinned_empty("4MiB", chunk="1MiB", calls=calls)
    assert calls.held == {}


def test_memory_that_cannot_be_registered_or_by_the_driver_s_own_call_goes_with_its_last_user() -> None:
    for calls, named in ((Driver(can_register=False), {}), (Driver(), {"strategy": "host_alloc"})):
        array = pinned_empty(MIB, calls=calls, **named)  # type: ignore[arg-type]
        view = array[5:]
        del array
        gc.collect()
        assert calls.calls == ["allocate"]
        view[:] = 1
        del view
        gc.collect()
        assert calls.calls == ["allocate", "synchronize", "free"]


def test_a_forked_child_does_not_undo_its_parents_pinning() -> None:
    script = """
import gc, os, sys
sys.path.insert(0, {root!r})
from tests.unit.lab.driver import Driver
from pinscope.lab.pinned_array import pinned_empty
calls = Driver()
array = pinned_empty(2**20, calls=calls)
child = os.fork()
if not child:
    del array
    gc.collect()
    os._exit(len(calls.calls) - 1)  # "register" alone
assert os.waitpid(child, 0)[1] == 0
print(len(calls.held))
"""
    root = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../.."))  # noqa: PTH100, PTH118, PTH120
    done = subprocess.run(
        [sys.executable, "-c", script.format(root=root)], capture_output=True, text=True, check=False, cwd=root
    )
    assert (done.returncode, done.stdout.strip()) == (0, "1"), done.stderr


def test_sizes_that_make_no_sense_are_refused_in_one_line() -> None:
    for arguments, complaint in [
        ({}, "give nbytes or shape"),
        ({"nbytes": 0}, "positive multiple of 1"),
        ({"nbytes": "much"}, "is not a size"),
        ({"nbytes": 10, "dtype": "float64"}, "multiple of 8, the size of float64"),
        ({"nbytes": 64, "dtype": object}, "cannot be pinned"),
        ({"nbytes": 64, "shape": (3, 3)}, "takes 9 bytes, not 64"),
        ({"shape": (-1, 4)}, "takes -4 bytes"),
        ({"nbytes": MIB, "chunk": 1000}, "positive multiple of 4096"),
        ({"nbytes": MIB, "threads": 0}, "at least 1"),
        ({"nbytes": MIB, "longest_wait": 0.01}, 'goes with chunk="auto" only'),
        ({"nbytes": MIB, "chunk": "auto", "longest_wait": 0}, "must be a positive number of seconds"),
        ({"nbytes": MIB, "chunk": "auto", "strategy": "thp_pipeline"}, "name no strategy with it"),
        ({"nbytes": MIB, "strategy": "thp_pipeline"}, "'thp_pipeline' does not pin in one piece; .* do: host_alloc,"),
        ({"nbytes": MIB, "strategy": "thp_register", "chunk": MIB}, "in chunks; those that do: touch_register_chunks,"),
        ({"nbytes": MIB, "strategy": "host_alloc_chunks", "chunk": MIB}, "does not pin in chunks"),
        ({"nbytes": MIB, "strategy": "fastest"}, "'fastest' does not pin in one piece"),
    ]:
        with pytest.raises(InvalidParameter, match=complaint) as caught:
            pinned_empty(calls=Driver(), **arguments)  # type: ignore[arg-type]
        assert "\n" not in str(caught.value)


def test_more_than_is_safe_is_refused_with_the_numbers_before_anything_is_touched() -> None:
    calls = Driver()
    with pytest.raises(NotEnoughMemory, match=r"1 PiB cannot be pinned safely: at most .* here"):
        pinned_empty(2**50, calls=calls)
    assert calls.calls == []


def test_without_cupy_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.delitem(sys.modules, "pinscope.lab.cuda_memory", raising=False)
    with pytest.raises(NotPossible, match=r"-m pip install -e .*\[cuda13\]"):
        pinscope.pinned_empty(MIB)
