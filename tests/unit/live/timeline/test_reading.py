"""What a timeline tells: headline, tables and findings, from its rows alone."""

from __future__ import annotations

from typing import Any

import pytest

from pinscope.experiments.registry import read_run
from pinscope.live.series import Moment, TimelineRows
from pinscope.live.timeline.reading import MOST_HOLDERS
from pinscope.records.run import Finding, Quantity, Reading, Table
from pinscope.units import format_bytes
from tests.data import synthetic_timeline
from tests.data.synthetic_snapshot import GIB, MIB, device, holder, host, link, snapshot
from tests.data.synthetic_timeline import run, watched


def reading(rows: list[dict[str, Any]], **params: Any) -> Reading:
    made = run()
    return read_run(made.model_copy(update={"params": {**made.params, **params}}), rows)


def headline(found: Reading, begins: str) -> Quantity:
    (one,) = [quantity for quantity in found.headline if quantity.name.startswith(begins)]
    return one


def finding(found: Reading, rule: str) -> Finding:
    (one,) = [one for one in found.findings if one.rule == rule]
    return one


def rules(found: Reading) -> list[str]:
    return [one.rule for one in found.findings]


def evidence(one: Finding) -> dict[str, Any]:
    return {quantity.name: quantity.value for quantity in one.evidence}


def table(found: Reading, title: str) -> Table:
    (one,) = [one for one in found.tables if one.title == title]
    return one


def row(one: Table, first: str) -> dict[str, Any]:
    (cells,) = [cells for cells in one.rows if cells[0] == first]
    return dict(zip(one.columns, cells, strict=True))


# Headline


def test_what_is_not_known_says_why() -> None:
    rows = synthetic_timeline.rows_of(
        [snapshot(host=host(pinned_bytes=None, missing={"pinned_bytes": "needs Linux 5.7"}), devices=(), holders=())]
    )
    assert {one.key: one.reason for one in reading(rows).headline if one.value is None} == {
        "most_pinned": "needs Linux 5.7", "pinned_at_end": "needs Linux 5.7", "grew_most": "no process held any",
        "grew_most_process": "no process held any", "least_left": "it was not reported",
        "most_uncharged": "the driver shows no GPU",
    }  # fmt: skip


def test_the_gpu_with_the_most_memory_of_no_process_is_named_and_a_mute_one_says_why() -> None:
    found = reading(watched(3, devices=lambda n: (device(0), device(1, unattributed_bytes=(50 + n) * MIB))))
    assert table(found, "Highs and lows").rows[-1][1:] == ("GPU 1", 52 * MIB, 2.0)
    mute = device(unattributed_bytes=None, missing={"unattributed_bytes": "no account of processes"})
    assert headline(reading(watched(2, devices=lambda n: (mute,))), "Most GPU memory").reason == (
        "no account of processes"
    )


# Tables


def test_more_holders_than_a_table_shows_are_counted() -> None:
    crowd = tuple(holder(pid) for pid in range(1, MOST_HOLDERS + 11))
    holders = table(reading(watched(2, holders=lambda n: crowd)), "Holders")
    assert len(holders.rows) == MOST_HOLDERS
    assert "10 with less are left out" in holders.note


# Findings


def test_driver_memory_of_holders_is_named_and_no_part_of_what_is_pinned() -> None:
    rows = watched(
        60, holders=lambda n: (holder(7, host_alloc_bytes=0, driver_memory_bytes=(n == 9) * 200 * GIB),),
        pinned_bytes=lambda n: 50 * GIB,
    )  # fmt: skip
    assert "pinned-share-of-ram" not in rules(reading(rows))
    one = finding(reading(rows), "driver-memory")
    assert one.title == "At their peak holders had 200 GiB of driver memory, which the count of pins lacks"
    assert "after 9.00 s" in one.detail
    assert evidence(one) == {"Most driver memory of python (pid 7)": 200 * GIB}
    rows = watched(60, holders=lambda n: (holder(7, driver_memory_bytes=GIB - 1),), pinned_bytes=lambda n: 200 * GIB)
    assert "driver-memory" not in rules(reading(rows))
    assert (
        finding(reading(rows), "pinned-share-of-ram").title
        == "At its peak up to 39.1 % of this host's memory was pinned"
    )


def test_a_holder_that_takes_more_and_more_is_suspected_of_a_leak() -> None:
    found = reading(synthetic_timeline.growing())
    one = finding(found, "leak-suspected")
    assert one.severity == "warning"
    assert one.title == f"leaky (pid 1) took {format_bytes(59 * 8 * MIB)} in 59 steps and gave nothing back"
    told = evidence(one)
    assert told["Before these steps"] == GIB
    assert told["Taken in them, less what was given back"] == 59 * 8 * MIB
    assert told["On average in a minute"] == pytest.approx(60 * 8 * MIB)
    assert told["Available on the host at the end"] == 400 * GIB - 59 * 8 * MIB
    assert told["At that pace all of it is taken in"] == pytest.approx((400 * GIB - 59 * 8 * MIB) / (8 * MIB))
    assert "--pid 1" in one.advice
    assert "no-leak-seen" not in rules(found)


@pytest.mark.parametrize(
    ("amount", "grown", "why"),
    [
        (lambda n: 8 * GIB + (n % 10) * 64 * MIB, "576 MiB", "it gave back more than 5.0 % of what it took"),
        (lambda n: (1 if n < 20 else 9) * GIB, "8 GiB", "it grew in fewer than 4 steps"),
    ],
    ids=["sawtooth", "single step"],
)
def test_who_gives_back_or_takes_all_at_once_grew_but_is_not_suspected(amount: Any, grown: str, why: str) -> None:
    found = reading(watched(60, holders=lambda n: (holder(host_alloc_bytes=amount(n)),)))
    assert rules(found) == ["no-leak-seen"]
    one = finding(found, "no-leak-seen")
    assert one.severity == "note"
    assert one.title == (
        f"python (pid 4711) pinned {grown} more and kept it, but not in steady steps (watched for 59.0 s)"
    )
    assert why in one.detail
    assert "Nothing to do" not in one.advice


CLOSED = holder(2, user="root", host_alloc_bytes=None, missing={"host_alloc_bytes": "permission denied"})


def test_what_may_be_well_is_no_finding() -> None:
    for rows in [
        watched(60, holders=lambda n: (holder(host_alloc_bytes=(9 if 20 < n < 50 else 1) * GIB),)),
        watched(60, holders=lambda n: (holder(host_alloc_bytes=GIB + n * 64 * MIB * (n < 50)),) if n < 58 else ()),
        watched(20, holders=lambda n: (holder(host_alloc_bytes=n * GIB),)),
        watched(60, holders=lambda n: (holder(), CLOSED)),
        watched(60, explained_bytes=lambda n: None, other_pinned_bytes=lambda n: None),
        watched(20, devices=lambda n: (device(link=link(generation_now=1 if n < 2 else 5)),)),
        watched(6, other_pinned_bytes=lambda n: 8 * GIB if n in (2, 3) else 0),
    ]:  # fmt: skip
        assert rules(reading(rows)) == []


def test_who_grew_until_it_was_killed_is_suspected_too() -> None:
    rows = watched(120, holders=lambda n: (holder(7, host_alloc_bytes=(n + 1) * GIB),) if n < 100 else ())
    one = finding(reading(rows), "leak-suspected")
    assert one.title == "python (pid 7) took 99 GiB in 99 steps and gave nothing back until it ended"
    assert evidence(one)["It held before it ended"] == 100 * GIB
    assert evidence(one)["Before these steps"] == GIB
    assert "At that pace all of it is taken in" not in evidence(one)
    assert "was killed" in one.advice
    assert "--pid" not in one.advice
    assert "no-leak-seen" not in rules(reading(rows))


def test_without_enough_samples_nothing_is_said_to_be_well() -> None:
    made, rows = TimelineRows(), []
    for number in range(120):
        moment = Moment(number, float(number))
        rows += made.of(snapshot(devices=()), moment, 0.1) if number == 0 else made.missed("OSError: no", moment)
    assert rules(reading(rows)) == ["samples-missing"]
    assert "no-leak-seen" not in rules(reading(failing(100, lambda n: 40 <= n < 60)))
    assert rules(reading(watched(2, interval_seconds=60.0), interval_seconds=60.0)) == []


def test_memory_that_is_only_locked_is_no_leak_of_pinned_memory() -> None:
    assert rules(reading(watched(60, holders=lambda n: (holder(7, host_alloc_bytes=0, locked_bytes=n * MIB),)))) == []
    both = watched(60, holders=lambda n: (holder(7, registered_bytes=n * MIB, locked_bytes=n * MIB),))
    assert rules(reading(both)) == ["leak-suspected"]


def test_registered_memory_that_grows_shows_in_the_host_total_only() -> None:
    rows = watched(60, other_pinned_bytes=lambda n: n * 8 * MIB, pinned_bytes=lambda n: 16 * GIB + n * 8 * MIB)
    one = finding(reading(rows), "unexplained-pins-grow")
    assert evidence(one)["Taken in them, less what was given back"] == 59 * 8 * MIB


def test_the_peak_share_of_memory_that_was_pinned_is_told() -> None:
    for share, severity in [(0.2, None), (0.3, "note"), (0.6, "warning"), (0.9, "critical")]:
        found = reading(watched(4, pinned_bytes=lambda n, share=share: int(512 * GIB * (share if n == 2 else 0.01))))
        if severity is None:
            assert "pinned-share-of-ram" not in rules(found)
            continue
        one = finding(found, "pinned-share-of-ram")
        assert (one.severity, "after 2.00 s" in one.detail) == (severity, True)
        assert evidence(one)["Samples with 25.0 % or more"] == 0.25


def near_limit(left: float, held: int, **totals: Any) -> Reading:
    """A control group of 64 GiB, from the second sample on with this share left."""
    return reading(
        watched(
            3,
            holders=lambda n: (holder(1, host_alloc_bytes=held // 2), holder(2, host_alloc_bytes=held // 2)),
            cgroup_limit_bytes=lambda n: 64 * GIB,
            cgroup_headroom_bytes=lambda n: int(64 * GIB * (left if n else 0.9)),
            **totals,
        )
    )


@pytest.mark.parametrize(("left", "severity"), [(0.5, None), (0.08, "warning"), (0.01, "critical")])
def test_a_control_group_that_pinned_memory_fills_is_told(left: float, severity: str | None) -> None:
    found = near_limit(left, 40 * GIB)
    told = [one for one in found.findings if one.rule == "near-cgroup-limit"]
    assert [one.severity for one in told] == ([severity] if severity else [])
    assert all(one.advice.startswith("Pin less") for one in told)
    assert [evidence(one)["Pinned or locked by holders then, at most"] for one in told] == [40 * GIB] * len(told)
    assert headline(found, "Least memory left in the control group").value == int(64 * GIB * left)


@pytest.mark.parametrize("pinned", [2 * GIB, 40 * GIB])
def test_a_control_group_that_no_holder_is_known_to_fill_is_no_finding(pinned: int) -> None:
    assert "near-cgroup-limit" not in rules(near_limit(0.01, 2 * GIB, pinned_bytes=lambda n: pinned))


def test_holders_never_have_more_of_a_control_group_than_is_used_of_it() -> None:
    one = finding(near_limit(0.01, 200 * GIB), "near-cgroup-limit")
    assert evidence(one)["Pinned or locked by holders then, at most"] == 64 * GIB - int(0.64 * GIB)


def test_ranks_that_registered_the_same_memory_raise_no_share_of_it() -> None:
    rows = watched(4, pinned_bytes=lambda n: 1600 * GIB, available_bytes=lambda n: 100 * GIB)
    assert "pinned-share-of-ram" not in rules(reading(rows))
    assert max(row["pinned_bytes"] for row in rows if row["kind"] == "host") == 412 * GIB
    for row in rows:  # as PinScope recorded it before
        row.pop("pins_bytes", None)
        row.update({"pinned_bytes": 1600 * GIB} if row["kind"] == "host" else {})
    assert "pinned-share-of-ram" not in rules(reading(rows))
    assert "TiB" not in (reading(rows).verdict or "")


def test_pins_that_no_holder_explains_are_told_with_the_way_to_attribute_them() -> None:
    rows = watched(3, other_pinned_bytes=lambda n: 8 * GIB, pinned_bytes=lambda n: 24 * GIB)
    one = finding(reading(rows), "unexplained-pins")
    assert one.severity == "note"
    assert evidence(one)["Not explained"] == 8 * GIB
    assert "pinscope record --probe" in one.advice
    assert "before the programs" in finding(reading(rows, probe=True), "unexplained-pins").advice
    assert "unexplained-pins" not in rules(reading(watched(3, other_pinned_bytes=lambda n: 63 * MIB)))


def test_fewer_lanes_are_found_always_and_a_lower_generation_of_busy_gpus_only() -> None:
    for changes, told in [
        ({"link": link(generation_now=1), "busy_share": 0.5}, True),
        ({"link": link(width_now=8), "rx_bytes_per_second": 20e9, "busy_share": 0.0}, True),
        ({"link": link(width_now=8), "rx_bytes_per_second": 0.0, "busy_share": 0.0}, True),
        ({"link": link(generation_now=1), "busy_share": 0.0, "rx_bytes_per_second": 0.0}, False),
        ({"link": link(), "busy_share": 1.0}, False),
        ({"link": None, "busy_share": 1.0}, False),
    ]:
        found = reading(watched(5, devices=lambda n, changes=changes: (device(**changes),)))
        assert ("link-below-best" in rules(found)) == told


def failing(samples: int, fail: Any) -> list[dict[str, Any]]:
    made = TimelineRows()
    rows = []
    for number in range(samples):
        moment = Moment(number, float(number))
        rows += made.missed("OSError: no", moment) if fail(number) else made.of(snapshot(devices=()), moment, 0.1)
    return rows


def test_samples_that_are_missing_are_counted_with_their_reason() -> None:
    one = finding(reading(failing(100, lambda n: n in (40, 41))), "samples-missing")
    assert (one.severity, one.title) == ("note", "2 samples are missing")
    assert "OSError: no." in one.detail
    assert evidence(one) == {
        "Missing, of all samples": 0.02, "Times without samples": 1, "The longest": 3.0, "It began after": 39.0,
    }  # fmt: skip
    assert finding(reading(failing(100, lambda n: n % 2 == 1)), "samples-missing").severity == "warning"


def test_a_timeline_without_samples_tells_only_why() -> None:
    found = reading(failing(5, lambda n: True))
    assert (found.headline, found.tables, rules(found)) == ((), (), ["samples-missing"])
