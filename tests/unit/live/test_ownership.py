"""Every piece of shared pinned memory counts once, in the process that owns it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pinscope.live.holder import Candidate, attribute, without_larger
from pinscope.probes.process import MemoryMaps

KEY = ("00:01", 7)
OTHER = ("00:01", 8)


def test_the_parent_owns_what_its_children_inherited() -> None:
    shares = attribute(
        [
            Candidate(20, parent=10, started=100, maps=MemoryMaps({KEY: [(0, 4096)]})),
            Candidate(10, parent=1, started=90, maps=MemoryMaps({KEY: [(0, 4096)]})),
            Candidate(21, parent=10, started=101, maps=MemoryMaps({KEY: [(0, 4096)], OTHER: [(0, 100)]})),
        ]
    )
    assert (shares[10].owned, shares[10].inherited_by) == ([4096], {20, 21})
    assert (shares[20].owned, shares[20].inherited, shares[20].inherited_from) == ([], [4096], {10})
    assert (shares[21].owned, shares[21].inherited) == ([100], [4096])


def test_of_two_that_started_in_one_tick_the_parent_owns() -> None:
    # The child may have the lower pid, when pids have wrapped around.
    maps = MemoryMaps({KEY: [(0, 10)]})
    shares = attribute([Candidate(5, 900, 50, maps), Candidate(900, 1, 50, maps)])
    assert (shares[900].owned, shares[5].owned) == ([10], [])


def test_a_process_of_unknown_start_owns_only_what_nobody_else_has() -> None:
    more, less = MemoryMaps({KEY: [(0, 10)], OTHER: [(0, 3)]}), MemoryMaps({KEY: [(0, 10)]})
    shares = attribute([Candidate(5, 1, None, more), Candidate(6, 1, 50, less)])
    assert (shares[5].owned, shares[6].owned) == ([3], [10])


def test_a_piece_is_as_large_as_what_any_process_maps_of_it() -> None:
    # The owner may have unmapped a part that its child still holds.
    part, rest = MemoryMaps({KEY: [(0, 100)]}), MemoryMaps({KEY: [(50, 100), (100, 300)]})
    shares = attribute([Candidate(1, 0, 1, part), Candidate(2, 1, 2, rest)])
    assert (shares[1].owned, shares[2].inherited) == ([300], [250])


PIECES = st.dictionaries(
    st.tuples(st.just("00:01"), st.integers(1, 5)),
    st.lists(st.builds(lambda begin, length: (begin, begin + length), st.integers(0, 50), st.integers(1, 50)),
             min_size=1, max_size=3),
    max_size=5,
)  # fmt: skip
CANDIDATES = st.lists(
    st.builds(
        Candidate,
        pid=st.integers(1, 12),
        parent=st.none() | st.integers(0, 12),
        started=st.none() | st.integers(0, 3),
        maps=PIECES.map(MemoryMaps),
    ),
    max_size=8,
    unique_by=lambda one: one.pid,
)


@given(candidates=CANDIDATES)
def test_the_owned_pieces_come_to_all_there_is_once(candidates: list[Candidate]) -> None:
    shares = attribute(candidates)
    everything = {
        (key, byte)
        for one in candidates
        for key, extents in one.maps.shared_zero.items()
        for start, end in extents
        for byte in range(start, end)
    }
    assert sum(sum(share.owned) for share in shares.values()) == len(everything)
    assert sum(len(share.owned) for share in shares.values()) == len({key for key, _ in everything})
    for pid, share in shares.items():
        assert all(pid in shares[owner].inherited_by for owner in share.inherited_from)
        assert bool(share.inherited) == bool(share.inherited_from)


def test_driver_memory_that_lies_where_the_owner_of_inherited_pieces_has_it_is_inherited() -> None:
    piece, other = {KEY: [(0, 4096)]}, {OTHER: [(0, 4096)]}
    place, elsewhere = (2**21, 3 * 2**21), (2**30, 2**31)
    shares = attribute(
        [
            Candidate(10, 1, 90, MemoryMaps(piece, driver=frozenset({place}))),
            Candidate(20, 10, 100, MemoryMaps(piece, driver=frozenset({place, elsewhere}))),
            Candidate(30, 1, 95, MemoryMaps(other, driver=frozenset({place}))),  # contexts lie at fixed addresses
        ]
    )
    assert {pid: share.driver_sizes for pid, share in shares.items()} == {10: [2**22], 20: [2**30], 30: [2**22]}


def test_a_piece_larger_than_all_that_is_pinned_is_ordinary_where_the_count_has_the_contexts_own() -> None:
    own = {("00:01", inode): [(0, 2**21)] for inode in range(1, 5)}
    one = Candidate(10, 1, 90, MemoryMaps({**own, KEY: [(0, 2**30)]}, gpus=frozenset({0})))
    (left,) = without_larger([one], 2**29)
    assert set(left.maps.sizes.values()) == {2**21}
    assert without_larger([one], 2**30) == [one]
    assert without_larger([one], 2**22) == [one]  # less than the contexts' own: this driver's pins are not counted
    assert without_larger([one], None) == [one]
