"""The books on pinned memory: what stays after calls that come in order, twice, in part, or from the wrong process."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinscope.live import pinned_pieces
from pinscope.live.pinned_pieces import IO_MEMORY, MOST_BYTES, WRITE_COMBINED, Ledger, pinned_bytes
from pinscope.probes.process import Caller
from pinscope.probes.uprobes import CALLS, Entered, Executed, Lost, Returned, TraceEvent, parse_trace
from pinscope.records.registration import DRIVER_MEMORY, PidRegistrations

H200 = (Path(__file__).parents[2] / "data" / "trace" / "h200.txt").read_text()
PAGE = os.sysconf("SC_PAGE_SIZE")
BOOT = 1_700_000_000.0
"""When the machine of these tests started."""
SINCE = 1000.0
"""When the probe did, in seconds after that."""
REGISTER, UNREGISTER = "cuMemHostRegister_v2", "cuMemHostUnregister"
ALLOCATE, FREE = "cuMemHostAlloc", "cuMemFreeHost"
CREATE, RELEASE, IMPORT = "cuMemCreate", "cuMemRelease", "cuMemImportFromShareableHandle"
TAKE = "cuMemAllocFromPoolAsync"
MIB = 2**20


class Host:
    """Processes of a host, and calls that they make one after the other."""

    def __init__(self) -> None:
        self.processes = {10: Caller(10, 500.0, "old"), 20: Caller(20, 1500.0, "new")}
        self.threads = {11: 10}
        self.now = 2000.0
        self.asked = 0
        self.ledger = Ledger(self, SINCE)

    def of(self, pid: int) -> Caller | None:
        self.asked += 1
        return self.processes.get(pid)

    def owner(self, thread: int) -> int | None:
        return self.threads.get(thread, thread if thread in self.processes else None)

    def call(
        self,
        pid: int,
        name: str,
        *arguments: int,
        result: int = 0,
        address: int | None = None,
        seconds: float = 0.25,
        thread: int | None = None,
        place: int | None = None,
    ) -> list[TraceEvent]:
        """The two events of a call.

        ``address``: what it allocated, or a handle, if the return probe could read it; ``place``: the kind of place
        that it asks for.
        """
        first, second, third, fourth = (*arguments, 0, 0, 0, 0)[:4]
        more = {"d": fourth} | ({} if place is None else {"type": 1, "place": place})
        words = {} if address is None else {"bx": first, "at_bx": address}
        process = pid if thread is None else None
        entered = Entered(thread or pid, process, self.now, name, (first, second, third), more)
        self.now += seconds
        return [entered, Returned(thread or pid, process, self.now, name, result, words)]

    def does(self, pid: int, name: str, *arguments: int, **more: int | float | None) -> PidRegistrations:
        """Book a call; gives the process's account."""
        self.ledger.apply(self.call(pid, name, *arguments, **more), BOOT)  # type: ignore[arg-type]
        return self.ledger.by_pid()[pid]


@pytest.fixture
def host() -> Host:
    return Host()


def test_registered_memory_counts_by_address_until_it_is_unregistered(host: Host) -> None:
    host.does(20, REGISTER, 0x1010, 5000, 1)
    one = host.does(20, REGISTER, 0x9000, PAGE, 0)
    assert (one.registered_bytes, one.registrations, one.calls) == (5000 + PAGE, 2, 2)
    assert one.pinned_registered_bytes == 2 * PAGE + PAGE
    first = one.pieces[0]
    assert (first.kind, first.address, first.bytes, first.flags, first.seconds) == ("register", 0x1010, 5000, 1, 0.25)
    assert first.since == datetime.fromtimestamp(BOOT + 2000.25, UTC)
    one = host.does(20, UNREGISTER, 0x1010)
    assert (one.registered_bytes, one.pinned_registered_bytes) == (PAGE, PAGE)


def test_the_oldest_piece_stands_first_whatever_its_kind(host: Host) -> None:
    host.does(20, ALLOCATE, 0x500, 3000, 0)
    host.does(20, REGISTER, 0x1000, 1000, 0)
    host.does(20, ALLOCATE, 0x500, 2000, WRITE_COMBINED, address=0x7000)
    one = host.does(20, "cuMemAllocHost_v2", 0x500, 1500, 0xDEAD, address=0x8000)
    assert [piece.bytes for piece in one.pieces] == [3000, 1000, 2000, 1500]
    assert [piece.kind for piece in one.pieces] == ["alloc", "register", "write_combined", "alloc"]
    assert [piece.flags for piece in one.pieces] == [0, 0, WRITE_COMBINED, 0]


def test_io_memory_is_registered_and_not_pinned(host: Host) -> None:
    one = host.does(20, REGISTER, 0x1000, 5000, IO_MEMORY)
    assert (one.registered_bytes, one.pinned_registered_bytes) == (5000, 0)


def test_an_allocation_and_a_registration_at_one_address_are_two_things(host: Host) -> None:
    host.does(20, ALLOCATE, 0x500, 3000, 0, address=0x7000)
    host.does(20, REGISTER, 0x7000, 1000, 0)
    one = host.does(20, FREE, 0x7000)
    assert [piece.kind for piece in one.pieces] == ["register"]
    one = host.does(20, FREE, 0x7000)
    assert one.registered_bytes == 1000


def test_memory_of_cumemcreate_on_the_host_counts_until_its_last_handle_and_mapping_are_gone(host: Host) -> None:
    for place in (2, 3, 4):
        one = host.does(20, CREATE, 0x500, 4 * MIB, 0x600, address=place, place=place)
    assert [(piece.kind, piece.address, piece.bytes, piece.flags) for piece in one.pieces] == [
        ("create", None, 4 * MIB, 0)
    ] * 3
    assert (one.driver_memory_bytes, one.registered_bytes, one.calls) == (12 * MIB, 0, 3)
    host.does(20, "cuMemMap", 0x7000, 4 * MIB, 0, 2)
    host.does(20, "cuMemRetainAllocationHandle", 0x500, 0x7000)
    for handle in (2, 2, 3, 4):
        one = host.does(20, RELEASE, handle)
    assert (one.driver_memory_bytes, len(one.pieces)) == (4 * MIB, 1)
    assert host.does(20, "cuMemUnmap", 0x7000, 4 * MIB).pieces == ()


def test_memory_of_cumemcreate_on_a_gpu_is_none_of_the_hosts(host: Host) -> None:
    host.does(20, CREATE, 0x500, 4 * MIB, 0x600, address=1, place=1)
    one = host.does(20, CREATE, 0x500, 4 * MIB, 0x600, address=2)  # its place could not be read
    assert (one.driver_memory_bytes, one.pieces, one.calls) == (0, (), 0)
    assert not one.unread_handles


def test_a_handle_that_could_not_be_read_is_said(host: Host) -> None:
    assert host.does(20, CREATE, 0x500, 4 * MIB, 0x600, place=3).unread_handles
    one = host.does(20, RELEASE, 0x1234)
    assert (one.driver_memory_bytes, one.unread_handles) == (0, True)


def test_memory_that_another_process_made_and_this_one_imported_is_said(host: Host) -> None:
    host.does(20, CREATE, 0x500, 4 * MIB, 0x600, address=1, place=3)
    assert not host.does(20, IMPORT, 0x500, 0x40, 1, address=1).imported  # its own
    host.does(20, RELEASE, 1)
    assert host.does(20, IMPORT, 0x500, 0x40, 1, address=9).imported
    one = host.does(20, RELEASE, 9)
    assert one.driver_memory_bytes == 4 * MIB


@pytest.mark.parametrize("call", ["cuMemPoolCreate", "cuMemGetDefaultMemPool", "cuMemGetMemPool"])
def test_of_a_pool_of_host_memory_what_is_allocated_counts_until_it_is_freed(host: Host, call: str) -> None:
    assert not host.ledger.has_host_pools
    host.does(20, call, 0x500, 0x600, 1, address=0xA0, place=3)
    host.does(20, call, 0x500, 0x600, 1, address=0xB0, place=1)
    assert host.ledger.has_host_pools
    for size, pool in ((MIB, 0xA0), (2 * MIB, 0xB0), (3 * MIB, 0xA0)):
        one = host.does(20, TAKE, 0x500, size, pool, address=0x1000 * size)
    assert [(piece.kind, piece.address, piece.bytes) for piece in one.pieces] == [
        ("pool", 0x1000 * MIB, MIB), ("pool", 0x3000 * MIB, 3 * MIB)
    ]  # fmt: skip
    assert (one.driver_memory_bytes, one.host_pools, one.calls) == (4 * MIB, 1, 2)
    host.does(20, "cuMemFree_v2", 0x1000 * MIB)
    one = host.does(20, "cuMemPoolDestroy", 0xA0)
    assert (one.driver_memory_bytes, host.ledger.has_host_pools) == (3 * MIB, True)
    one = host.does(20, "cuMemFreeAsync", 0x3000 * MIB)
    assert (one.driver_memory_bytes, one.host_pools, host.ledger.has_host_pools) == (0, 1, False)


def test_what_a_pool_gave_at_an_unknown_address_is_left_out_and_counted(host: Host) -> None:
    host.does(20, "cuMemPoolCreate", 0x500, 0x600, address=0xA0, place=3)
    one = host.does(20, TAKE, 0x500, MIB, 0xA0)
    assert (one.driver_memory_bytes, one.dropped_pieces) == (0, 1)


def test_write_combined_memory_is_the_drivers_and_other_allocated_memory_is_not(host: Host) -> None:
    host.does(20, ALLOCATE, 0x500, 3000, 0, address=0x7000)
    one = host.does(20, ALLOCATE, 0x500, 2000, (0xDEAD << 32) | WRITE_COMBINED, address=0x9000)
    assert (one.driver_memory_bytes, one.pieces[1].flags) == (2000, WRITE_COMBINED)
    assert host.does(20, FREE, 0x9000).driver_memory_bytes == 0


def test_failed_calls_change_nothing(host: Host) -> None:
    host.does(20, REGISTER, 0x1000, 5000, 0)
    host.does(20, REGISTER, 0x9000, 5000, 0, result=2)
    one = host.does(20, UNREGISTER, 0x1000, result=713)
    assert ([piece.address for piece in one.pieces], one.calls) == ([0x1000], 1)
    host.ledger.apply(host.call(10, REGISTER, 0x1000, 5000, 0, result=2), BOOT)
    assert set(host.ledger.by_pid()) == {20}


def test_a_release_of_what_nobody_saw_changes_nothing(host: Host) -> None:
    host.does(10, REGISTER, 0x1000, 5000, 0)
    for call, address in ((FREE, 0x4000), (UNREGISTER, 0x4000), (FREE, 0)):
        one = host.does(10, call, address)
        assert (one.registered_bytes, len(one.pieces), one.from_start) == (5000, 1, False)


@pytest.mark.parametrize("size", [0, MOST_BYTES, 2**63, 2**64 - 1])
def test_a_size_that_makes_no_sense_is_left_out_and_counted(host: Host, size: int) -> None:
    host.does(20, REGISTER, 0x1000, 5000, 0)
    for call in (REGISTER, ALLOCATE):
        one = host.does(20, call, 0x9000, size, 0)
    assert (one.registered_bytes, len(one.pieces), one.dropped_pieces) == (5000, 1, 2)


def test_the_sum_of_a_process_stays_within_what_a_host_can_have(host: Host) -> None:
    for number in range(1, 5):
        one = host.does(20, REGISTER, number * 0x1000, MOST_BYTES // 2, 0)
    assert (one.registered_bytes, one.dropped_pieces) == (MOST_BYTES // 2, 3)
    assert MOST_BYTES * pinned_pieces.MOST_PROCESSES < 2**63


def test_a_process_that_started_after_the_probe_is_known_from_its_start(host: Host) -> None:
    assert host.does(20, REGISTER, 0x1000, 1, 0).from_start
    host.ledger.late(20)  # its copy of the library was probed later
    assert not host.ledger.by_pid()[20].from_start


def test_a_thread_whose_process_the_kernel_did_not_note_is_looked_up(host: Host) -> None:
    assert host.does(10, REGISTER, 0x1000, 5000, 0, thread=11).registered_bytes == 5000
    host.ledger.apply(host.call(12, REGISTER, 0x1000, 5000, 0, thread=12), BOOT)  # ended meanwhile
    assert set(host.ledger.by_pid()) == {10}


def test_calls_of_several_threads_do_not_mix(host: Host) -> None:
    one = host.call(10, REGISTER, 0x1000, 5000, 0)
    other = host.call(10, REGISTER, 0x9000, 6000, 0, thread=11, result=2)
    host.ledger.apply([one[0], other[0], other[1], one[1]], BOOT)
    told = host.ledger.by_pid()[10]
    assert [piece.address for piece in told.pieces] == [0x1000]


def test_calls_that_two_probes_report_count_once(host: Host) -> None:
    one = host.call(20, REGISTER, 0x1000, 5000, 0)
    two = host.call(20, UNREGISTER, 0x1000)
    host.ledger.apply([one[0], one[0], one[1], one[1], two[0], two[0], two[1], two[1]], BOOT)
    told = host.ledger.by_pid()[20]
    assert (told.calls, told.registered_bytes, told.pieces) == (1, 0, ())


def test_a_return_without_its_entry_books_nothing(host: Host) -> None:
    host.ledger.apply(host.call(20, REGISTER, 0x1000, 5000, 0)[1:], BOOT)
    assert host.ledger.by_pid() == {}


def test_memory_that_is_pinned_again_at_its_address_had_been_released(host: Host) -> None:
    host.does(20, REGISTER, 0x1000, 5000, 0)
    one = host.does(20, REGISTER, 0x1000, 6000, 0)  # the release between was lost
    assert (one.registered_bytes, one.registrations) == (6000, 1)


def test_a_process_that_ended_drops_out_and_its_number_may_be_used_again(host: Host) -> None:
    host.does(20, REGISTER, 0x1000, 5000, 0)
    del host.processes[20]
    host.ledger.check()
    assert host.ledger.by_pid() == {}
    host.ledger.apply(host.call(20, REGISTER, 0x1000, 5000, 0), BOOT)  # read after its end
    assert host.ledger.by_pid() == {}
    host.processes[20] = Caller(20, host.now + 5, "another")
    host.ledger.apply(host.call(20, REGISTER, 0x1000, 5000, 0), BOOT)  # of the one before
    assert host.ledger.by_pid() == {}
    host.now += 10
    assert host.does(20, REGISTER, 0x2000, 700, 0).registered_bytes == 700


def test_another_process_of_the_same_number_inherits_nothing(host: Host) -> None:
    host.does(20, REGISTER, 0x1000, 5000, 0)
    host.processes[20] = Caller(20, host.now, "another")
    host.now += 1
    one = host.does(20, REGISTER, 0x2000, 700, 0)
    assert (one.registered_bytes, one.name, one.calls) == (700, "another", 1)


def test_a_process_that_renames_itself_stays_the_same(host: Host) -> None:
    host.does(20, REGISTER, 0x1000, 5000, 0)
    host.processes[20] = Caller(20, 1500.0, "renamed")
    host.ledger.check()
    assert host.does(20, REGISTER, 0x9000, 700, 0).registered_bytes == 5700


def test_another_program_in_a_process_s_place_holds_nothing(host: Host) -> None:
    before = host.call(20, REGISTER, 0x1000, 5000, 0)
    host.now += 1
    execution = Executed(20, host.now)
    after = host.call(20, REGISTER, 0x9000, 700, 0)
    host.ledger.apply([*before, execution, *after, Executed(999, host.now)], BOOT)
    assert host.ledger.by_pid()[20].registered_bytes == 700
    host.ledger.apply([Executed(20, 1400.0)], BOOT)  # of an earlier process
    assert host.ledger.by_pid()[20].registered_bytes == 700


def test_unknown_addresses_are_asked_for_once_and_booked(host: Host) -> None:
    host.does(20, ALLOCATE, 0x500, 3000, 0)
    host.does(20, ALLOCATE, 0x508, 4000, 0)
    host.does(20, ALLOCATE, 0x510, 5000, 0, address=0x7000)
    ((pid, wanted),) = host.ledger.unresolved().items()
    assert [(one.pointer, one.bytes) for one in wanted] == [(0x500, 3000), (0x508, 4000)]
    assert host.ledger.unresolved() == {}
    assert host.ledger.addresses(20) == {0x7000}
    host.ledger.resolve(pid, wanted[1].number, 0x9000)
    host.ledger.resolve(pid, wanted[0].number, 0x9000)  # no two pieces lie at one address
    one = host.ledger.by_pid()[20]
    assert [piece.address for piece in one.pieces] == [None, 0x9000, 0x7000]
    assert [piece.bytes for piece in host.does(20, FREE, 0x9000).pieces] == [3000, 5000]
    for _ in range(2):  # what nobody knows is put down to the piece of unknown address
        assert [piece.bytes for piece in host.does(20, FREE, 0xABC).pieces] == [5000]


def test_an_address_that_is_found_after_the_release_changes_nothing(host: Host) -> None:
    host.does(20, ALLOCATE, 0x500, 3000, 0)
    ((pid, (wanted,)),) = host.ledger.unresolved().items()
    host.does(20, FREE, 0x9000)
    host.does(20, ALLOCATE, 0x508, 4000, 0)
    host.ledger.resolve(pid, wanted.number, 0x9000)
    host.ledger.resolve(99, wanted.number, 0x9000)
    assert [(piece.address, piece.bytes) for piece in host.ledger.by_pid()[20].pieces] == [(None, 4000)]


def test_what_was_released_meanwhile_is_not_asked_for(host: Host) -> None:
    host.does(20, ALLOCATE, 0x500, 3000, 0)
    host.does(20, FREE, 0x7000)
    assert host.ledger.unresolved() == {}


def test_lost_events_add_up(host: Host) -> None:
    host.ledger.apply([Lost(3), Lost(4)], BOOT)
    assert host.ledger.lost_events == 7


def test_a_context_that_ended_is_noted_with_its_time(host: Host) -> None:
    host.does(20, REGISTER, 0x1000, 5000, 0)
    assert host.does(20, "cuDevicePrimaryCtxReset_v2", 0, result=3).context_ended_at is None
    one = host.does(20, "cuCtxDestroy_v2", 0x1234)
    assert one.context_ended_at == datetime.fromtimestamp(BOOT + host.now, UTC)
    assert one.registered_bytes == 5000


def test_memory_stays_bounded_and_what_is_left_out_is_counted(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinned_pieces, "MOST_PIECES", 10)
    monkeypatch.setattr(pinned_pieces, "MOST_PIECES_OF_ALL", 15)
    monkeypatch.setattr(pinned_pieces, "MOST_PROCESSES", 2)
    monkeypatch.setattr(pinned_pieces, "MOST_UNFINISHED", 5)
    for number in range(1, 13):
        one = host.does(20, REGISTER, number * 0x1000, 100, 0)
        other = host.does(10, REGISTER, number * 0x1000, 100, 0, result=number if number > 7 else 0)
    assert (other.registrations, other.dropped_pieces) == (7, 0)
    assert (one.registrations, one.dropped_pieces, one.registered_bytes) == (8, 4, 800)  # 15 of both together
    for number in range(1, 6):
        host.does(10, UNREGISTER, number * 0x1000)
        one = host.does(20, REGISTER, number * 0x1000 + 1, 100, 0)
    assert (one.registrations, one.dropped_pieces) == (10, 7)
    for pid in (30, 30, 40, 50, 60):
        host.processes[pid] = Caller(pid, 1600.0, "another")
        host.ledger.apply(host.call(pid, REGISTER, 0x1000, 100, 0), BOOT)
        assert set(host.ledger.by_pid()) == {10, 20}
        assert host.ledger.left_out_processes == (1 if pid == 30 else 2)  # processes, not calls; no more than two
    for thread in range(100, 120):  # threads that ended in a call
        host.ledger.apply(host.call(20, REGISTER, 0x1000, 100, 0, thread=thread)[:1], BOOT)
    host.ledger.check()
    assert len(host.ledger._entered) == 0


def test_a_release_of_a_piece_that_was_left_out_changes_no_other(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinned_pieces, "MOST_PIECES", 1)
    host.does(20, REGISTER, 0x1000, 100, 0)
    host.does(20, REGISTER, 0x2000, 300, 0)
    one = host.does(20, UNREGISTER, 0x2000)
    assert (one.registered_bytes, one.dropped_pieces) == (100, 1)


def test_a_batch_asks_once_who_a_process_is_and_an_account_is_told_again_for_nothing(host: Host) -> None:
    events = [event for number in range(50) for event in host.call(20, REGISTER, number * 0x1000, 1, 0)]
    host.ledger.apply(events, BOOT)
    assert host.asked == 1
    assert host.ledger.by_pid()[20] is host.ledger.by_pid()[20]


def test_the_trace_of_an_h200_leaves_nothing_held(host: Host) -> None:
    events = list(parse_trace(H200))
    host.processes = {event.thread: Caller(event.thread, 1.0, "x") for event in events}  # type: ignore[union-attr]
    host.ledger.apply(events, BOOT)
    told = host.ledger.by_pid()
    assert {pid for pid, one in told.items() if one.pieces} == set()
    assert {pid: one.calls for pid, one in told.items() if pid in (539, 557)} == {539: 1, 557: 1}


CALL = st.tuples(
    st.sampled_from([10, 20]),
    st.sampled_from(sorted(CALLS)),
    st.integers(0, 8),
    st.integers(0, 2**40),
    st.sampled_from([0, 4]),
    st.sampled_from([0, 0, 0, 2]),
    st.one_of(st.none(), st.integers(1, 8)),
    st.sampled_from([1, 3]),
)


@given(st.lists(CALL, max_size=60))
def test_the_sums_are_always_those_of_the_live_pieces(
    calls: list[tuple[int, str, int, int, int, int, int, int]],
) -> None:
    host = Host()
    for pid, name, first, size, third, result, address, place in calls:
        events = host.call(pid, name, first, size, third, third, result=result, address=address, place=place)
        host.ledger.apply(events, BOOT)
    for one in host.ledger.by_pid().values():
        assert one.registered_bytes == sum(piece.bytes for piece in one.pieces if piece.kind == "register")
        assert one.pinned_registered_bytes == sum(map(pinned_bytes, one.pieces))
        assert list(one.pieces) == sorted(one.pieces, key=lambda piece: piece.since)
        assert one.driver_memory_bytes == sum(piece.bytes for piece in one.pieces if piece.kind in DRIVER_MEMORY)
    assert host.ledger._pieces == sum(len(account.pieces) for account in host.ledger._accounts.values())
