"""Rows of a timeline: what is kept of each snapshot, and that nothing is kept twice."""

from __future__ import annotations

from typing import Any

import pytest

from pinscope.live.series import Moment, NewRow, TimelineRows
from pinscope.records.snapshot import Snapshot
from pinscope.store.documents import checked
from tests.data.synthetic_snapshot import GIB, MIB, device, holder, host, link, snapshot


def taken(*holders: Any, **changes: Any) -> Snapshot:
    return snapshot(holders=holders, devices=changes.pop("devices", ()), **changes)


def keep(*snapshots: Snapshot, **options: Any) -> list[list[NewRow]]:
    """The rows of each snapshot."""
    rows = TimelineRows(**options)
    return [rows.of(one, Moment(number, float(number)), 0.25 * number) for number, one in enumerate(snapshots)]


def kinds(rows: list[NewRow]) -> list[str]:
    return [row["kind"] for row in rows]


def test_each_sample_has_the_totals_and_says_why_some_are_missing() -> None:
    ((row, *_),) = keep(taken(host=host(pinned_bytes=None, missing={"pinned_bytes": "needs Linux 5.7\nor newer"})))
    assert (row["repeat"], row["warmup"], row["elapsed_seconds"]) == (0, False, 0.0)
    assert row["taken_at"] == "2026-01-02T03:04:05Z"
    assert (row["total_bytes"], row["pinned_bytes"], row["other_pinned_bytes"]) == (512 * GIB, None, 0)
    assert row["missing"].splitlines() == ["pinned_bytes: needs Linux 5.7 or newer", "devices: the driver shows no GPU"]
    assert (row["snapshot_cpu_seconds"], row["watch_cpu_seconds"]) == (0.004, 0.0)


def test_a_holder_has_a_row_when_it_is_first_seen_when_it_changes_and_when_it_is_gone() -> None:
    rows = keep(
        taken(holder(1)), taken(holder(1)), taken(holder(1, host_alloc_bytes=20 * GIB)), taken(), taken(),
    )  # fmt: skip
    assert [kinds(one) for one in rows] == [
        ["host", "holder"], ["host"], ["host", "holder", "event"], ["host", "holder", "event"], ["host"],
    ]  # fmt: skip
    first, changed, gone = (row for sample in rows for row in sample if row["kind"] == "holder")
    assert (first["host_alloc_bytes"], changed["host_alloc_bytes"], gone["host_alloc_bytes"]) == (
        16 * GIB, 20 * GIB, 0,
    )  # fmt: skip
    assert [row["gone"] for row in (first, changed, gone)] == [False, False, True]
    assert {(row["pid"], row["name"], row["user"]) for row in (first, changed, gone)} == {(1, "python", "ada")}
    grew, ended = (row for sample in rows for row in sample if row["kind"] == "event")
    assert (grew["event"], grew["what"], grew["change_bytes"], grew["bytes"]) == (
        "grew", "host_alloc", 4 * GIB, 20 * GIB,
    )  # fmt: skip
    assert (ended["event"], ended["change_bytes"], ended["bytes"]) == ("ended", -20 * GIB, 0)


def test_while_nobody_can_look_at_the_processes_no_holder_is_gone() -> None:
    blind = taken(host=host(explained_bytes=None, other_pinned_bytes=None))
    rows = keep(taken(holder(1)), blind, taken(holder(1)))
    assert [kinds(one) for one in rows] == [["host", "holder"], ["host"], ["host"]]


def test_only_the_processes_asked_for_are_kept_and_the_totals_are_the_hosts() -> None:
    first, second = keep(
        taken(holder(1), holder(2)), taken(holder(1, locked_bytes=MIB), holder(2, locked_bytes=MIB)), pids={2}
    )
    assert [row["pid"] for row in (*first, *second) if row["kind"] in ("holder", "event")] == [2, 2, 2]
    assert (first[0]["pinned_bytes"], first[0]["holders"]) == (16 * GIB, 1)


def test_a_gpu_is_kept_with_its_link_and_with_what_it_does_not_tell() -> None:
    silent = device(1, rx_bytes_per_second=None, link=None, missing={"rx_bytes_per_second": "not supported"})
    ((_, one, other),) = keep(taken(devices=(device(0, link=link(generation_now=1)), silent)))
    assert (one["device"], one["unattributed_bytes"], one["tx_bytes_per_second"]) == (0, 40 * MIB, 0.0)
    assert (one["link_generation"], one["link_generation_max"], one["link_width"]) == (1, 5, 16)
    assert one["link_limit_bytes_per_second"] == pytest.approx(57.6e9)
    assert (other["rx_bytes_per_second"], other["link_width"]) == (None, None)
    assert other["missing"] == "rx_bytes_per_second: not supported"


def test_a_snapshot_that_cannot_be_kept_is_as_if_it_had_not_been_taken() -> None:
    """A figure that is no number: the next snapshot is compared with the last one that was kept."""
    rows = TimelineRows()
    rows.of(taken(holder(1)), Moment(0, 0.0), 0.0)
    with pytest.raises(ValueError, match="watch_cpu_seconds"):
        rows.of(taken(holder(1, host_alloc_bytes=20 * GIB)), Moment(1, 1.0), float("nan"))
    assert kinds(rows.of(taken(holder(1, host_alloc_bytes=20 * GIB)), Moment(2, 2.0), 0.0)) == [
        "host", "holder", "event",
    ]  # fmt: skip


def test_whatever_a_process_calls_itself_can_be_stored() -> None:
    named = holder(1, name="py\udcffthon", user="<b>")
    for sample in keep(taken(named), taken()):
        list(checked(sample))
    ((_, row),) = keep(taken(named))
    assert row["name"] == "py?thon"
