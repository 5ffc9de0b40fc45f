"""What the probe keeps of pinned memory, and what a snapshot says of it: exact, at least, at most, or missing.

Calls come in order, twice, in part, or from the wrong process.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinscope.live import tracker
from pinscope.live.source import snapshot
from pinscope.live.tracker import IO_MEMORY, MOST_BYTES, NOT_FOLLOWED, WRITE_COMBINED, PinnedPieces, pinned_bytes
from pinscope.probes.gpu import process_on_gpu
from pinscope.probes.process import Caller, LiveCallers
from pinscope.probes.uprobes import CALLS, Entered, Executed, Returned, TraceEvent, parse_trace
from pinscope.records.registration import PidRegistrations, Piece, ProbedLibrary, Registrations
from pinscope.records.snapshot import Holder, Snapshot
from tests.data.snapshot_checks import holder_of
from tests.data.synthetic_gpu import busy_h200, figures
from tests.data.synthetic_host import SyntheticHost, zero

H200 = (Path(__file__).parents[2] / "data" / "trace" / "h200.txt").read_text()
PAGE = os.sysconf("SC_PAGE_SIZE")
MIB, GIB = 2**20, 2**30
BOOT = 1_700_000_000.0
"""When the machine of these tests started."""
SINCE = 1000.0
"""When the probe did, in seconds after that."""
REGISTER, UNREGISTER = "cuMemHostRegister_v2", "cuMemHostUnregister"
ALLOCATE, FREE = "cuMemHostAlloc", "cuMemFreeHost"


class Calls(LiveCallers):
    """Processes of a host, and calls that they make one after the other."""

    def __init__(self) -> None:
        self.processes = {10: Caller(10, 500.0, "old"), 20: Caller(20, 1500.0, "new")}
        self.threads = {11: 10}
        self.now = 2000.0
        self.asked = 0
        self.pieces = PinnedPieces(self, SINCE)

    def of(self, pid: int) -> Caller | None:
        self.asked += 1
        return self.processes.get(pid)

    def owner(self, thread: int) -> int | None:
        return self.threads.get(thread, thread if thread in self.processes else None)

    def events(
        self,
        pid: int,
        name: str,
        *arguments: int,
        result: int = 0,
        address: int | None = None,
        thread: int | None = None,
    ) -> list[TraceEvent]:
        """The two events of a call.

        ``address``: what it allocated, if the return probe could read it.
        """
        first, second, third = (*arguments, 0, 0, 0)[:3]
        words = {} if address is None else {"bx": first, "at_bx": address}
        process = pid if thread is None else None
        entered = Entered(thread or pid, process, self.now, name, (first, second, third))
        self.now += 0.25
        return [entered, Returned(thread or pid, process, self.now, name, result, words)]

    def apply(self, pid: int, name: str, *arguments: int, **more: int | None) -> None:
        """Apply a call."""
        self.pieces.apply(self.events(pid, name, *arguments, **more), BOOT)

    def does(self, pid: int, name: str, *arguments: int, **more: int | None) -> PidRegistrations:
        """Apply a call; gives what is known of the process."""
        self.apply(pid, name, *arguments, **more)
        return self.pieces.by_pid()[pid]


@pytest.fixture
def calls() -> Calls:
    return Calls()


def call(name: str, *arguments: int, **more: int) -> tuple[str, tuple[int, ...], dict[str, int]]:
    return name, arguments, more


REGISTERED = call(REGISTER, 0x1010, 5000, 1)
SCENES: Mapping[str, tuple[list[tuple[str, tuple[int, ...], dict[str, int]]], dict[str, Any]]] = {
    "registered memory counts whole pages, by address": (
        [REGISTERED, call(REGISTER, 0x9000, PAGE, 0)],
        {"registered_bytes": 5000 + PAGE, "registrations": 2, "calls": 2, "pinned_registered_bytes": 3 * PAGE},
    ),
    "until it is unregistered": (
        [REGISTERED, call(REGISTER, 0x9000, PAGE, 0), call(UNREGISTER, 0x1010)],
        {"registered_bytes": PAGE, "pinned_registered_bytes": PAGE},
    ),
    "another device's memory is registered and not pinned": (
        [call(REGISTER, 0x1000, 5000, IO_MEMORY)], {"registered_bytes": 5000, "pinned_registered_bytes": 0},
    ),
    "the oldest piece stands first; flags count only in calls that have some": (
        [
            call(ALLOCATE, 0x500, 3000, 0), call(REGISTER, 0x1000, 1000, 0),
            call(ALLOCATE, 0x500, 2000, (0xDEAD << 32) | WRITE_COMBINED, address=0x7000),
            call("cuMemAllocHost_v2", 0x500, 1500, 0xDEAD, address=0x8000),
        ],
        {
            "kinds": ["alloc", "register", "write_combined", "alloc"], "sizes": [3000, 1000, 2000, 1500],
            "flags": [0, 0, WRITE_COMBINED, 0],
        },
    ),
    "an allocation and a registration at one address are two things": (
        [
            call(ALLOCATE, 0x500, 3000, 0, address=0x7000), call(REGISTER, 0x7000, 1000, 0), call(FREE, 0x7000),
            call(FREE, 0x7000),
        ],
        {"kinds": ["register"], "registered_bytes": 1000},
    ),
    "memory that is pinned again at its address had been released": (
        [call(REGISTER, 0x1000, 5000, 0), call(REGISTER, 0x1000, 6000, 0)],
        {"registered_bytes": 6000, "registrations": 1},
    ),
    "failed calls and releases of what nobody saw change nothing": (
        [
            REGISTERED, call(REGISTER, 0x9000, 5000, 0, result=2), call(UNREGISTER, 0x1010, result=713),
            call(FREE, 0x4000), call(UNREGISTER, 0x4000), call(FREE, 0),
        ],
        {"registered_bytes": 5000, "calls": 1, "sizes": [5000]},
    ),
    "sizes that make no sense are left out and counted": (
        [
            REGISTERED,
            *(call(name, 0x9000, n, 0) for n in (0, MOST_BYTES, 2**63, 2**64 - 1) for name in (REGISTER, ALLOCATE)),
        ],
        {"registered_bytes": 5000, "sizes": [5000], "dropped_pieces": 8},
    ),
    "a context that ended is noted, unless the call failed": (
        [REGISTERED, call("cuCtxDestroy_v2", 0x1234), call("cuDevicePrimaryCtxReset_v2", 0, result=3)],
        {"context_ended_at": datetime.fromtimestamp(BOOT + 2000.5, UTC), "registered_bytes": 5000},
    ),
}  # fmt: skip


@pytest.mark.parametrize("scene", SCENES)
def test_what_stays_after_calls(calls: Calls, scene: str) -> None:
    steps, expected = SCENES[scene]
    for name, arguments, more in steps:
        known = calls.does(20, name, *arguments, **more)
    lists = {
        "kinds": [piece.kind for piece in known.pieces],
        "sizes": [piece.bytes for piece in known.pieces],
        "flags": [piece.flags for piece in known.pieces],
    }
    assert {key: lists[key] if key in lists else getattr(known, key) for key in expected} == expected


def test_a_piece_says_what_was_called_when_and_for_how_long(calls: Calls) -> None:
    (piece,) = calls.does(20, REGISTER, 0x1010, 5000, 1).pieces
    since = datetime.fromtimestamp(BOOT + 2000.25, UTC)
    assert piece == Piece(kind="register", address=0x1010, bytes=5000, flags=1, since=since, seconds=0.25)


def test_a_process_that_started_after_the_probe_is_known_from_its_start(calls: Calls) -> None:
    assert calls.does(20, REGISTER, 0x1000, 1, 0).from_start
    assert not calls.does(10, REGISTER, 0x1000, 1, 0).from_start


def test_a_thread_whose_process_the_kernel_did_not_note_is_looked_up(calls: Calls) -> None:
    assert calls.does(10, REGISTER, 0x1000, 5000, 0, thread=11).registered_bytes == 5000
    calls.apply(12, REGISTER, 0x1000, 5000, 0, thread=12)  # ended meanwhile
    assert set(calls.pieces.by_pid()) == {10}


def test_calls_of_several_threads_do_not_mix_and_a_return_without_its_entry_counts_for_nothing(calls: Calls) -> None:
    one = calls.events(10, REGISTER, 0x1000, 5000, 0)
    other = calls.events(10, REGISTER, 0x9000, 6000, 0, thread=11, result=2)
    late = calls.events(20, REGISTER, 0x1000, 5000, 0)
    calls.pieces.apply([one[0], other[0], other[1], one[1], late[1]], BOOT)
    assert {pid: [piece.address for piece in known.pieces] for pid, known in calls.pieces.by_pid().items()} == {
        10: [0x1000]
    }


def test_calls_that_two_probes_report_count_once(calls: Calls) -> None:
    pair = [calls.events(20, REGISTER, 0x1000, 5000, 0), calls.events(20, UNREGISTER, 0x1000)]
    calls.pieces.apply([event for events in pair for event in (events[0], events[0], events[1], events[1])], BOOT)
    known = calls.pieces.by_pid()[20]
    assert (known.calls, known.registered_bytes, known.pieces) == (1, 0, ())


def test_a_process_that_ended_drops_out_and_its_number_may_be_used_again(calls: Calls) -> None:
    calls.does(20, REGISTER, 0x1000, 5000, 0)
    del calls.processes[20]
    calls.pieces.check()
    calls.apply(20, REGISTER, 0x1000, 5000, 0)  # read after its end
    calls.processes[20] = Caller(20, calls.now + 5, "another")
    calls.apply(20, REGISTER, 0x1000, 5000, 0)  # of the process before
    assert calls.pieces.by_pid() == {}
    calls.now += 10
    assert calls.does(20, REGISTER, 0x2000, 700, 0).registered_bytes == 700
    calls.processes[20] = Caller(20, calls.now, "third")  # without a check between
    calls.now += 1
    known = calls.does(20, REGISTER, 0x2000, 900, 0)
    assert (known.registered_bytes, known.name, known.calls) == (900, "third", 1)


def test_a_process_that_renames_itself_stays_and_another_program_in_its_place_holds_nothing(calls: Calls) -> None:
    calls.does(20, REGISTER, 0x1000, 5000, 0)
    calls.processes[20] = Caller(20, 1500.0, "renamed")
    calls.pieces.check()
    assert calls.does(20, REGISTER, 0x9000, 700, 0).registered_bytes == 5700
    calls.pieces.apply([Executed(20, 1400.0), Executed(999, calls.now)], BOOT)  # of an earlier process, and of nobody
    assert calls.pieces.by_pid()[20].registered_bytes == 5700
    calls.now += 1
    calls.pieces.apply([Executed(20, calls.now), *calls.events(20, REGISTER, 0x9000, 800, 0)], BOOT)
    assert calls.pieces.by_pid()[20].registered_bytes == 800


def test_what_nobody_knows_is_put_down_to_the_oldest_piece_of_unknown_address(calls: Calls) -> None:
    for size, address in ((3000, None), (4000, None), (5000, 0x7000)):
        calls.does(20, ALLOCATE, 0x500, size, 0, address=address)
    assert [piece.address for piece in calls.pieces.by_pid()[20].pieces] == [None, None, 0x7000]
    for left in ([4000, 5000], [5000], [5000]):
        assert [piece.bytes for piece in calls.does(20, FREE, 0xABC).pieces] == left


def test_memory_stays_bounded_and_what_is_left_out_is_counted(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, most in (("PIECES", 8), ("UNFINISHED", 5)):
        monkeypatch.setattr(tracker, f"MOST_{name}", most)
    for number in range(1, 13):
        one = calls.does(20, REGISTER, number * 0x1000, 100, 0)
        other = calls.does(10, REGISTER, number * 0x1000, 100, 0, result=number if number > 7 else 0)
    assert (other.registrations, other.dropped_pieces) == (7, 0)
    assert (one.registrations, one.dropped_pieces, one.registered_bytes) == (8, 4, 800)
    assert calls.does(20, UNREGISTER, 12 * 0x1000).registered_bytes == 800  # that piece was left out
    for thread in range(100, 120):  # threads that ended in a call
        calls.pieces.apply(calls.events(20, REGISTER, 0x1000, 100, 0, thread=thread)[:1], BOOT)
    calls.pieces.check()
    assert len(calls.pieces._entered) == 0


def test_a_batch_asks_once_who_a_process_is(calls: Calls) -> None:
    calls.pieces.apply([e for number in range(50) for e in calls.events(20, REGISTER, number * 0x1000, 1, 0)], BOOT)
    assert calls.asked == 1


def test_the_trace_of_an_h200_leaves_nothing_held(calls: Calls) -> None:
    events = list(parse_trace(H200))
    calls.processes = {event.thread: Caller(event.thread, 1.0, "x") for event in events}  # type: ignore[union-attr]
    calls.pieces.apply(events, BOOT)
    known = calls.pieces.by_pid()
    assert {pid for pid, one in known.items() if one.pieces} == set()
    assert {pid: known[pid].calls for pid in (539, 557)} == {539: 1, 557: 1}


CALL = st.tuples(
    st.sampled_from([10, 20]),
    st.sampled_from(sorted(CALLS)),
    st.integers(0, 8),
    st.integers(0, 2**40),
    st.sampled_from([0, 4]),
    st.sampled_from([0, 0, 0, 2]),
    st.one_of(st.none(), st.integers(1, 8)),
)


@given(st.lists(CALL, max_size=60))
def test_the_sums_are_always_those_of_the_live_pieces(made: list[tuple[int, str, int, int, int, int, int]]) -> None:
    calls = Calls()
    for pid, name, first, size, third, result, address in made:
        calls.apply(pid, name, first, size, third, result=result, address=address)
    for known in calls.pieces.by_pid().values():
        assert known.registered_bytes == sum(piece.bytes for piece in known.pieces if piece.kind == "register")
        assert known.pinned_registered_bytes == sum(map(pinned_bytes, known.pieces))
        assert list(known.pieces) == sorted(known.pieces, key=lambda piece: piece.since)


LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
"""Before any synthetic process started."""
NOW = datetime.now(UTC)
BEFORE, AFTER = NOW - timedelta(seconds=1), NOW + timedelta(seconds=1)


def cuda(host: SyntheticHost, *pieces: tuple[int, str]) -> int:
    """A CUDA process, with the address space that CUDA reserves."""
    return host.cuda_process(pieces, started=100, VmSize=30 * GIB)


def registered(pid: int, size: int, **more: object) -> PidRegistrations:
    piece = Piece(kind="register", address=0x1000, bytes=size, flags=0, since=NOW, seconds=0.1)
    given: Mapping[str, object] = {
        "pid": pid,
        "name": "python",
        "from_start": True,
        "registered_bytes": size,
        "registrations": 1,
        "pinned_registered_bytes": -(-size // 4096) * 4096,
        "pieces": (piece,),
        "calls": 1,
    }
    return PidRegistrations.model_validate({**given, **more})


def look(host: SyntheticHost, pid: int, *known: PidRegistrations, **more: Any) -> tuple[Snapshot, Holder]:
    """A snapshot with what is known of processes, and one holder of it."""
    libraries = (ProbedLibrary(path="/usr/lib/libcuda.so.1", calls=("cuMemHostRegister_v2",)),)
    registrations = Registrations(
        **{"since": LONG_AGO, "by_pid": {one.pid: one for one in known}, "libraries": libraries} | more
    )
    gpus = figures(host.proc, [busy_h200(50 * MIB, process_on_gpu(pid, 520 * MIB))])
    seen = snapshot(host.proc, gpus, registrations=registrations)
    return seen, holder_of(seen, pid)


def begins(bound: Any, text: str | None) -> bool:
    """Whether a bound is there, and begins so; with ``None``: whether there is none."""
    return bound is None if text is None else bound is not None and bound.text.startswith(text)


def test_without_a_probe_the_figure_is_missing_and_says_what_would_give_it(host: SyntheticHost) -> None:
    cuda(host, zero(GIB, 1))
    seen = snapshot(host.proc)
    (holder,) = seen.holders
    assert (holder.registered_bytes, holder.registrations, seen.probe) == (None, None, None)
    assert holder.missing["registered_bytes"] == holder.missing["registrations"] == NOT_FOLLOWED
    assert "pinscope live --probe" in NOT_FOLLOWED


def test_with_a_probe_registered_memory_is_explained_by_the_page(host: SyntheticHost) -> None:
    pid = cuda(host, zero(GIB, 1))
    seen, holder = look(host, pid, registered(pid, 3 * GIB - 1))
    assert (holder.registered_bytes, holder.registrations) == (3 * GIB - 1, 1)
    assert "registered_bytes" not in holder.missing | holder.estimates
    assert (seen.host.explained_bytes, seen.host.other_pinned_bytes) == (4 * GIB, 21 * GIB)
    assert "explained_bytes" not in seen.host.estimates
    assert seen.probe is not None
    assert (seen.probe.since, seen.probe.lost_events, len(seen.probe.libraries)) == (LONG_AGO, 0, 1)
    (use,) = holder.gpus
    assert use.page_table_bytes == seen.devices[0].page_table_bytes == 8 * MIB
    for note in (use.estimates["page_table_bytes"], seen.devices[0].estimates["page_table_bytes"]):
        assert "cudaHostAlloc and registered memory" in note.why
        assert "comes on top" not in note.why


@pytest.mark.parametrize(
    ("changes", "lost", "bound"),
    [
        ({}, 0, None),
        ({"from_start": False}, 0, "at least"),
        ({"dropped_pieces": 1}, 0, "at least"),
        ({"context_ended_at": AFTER}, 0, "at most"),
        ({"context_ended_at": AFTER, "from_start": False}, 0, "about"),
        ({"context_ended_at": BEFORE}, 0, None),
        ({"from_start": False}, 3, "about"),
    ],
)
def test_each_figure_says_its_bound_and_the_sum_is_no_more_certain(
    host: SyntheticHost, changes: Mapping[str, object], lost: int, bound: str | None
) -> None:
    pid = cuda(host)
    seen, holder = look(host, pid, registered(pid, GIB, **changes), lost_events=lost)
    assert begins(holder.estimates.get("registered_bytes"), bound)
    assert begins(seen.host.estimates.get("explained_bytes"), bound)
    assert not lost or "too fast" in holder.estimates["registered_bytes"].text


def test_the_same_memory_registered_by_two_counts_twice_as_the_kernel_counts_it(host: SyntheticHost) -> None:
    pid, other = cuda(host), cuda(host)
    seen, _ = look(host, pid, registered(pid, 8 * GIB), registered(other, 8 * GIB))
    assert (seen.host.explained_bytes, seen.host.other_pinned_bytes) == (16 * GIB, 9 * GIB)
    seen, _ = look(host, pid, registered(pid, 26 * GIB))
    assert seen.host.other_pinned_bytes is None
    assert "not pinned" in seen.host.missing["other_pinned_bytes"]


@pytest.mark.parametrize("called", [True, False])
def test_of_a_process_older_than_the_probe_it_is_at_least_so_much(host: SyntheticHost, called: bool) -> None:
    pid = cuda(host)
    known = [registered(pid, GIB, from_start=False)] if called else []
    seen, holder = look(host, pid, *known, since=NOW + timedelta(days=1))
    for note in (holder.gpus[0].estimates["page_table_bytes"], seen.devices[0].estimates["page_table_bytes"]):
        assert "before the probe started is not known" in note.why or "not known exactly" in note.why
    assert holder.registered_bytes == (GIB if called else 0)
    assert begins(holder.estimates["registered_bytes"], "at least")
    assert begins(seen.host.estimates["explained_bytes"], "at least")


def test_a_probe_that_broke_off_is_told_and_its_figures_are_missing(host: SyntheticHost) -> None:
    pid = cuda(host)
    seen, holder = look(host, pid, trouble="it broke off")
    for note in (holder.gpus[0].estimates["page_table_bytes"], seen.devices[0].estimates["page_table_bytes"]):
        assert "registered memory comes on top" in note.why
    assert (holder.registered_bytes, holder.missing["registered_bytes"]) == (None, "it broke off")
    assert seen.probe is not None
    assert seen.probe.trouble == "it broke off"
    assert "it broke off" in [gap.reason for gap in seen.unreadable]


def test_what_a_process_with_an_unfollowed_copy_registered_is_missing_and_not_nothing(host: SyntheticHost) -> None:
    pid, other = cuda(host, zero(GIB, 1)), cuda(host)
    seen, holder = look(host, pid, registered(other, GIB), not_followed={pid: "why not", other: "why not"})
    assert (holder.registered_bytes, holder.registrations) == (None, None)
    assert holder.missing["registered_bytes"] == holder.missing["registrations"] == "why not"
    assert "registered memory comes on top" in holder.gpus[0].estimates["page_table_bytes"].text
    partly = next(holder for holder in seen.holders if holder.pid == other)
    assert partly.registered_bytes == GIB
    assert begins(partly.estimates["registered_bytes"], "at least")
    assert begins(seen.host.estimates["explained_bytes"], "at least")


def test_copies_and_processes_that_are_not_followed_are_told(host: SyntheticHost) -> None:
    odd = ProbedLibrary(path="/odd/libcuda.so.1", reason="why not")
    others = {7: "another", 5: "another", 9: "why not"}
    known = Registrations(since=LONG_AGO, by_pid={}, libraries=(odd,), not_followed=others)
    gaps = {gap.what: gap.reason for gap in snapshot(host.proc, registrations=known).unreadable}
    assert gaps["Registered memory of 2 processes (pid 5, 7)"] == "another"
    assert gaps["Registered memory of programs that use /odd/libcuda.so.1"] == "why not"
