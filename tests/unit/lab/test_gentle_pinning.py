"""Pieces whose length is found by what calls take: with calls that take as long as is said, on a clock of their own."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise

import pytest

from pinscope.errors import MeasurementFailed
from pinscope.lab.backing import OwnMemory
from pinscope.lab.pinning import LEAST_BYTES, SHARE, TOO_LONG, GentlePinner
from tests.unit.lab.test_pinning import resident_bytes

MIB = 2**20
SIZE = 128 * MIB
RATE = 50e9
"""Bytes/second at which the calls here register; they unregister at twice that."""


class Driver:
    """Calls that register nothing, and take so long on its own clock.

    Args:
        seconds: (bytes, number of the call) → how long a registration takes.
    """

    can_register = True

    def __init__(self, seconds: Callable[[int, int], float] = lambda nbytes, _: nbytes / RATE) -> None:
        self.now = 0.0
        self.held: dict[int, int] = {}
        self.calls: list[tuple[str, int, float]] = []
        self.untouched = 0
        self._seconds = seconds

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.calls.append(("sleep", 0, seconds))

    def register(self, address: int, nbytes: int) -> None:
        self.untouched += resident_bytes(address, nbytes) < nbytes // 4096 * 4096
        self.held[address] = nbytes
        self._take("register", nbytes, self._seconds(nbytes, len(self.of("register"))))

    def unregister(self, address: int) -> None:
        nbytes = self.held.pop(address)
        self._take("unregister", nbytes, nbytes / RATE / 2)

    def allocate(self, nbytes: int) -> int:
        raise AssertionError(f"{nbytes} bytes should be registered")

    def free(self, address: int) -> None:
        raise AssertionError(f"{address} was never allocated")

    def synchronize(self) -> None:
        pass

    def of(self, name: str) -> list[tuple[int, float]]:
        """(bytes, seconds) of the calls of that name."""
        return [(nbytes, seconds) for call, nbytes, seconds in self.calls if call == name]

    def _take(self, call: str, nbytes: int, seconds: float) -> None:
        self.now += seconds
        self.calls.append((call, nbytes, seconds))


@contextmanager
def pinned(driver: Driver, longest_wait: float, nbytes: int = SIZE) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """The chunk, and (offset, bytes) of each piece, in order. The longest call is as long as it is said to be."""
    with OwnMemory(nbytes, "4k") as memory, ExitStack() as undo:
        pinner = GentlePinner(driver, longest_wait, 2, driver.clock, driver.sleep)
        told = pinner.register(memory.address, nbytes, undo.callback)
        assert told.chunk is not None
        assert told.longest_call == pytest.approx(max(seconds for _, seconds in driver.of("register")))
        yield told.chunk, sorted((address - memory.address, length) for address, length in driver.held.items())


@pytest.mark.parametrize("longest_wait", [2e-4, 5e-4, 1e-3, 1.5e-3])
def test_no_call_takes_longer_than_the_limit_and_twice_the_length_would_exceed_its_share(longest_wait: float) -> None:
    driver = Driver()
    with pinned(driver, longest_wait) as (chunk, pieces):
        assert chunk / RATE <= SHARE * longest_wait < 2 * chunk / RATE
        assert {length for _, length in pieces} == {chunk}
        assert sum(length for _, length in pieces) == SIZE
    assert max(seconds for call in ("register", "unregister") for _, seconds in driver.of(call)) <= longest_wait
    assert driver.untouched == 0
    assert driver.held == {}


def test_a_generous_limit_still_leaves_eight_pieces() -> None:
    with pinned(Driver(), 10.0) as (chunk, pieces):
        assert (chunk, len(pieces)) == (SIZE // 8, 8)


def test_each_call_is_followed_by_a_pause_in_which_others_go_first() -> None:
    driver = Driver()
    with pinned(driver, 1e-3):
        pass
    made = [call for call, _, _ in driver.calls]
    assert all("sleep" in pair for pair in pairwise(made))


def test_a_slow_call_now_and_then_does_not_shorten_the_pieces() -> None:
    late = Driver(lambda nbytes, number: nbytes / RATE + (5e-3 if number % 3 == 0 else 0.0))
    with pinned(late, 4e-3) as (chunk, pieces), pinned(Driver(), 4e-3) as (usual, others):
        assert (chunk, pieces) == (usual, others)


def test_pieces_get_shorter_when_the_driver_gets_slower_and_keep_to_one_grid() -> None:
    usual_calls = 6
    driver = Driver(lambda nbytes, number: nbytes / RATE * (4 if number > usual_calls else 1))
    with pinned(driver, 1e-3) as (chunk, pieces):
        lengths = [length for _, length in pieces]
        assert chunk == min(lengths) < max(lengths)
        assert all(at % length == 0 for at, length in pieces)
        assert {at % chunk for at, _ in pieces} == {0}
        assert lengths[-1] / RATE * 4 <= TOO_LONG * 1e-3


def test_the_last_piece_is_as_long_as_what_is_left() -> None:
    with pinned(Driver(), 1e-3, 33 * MIB + 4096) as (chunk, pieces):
        assert pieces[-1][1] == (33 * MIB + 4096) % chunk
    with pinned(Driver(), 1e-3, 5000) as (chunk, pieces):
        assert (chunk, pieces) == (LEAST_BYTES, [(0, 5000)])


def test_a_limit_that_not_even_the_shortest_piece_keeps_gives_shortest_pieces() -> None:
    with pinned(Driver(), 1e-5) as (chunk, pieces):
        assert chunk == LEAST_BYTES
        assert len(pieces) == SIZE // LEAST_BYTES


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

    driver = Driver(refuse)
    with pytest.raises(MeasurementFailed, match="refused"), pinned(driver, 1e-3):
        pass
    assert driver.held == {}
