"""Addresses of pinned pieces are found in this very process's memory, or not believed."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pinscope.probes.uprobes import MOST_LOOKED_FOR, Wanted, find_addresses

PAGE = os.sysconf("SC_PAGE_SIZE")
SIZE = 37 * PAGE
"""Of mappings that nothing else here has."""


@contextmanager
def shared(size: int) -> Iterator[int]:
    """Shared anonymous memory, as cudaHostAlloc's is; gives its address."""
    with mmap.mmap(-1, size) as memory:
        place = ctypes.c_char.from_buffer(memory)
        yield ctypes.addressof(place)
        del place


def find(*wanted: Wanted, taken: tuple[int, ...] = ()) -> dict[int, int]:
    return dict(find_addresses(os.getpid(), wanted, taken))


def test_what_stands_where_the_call_was_to_put_the_address_is_taken_if_the_piece_fits_there() -> None:
    with shared(SIZE) as start:
        pointer = ctypes.c_uint64(start + 512)
        place = ctypes.addressof(pointer)
        assert find(Wanted(1, place, 3000)) == {1: start + 512}
        assert find(Wanted(1, place, 3000), taken=(start + 512,)) == {}
        assert find(Wanted(1, place, SIZE + 1)) == {}


def test_other_memory_is_not_believed() -> None:
    ordinary = ctypes.create_string_buffer(1 << 16)
    pointer = ctypes.c_uint64(ctypes.addressof(ordinary))
    assert find(Wanted(1, ctypes.addressof(pointer), 3000)) == {}
    for nowhere in (0, 8, 2**64 - 8, 2**63):
        assert find(Wanted(1, nowhere, 3000)) == {}


@pytest.mark.parametrize(("access", "written", "believed"), [
    (mmap.ACCESS_WRITE, True, False),  # a server of files could be asked for it
    (mmap.ACCESS_COPY, False, False),
    (mmap.ACCESS_COPY, True, True),  # as a program's variables are
])  # fmt: skip
def test_a_pointer_is_read_only_where_that_waits_for_nobody(
    tmp_path: Path, access: int, written: bool, believed: bool
) -> None:
    with shared(SIZE) as start, (tmp_path / "file").open("w+b") as file:
        file.write(start.to_bytes(8, "little") * 512)
        file.flush()
        with mmap.mmap(file.fileno(), PAGE, access=access) as memory:
            place = ctypes.c_char.from_buffer(memory)
            if written:
                memory[0:8] = start.to_bytes(8, "little")
            assert find(Wanted(1, ctypes.addressof(place), 3000)) == ({1: start} if believed else {})
            del place


def test_a_pointer_that_goes_on_in_the_next_page_is_not_read() -> None:
    with shared(SIZE) as start:
        memory = ctypes.create_string_buffer(start.to_bytes(8, "little") * (2 * PAGE // 8), 2 * PAGE)
        edge = (ctypes.addressof(memory) // PAGE + 1) * PAGE
        assert find(Wanted(1, edge - 4, 3000)) == {}


def test_failing_that_the_newest_mapping_of_exactly_the_size_is_taken() -> None:
    with shared(SIZE) as first, shared(SIZE) as second:
        assert find(Wanted(1, 0, SIZE - 10)) == {1: second}
        assert find(Wanted(1, 0, SIZE), Wanted(2, 0, SIZE), Wanted(3, 0, SIZE)) == {1: second, 2: first}
        assert find(Wanted(1, 0, SIZE), taken=(second,)) == {1: first}
        assert find(Wanted(1, 0, SIZE - PAGE)) == {}


def test_no_more_is_looked_for_than_can_be_looked_for_in_time() -> None:
    with shared(SIZE) as start:
        pointer = ctypes.c_uint64(start)
        late = Wanted(MOST_LOOKED_FOR + 1, ctypes.addressof(pointer), 3000)
        assert find(*(Wanted(number, 0, 1) for number in range(MOST_LOOKED_FOR)), late) == {}


def test_a_process_that_has_ended_gives_nothing() -> None:
    assert dict(find_addresses(2**22 + 1, [Wanted(1, 8, 8)], ())) == {}
