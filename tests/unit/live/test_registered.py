"""Registered memory in a snapshot: exact, at least, at most, or missing with the way to get it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest

from pinscope.live.registered import CALLS_NOT_FOLLOWED, NOT_FOLLOWED, registered_by
from pinscope.live.source import snapshot
from pinscope.probes.answer import Answer
from pinscope.probes.gpu import ProcessOnGpu
from pinscope.records.registration import PidRegistrations, Piece, ProbedLibrary, Registrations
from pinscope.records.snapshot import Holder, Snapshot
from tests.data.synthetic_gpu import busy_h200, figures
from tests.data.synthetic_host import SyntheticHost, context, named, zero

MIB, GIB = 2**20, 2**30
LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
"""Before any synthetic process started."""
NOW = datetime.now(UTC)


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


def look(
    host: SyntheticHost, pid: int, *accounts: PidRegistrations, since: datetime = LONG_AGO, lost: int = 0
) -> tuple[Snapshot, Holder]:
    """A snapshot with these accounts, and one holder of it."""
    libraries = (ProbedLibrary(path="/usr/lib/libcuda.so.1", calls=("cuMemHostRegister_v2",)),)
    told = Registrations(since, {one.pid: one for one in accounts}, lost, libraries)
    gpus = figures(host.proc, [busy_h200(50 * MIB, ProcessOnGpu(pid, 520 * MIB))])
    found = snapshot(host.proc, gpus, registrations=told)
    return found, next(one for one in found.holders if one.pid == pid)


def test_without_a_probe_the_figure_is_missing_and_says_what_would_give_it(host: SyntheticHost) -> None:
    cuda(host, zero(GIB, 1))
    found = snapshot(host.proc)
    (one,) = found.holders
    assert (one.registered_bytes, one.registrations, found.probe) == (None, None, None)
    assert one.missing["registered_bytes"] == one.missing["registrations"] == NOT_FOLLOWED
    assert "pinscope live --probe" in NOT_FOLLOWED


def test_with_a_probe_registered_memory_is_explained_by_the_page(host: SyntheticHost) -> None:
    pid = cuda(host, zero(GIB, 1))
    found, one = look(host, pid, registered(pid, 3 * GIB - 1))
    assert (one.registered_bytes, one.registrations) == (3 * GIB - 1, 1)
    assert "registered_bytes" not in one.missing | one.estimates
    assert found.host.explained_bytes == 4 * GIB
    assert found.host.other_pinned_bytes == 21 * GIB
    assert "explained_bytes" not in found.host.estimates
    assert found.probe is not None
    assert (found.probe.since, found.probe.lost_events, len(found.probe.libraries)) == (LONG_AGO, 0, 1)


@pytest.mark.parametrize(
    ("changes", "bound"),
    [
        ({}, None),
        ({"from_start": False}, "at least: what it took"),
        ({"host_pools": 1}, "at least: a pool"),
        ({"imported": True}, "at least: it imported"),
        ({"unread_handles": True}, "about: the handle"),
        ({"dropped_pieces": 1}, "at least: not all"),
        ({"context_ended_at": NOW + timedelta(seconds=1)}, "at most: it has ended"),
        ({"context_ended_at": NOW + timedelta(seconds=1), "host_pools": 1}, "about: it has ended"),
        ({"context_ended_at": NOW - timedelta(seconds=1)}, None),
    ],
)
def test_of_the_drivers_host_memory_the_probe_knows_what_was_asked_for_and_its_bound(
    changes: Mapping[str, object], bound: str | None
) -> None:
    piece = Piece(kind="write_combined", address=0x1000, bytes=5000, flags=4, since=NOW, seconds=0.1)
    account = registered(7, 0, driver_memory_bytes=5000, pieces=(piece,), **changes)
    found = registered_by(7, True, NOW, Registrations(LONG_AGO, {7: account}))
    assert found.driver_memory == Answer(5000)
    known = found.driver_estimate
    assert known is None if bound is None else known is not None and known.text.startswith(bound)


def test_without_a_probe_or_in_another_copy_of_the_library_the_drivers_host_memory_is_not_known_from_calls() -> None:
    assert registered_by(7, True, NOW, None).driver_memory == Answer.missing(CALLS_NOT_FOLLOWED)
    other = Registrations(LONG_AGO, {}, not_followed={7: "another copy"})
    assert registered_by(7, True, NOW, other).driver_memory == Answer.missing("another copy")
    assert registered_by(7, False, NOW, Registrations(LONG_AGO, {})).driver_memory == Answer(0)


def test_the_same_memory_registered_by_two_counts_twice_as_the_kernel_counts_it(host: SyntheticHost) -> None:
    one, other = cuda(host), cuda(host)
    found, _ = look(host, one, registered(one, 8 * GIB), registered(other, 8 * GIB))
    assert found.host.explained_bytes == 16 * GIB
    assert found.host.other_pinned_bytes == 9 * GIB


def test_page_tables_hold_registered_memory_too_and_the_note_says_so(host: SyntheticHost) -> None:
    pid = cuda(host, zero(GIB, 1))
    found, one = look(host, pid, registered(pid, 3 * GIB))
    (use,) = one.gpus
    assert use.page_table_bytes == found.devices[0].page_table_bytes == 8 * MIB
    for note in (use.estimates["page_table_bytes"], found.devices[0].estimates["page_table_bytes"]):
        assert "cudaHostAlloc and registered memory" in note.why
        assert "comes on top" not in note.why


def test_holders_are_ordered_by_registered_memory_too(host: SyntheticHost) -> None:
    small, large = cuda(host, zero(GIB, 1)), cuda(host)
    found, _ = look(host, small, registered(large, 2 * GIB))
    assert [one.pid for one in found.holders] == [large, small]


def test_a_process_that_never_called_has_registered_nothing(host: SyntheticHost) -> None:
    pid = cuda(host)
    _, one = look(host, pid)
    assert (one.registered_bytes, one.registrations) == (0, 0)
    assert "registered_bytes" not in one.estimates


@pytest.mark.parametrize("called", [True, False])
def test_of_a_process_older_than_the_probe_it_is_at_least_so_much(host: SyntheticHost, called: bool) -> None:
    pid = cuda(host)
    accounts = [registered(pid, GIB, from_start=False)] if called else []
    found, one = look(host, pid, *accounts, since=NOW + timedelta(days=1))
    for note in (one.gpus[0].estimates["page_table_bytes"], found.devices[0].estimates["page_table_bytes"]):
        assert "before the probe started is not known" in note.why or "not known exactly" in note.why
    assert one.registered_bytes == (GIB if called else 0)
    assert one.estimates["registered_bytes"].text.startswith("at least")
    assert found.host.estimates["explained_bytes"].text.startswith("at least")


def test_lost_events_left_out_pieces_and_ended_contexts_make_estimates(host: SyntheticHost) -> None:
    pid = cuda(host)
    _, one = look(host, pid, registered(pid, GIB), lost=3)
    assert "too fast" in one.estimates["registered_bytes"].text
    _, one = look(host, pid, registered(pid, GIB, dropped_pieces=1))
    assert one.estimates["registered_bytes"].text.startswith("at least")
    _, one = look(host, pid, registered(pid, GIB, context_ended_at=NOW + timedelta(seconds=1)))
    assert one.estimates["registered_bytes"].text.startswith("at most")
    _, one = look(host, pid, registered(pid, GIB, context_ended_at=NOW - timedelta(seconds=1)))
    assert "registered_bytes" not in one.estimates


@pytest.mark.parametrize(
    ("account", "lost", "begins"),
    [
        ({}, 0, None),
        ({"dropped_pieces": 1}, 0, "at least"),
        ({"context_ended_at": NOW + timedelta(seconds=1)}, 0, "at most"),
        ({"context_ended_at": NOW + timedelta(seconds=1), "from_start": False}, 0, "about"),
        ({"from_start": False}, 3, "about"),
    ],
)
def test_the_sum_of_all_is_no_more_certain_than_its_parts(
    host: SyntheticHost, account: dict[str, object], lost: int, begins: str | None
) -> None:
    pid = cuda(host)
    found, one = look(host, pid, registered(pid, GIB, **account), lost=lost)
    told = found.host.estimates.get("explained_bytes")
    part = one.estimates.get("registered_bytes")
    assert told is None and part is None if begins is None else told is not None and told.text.startswith(begins)
    assert part is None or (told is not None and part.kind == told.kind)


def test_what_may_be_too_little_and_too_much_is_an_estimate(host: SyntheticHost) -> None:
    one, other = cuda(host), cuda(host)
    ended = registered(other, GIB, context_ended_at=NOW + timedelta(seconds=1))
    found, _ = look(host, one, registered(one, GIB, dropped_pieces=1), ended)
    assert found.host.estimates["explained_bytes"].text.startswith("about")


def test_the_oldest_pieces_are_shown_and_no_more_than_ten(host: SyntheticHost) -> None:
    pid = cuda(host)
    (piece,) = registered(pid, GIB).pieces
    many = tuple(piece.model_copy(update={"address": number}) for number in range(25))
    _, one = look(host, pid, registered(pid, GIB, pieces=many))
    assert [each.address for each in one.oldest_pieces] == list(range(10))


def test_a_probe_that_broke_off_is_told_and_its_figures_are_missing(host: SyntheticHost) -> None:
    pid = cuda(host)
    gpus = figures(host.proc, [busy_h200(50 * MIB, ProcessOnGpu(pid, MIB))])
    found = snapshot(host.proc, gpus, registrations=Registrations(LONG_AGO, {}, trouble="it broke off"))
    (one,) = found.holders
    for note in (one.gpus[0].estimates["page_table_bytes"], found.devices[0].estimates["page_table_bytes"]):
        assert "registered memory comes on top" in note.why
    assert (one.pid, one.registered_bytes, one.missing["registered_bytes"]) == (pid, None, "it broke off")
    assert found.probe is not None
    assert found.probe.trouble == "it broke off"
    assert "it broke off" in [gap.reason for gap in found.unreadable]


def test_a_copy_of_the_library_that_is_not_followed_is_told(host: SyntheticHost) -> None:
    odd = ProbedLibrary(path="/odd/libcuda.so.1", reason="its file system does not take probes")
    found = snapshot(host.proc, registrations=Registrations(LONG_AGO, {}, libraries=(odd,)))
    assert any("/odd/libcuda.so.1" in gap.what and gap.reason == odd.reason for gap in found.unreadable)


def test_what_a_process_with_an_unfollowed_copy_registered_is_missing_and_not_nothing(host: SyntheticHost) -> None:
    pid, other = cuda(host, zero(GIB, 1)), cuda(host)
    told = Registrations(LONG_AGO, {other: registered(other, GIB)}, not_followed={pid: "why not", other: "why not"})
    found = snapshot(host.proc, figures(host.proc, [busy_h200(50 * MIB, ProcessOnGpu(pid, MIB))]), registrations=told)
    one, partly = (next(each for each in found.holders if each.pid == number) for number in (pid, other))
    assert (one.registered_bytes, one.registrations) == (None, None)
    assert one.missing["registered_bytes"] == one.missing["registrations"] == "why not"
    assert "registered memory comes on top" in one.gpus[0].estimates["page_table_bytes"].text
    assert partly.registered_bytes == GIB
    assert partly.estimates["registered_bytes"].text.startswith("at least")
    assert found.host.estimates["explained_bytes"].text.startswith("at least")


def test_processes_whose_copy_nobody_could_look_at_are_told(host: SyntheticHost) -> None:
    odd = ProbedLibrary(path="/odd/libcuda.so.1", reason="why not")
    told = Registrations(LONG_AGO, {}, libraries=(odd,), not_followed={7: "too many", 5: "too many", 9: "why not"})
    gaps = {gap.what: gap.reason for gap in snapshot(host.proc, registrations=told).unreadable}
    assert gaps["Registered memory of 2 processes (pid 5, 7)"] == "too many"
    assert gaps["Registered memory of programs that use /odd/libcuda.so.1"] == "why not"


def test_more_than_is_pinned_is_said_to_be_so(host: SyntheticHost) -> None:
    pid = cuda(host)
    found, _ = look(host, pid, registered(pid, 26 * GIB))
    assert found.host.other_pinned_bytes is None
    assert "not pinned" in found.host.missing["other_pinned_bytes"]


def test_a_snapshot_with_a_probe_survives_json(host: SyntheticHost) -> None:
    pid = cuda(host)
    found, _ = look(host, pid, registered(pid, GIB))
    assert Snapshot.model_validate_json(found.model_dump_json()) == found


def test_driver_memory_that_is_mapped_nowhere_is_known_from_the_probe_and_never_less_than_is_mapped(
    host: SyntheticHost,
) -> None:
    pid = host.cuda_process([*context(), named(64 * MIB, "/dev/nvidiactl")], started=100, VmSize=30 * GIB)
    for taken, shown in ((GIB, GIB), (MIB, 64 * MIB)):
        account = registered(pid, GIB, driver_memory_bytes=taken, host_pools=1)
        _, one = look(host, pid, account)
        assert one.driver_memory_bytes == shown
        assert ("driver_memory_bytes" in one.estimates) == (taken == shown)
