"""Memory of cuMemCreate: it is gone with the last of its handles and mappings, in whatever order they go."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from pinscope.live.pinned_pieces import CreatedMemory
from pinscope.records.registration import Piece

MIB = 2**20
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def piece(size: int = 2 * MIB) -> Piece:
    return Piece(kind="create", address=None, bytes=size, flags=0, since=NOW, seconds=0.0)


def test_it_is_gone_with_its_only_handle_if_it_is_not_mapped() -> None:
    created, one = CreatedMemory(), piece()
    created.create(7, one.bytes, one)
    assert list(created) == [one]
    assert created.release(7) == [one]
    assert (list(created), len(created)) == ([], 0)


def test_it_stays_while_it_is_mapped_and_a_handle_of_it_may_come_back() -> None:
    created, one = CreatedMemory(), piece()
    created.create(7, one.bytes, one)
    created.map(0x1000, one.bytes, 7)
    assert created.release(7) == []
    assert list(created) == [one]
    created.retain(0x1FFF)
    assert created.unmap(0x1000, one.bytes) == []
    assert created.release(7) == [one]
    assert len(created) == 0


def test_one_call_may_unmap_several_mappings_but_none_in_part() -> None:
    created, one, other = CreatedMemory(), piece(), piece(4 * MIB)
    created.create(7, one.bytes, one)
    created.create(8, other.bytes, other)
    created.map(0, one.bytes, 7)
    created.map(2 * MIB, other.bytes, 8)
    created.release(7)
    created.release(8)
    assert created.unmap(2 * MIB, 2 * MIB) == []
    assert created.unmap(0, 6 * MIB) == [one, other]


def test_a_number_that_the_driver_gives_again_is_other_memory() -> None:
    created, one, other = CreatedMemory(), piece(), piece(4 * MIB)
    created.create(7, one.bytes, one)
    created.map(0x1000, one.bytes, 7)
    created.release(7)
    assert created.create(7, other.bytes, other) == []  # the first one is mapped still
    assert set(created) == {one, other}
    assert created.unmap(0x1000, one.bytes) == [one]
    assert created.create(7, one.bytes, one) == [other]  # its release was lost
    assert list(created) == [one]


def test_what_is_mapped_where_something_was_had_been_unmapped() -> None:
    created, one, other = CreatedMemory(), piece(), piece()
    created.create(7, one.bytes, one)
    created.create(8, other.bytes, other)
    created.map(0x1000, one.bytes, 7)
    created.release(7)
    assert created.map(0x1000, other.bytes, 8) == [one]


def test_memory_of_a_gpu_is_followed_but_is_none_of_the_host() -> None:
    created = CreatedMemory()
    created.create(7, 2 * MIB, None)
    created.map(0x1000, 2 * MIB, 7)
    assert (list(created), len(created)) == ([], 2)
    assert created.release(7) == []
    assert created.unmap(0x1000, 2 * MIB) == []
    assert len(created) == 0


def test_a_handle_that_could_not_be_read_is_guessed_by_size_and_by_age_and_that_is_kept_in_mind() -> None:
    created, one, other, third = CreatedMemory(), piece(), piece(4 * MIB), piece()
    assert not created.guessed
    for each in (one, other, third):
        created.create(None, each.bytes, each)
    assert created.guessed
    created.map(0x1000, other.bytes, 9)
    assert created.release(9) == []
    assert created.release(10) == [one]
    assert created.unmap(0x1000, other.bytes) == [other]
    assert list(created) == [third]


def test_what_nobody_saw_made_changes_nothing() -> None:
    created, one = CreatedMemory(), piece()
    created.create(7, one.bytes, one)
    assert created.release(9) == created.unmap(0x1000, MIB) == created.map(0x1000, MIB, 9) == []
    assert not created.import_again(9)
    created.retain(0x1000)
    assert list(created) == [one]


def test_an_import_of_its_own_memory_is_one_more_handle() -> None:
    created, one = CreatedMemory(), piece()
    created.create(7, one.bytes, one)
    assert created.import_again(7)
    assert created.release(7) == []
    assert created.release(7) == [one]


STEP = st.tuples(
    st.sampled_from(["create", "release", "retain", "map", "unmap", "import"]),
    st.integers(0, 4),
    st.integers(1, 3),
    st.booleans(),
)


@given(st.lists(STEP, max_size=80))
def test_each_piece_goes_at_most_once_and_only_if_it_came(steps: list[tuple[str, int, int, bool]]) -> None:
    created = CreatedMemory()
    held: dict[int, Piece] = {}
    for number, (word, place, size, flag) in enumerate(steps):
        gone: list[Piece] = []
        match word:
            case "create":
                one = None if place == 4 else piece(size).model_copy(update={"seconds": float(number)})
                gone = created.create(None if flag else place, size, one)
                if one is not None:
                    held[id(one)] = one
            case "release":
                gone = created.release(place)
            case "retain":
                created.retain(place)
            case "map":
                gone = created.map(place, size, place)
            case "unmap":
                gone = created.unmap(place, size)
            case _:
                created.import_again(place)
        for each in gone:
            del held[id(each)]
        assert {id(each) for each in created} == set(held)
        assert len(list(created)) == len(held)


def test_twenty_thousand_mappings_cost_little_to_look_up() -> None:
    created = CreatedMemory()
    created.create(7, 2 * MIB, None)
    for number in range(20_000):
        created.map(number * 4 * MIB, 2 * MIB, 7)
    begun = time.process_time()
    for number in range(2000):
        created.unmap(number * 4 * MIB + 1, 2 * MIB)  # none whole
        created.retain(number * 4 * MIB + MIB)
    assert (time.process_time() - begun) / 4000 < 0.0002
