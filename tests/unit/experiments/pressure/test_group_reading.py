"""The arithmetic of a filled group: what is pinned step by step, where others suffer, and what is concluded of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest

from pinscope.experiments.pressure.experiment import PressureObservation, amounts
from pinscope.experiments.pressure.reading import Climb, courses, round_seconds
from pinscope.experiments.registry import read_run
from pinscope.records.run import Reading
from tests.data import synthetic
from tests.data.readings import As

draw = As("pressure").draw

MIB = 2**20
LIMIT, FILE, STEP = 1024 * MIB, 128 * MIB, 32 * MIB
USED = 300 * MIB
"""In the group before anything is pinned: the file, 128 MiB of memory, and the processes."""
CLIFF, KILL = LIMIT - USED, LIMIT - USED + FILE
FAST, DISK = 10e9, 1e9
"""Bytes/second of a file in the page cache, and of the disk."""


def row(kind: str, **values: Any) -> dict[str, Any]:
    common = {
        "repeat": 0,
        "warmup": False,
        "swap": False,
        "limit_bytes": LIMIT,
        "phase": "before",
        "step": 0,
        "bytes": 0,
    }
    return PressureObservation.model_validate(common | {"kind": kind} | values).model_dump()


def at(phase: str, step: int, pinned: int, **inside: Any) -> list[dict[str, Any]]:
    """A step: three rounds of each, and the group's account; beyond the cliff the file comes from the disk."""
    place = {"phase": phase, "step": step, "bytes": pinned}
    lost = pinned > CLIFF
    work = {"write_seconds": 0.01, "major_faults": 0, "file_bytes": FILE, "read_bytes": FILE}
    fast = {"read_seconds": FILE / FAST, "file_cached_bytes": FILE}
    slow = {"read_seconds": FILE / DISK, "file_cached_bytes": max(FILE - (pinned - CLIFF), 0)}
    rounds = [row("round", **place, who="inside", **(work | (slow if lost else fast) | inside))] * 3
    rounds += [row("round", **place, who="outside", **work, **fast)] * 3
    cache = FILE if not lost else max(FILE - (pinned - CLIFF), 0)
    account = {"used_bytes": USED - FILE + pinned + cache, "cache_bytes": cache, "swap_bytes": 0, "kills": 0}
    return [*rounds, row("group", **place, **account)]


def ended(how: str, pinned: int, step: int = 99, **values: Any) -> list[dict[str, Any]]:
    """The last step: nobody is there any more who could say how long a round takes."""
    place = {"phase": "held", "step": step, "bytes": pinned}
    victim = "ordinary" if how == "killed" else None
    return [row("group", **place, ended=how, victim=victim, kills=int(how == "killed"), **values)]


def filled(how: str = "killed") -> list[dict[str, Any]]:
    """A group filled as memory's arithmetic has it."""
    found = at("before", 0, 0)
    for number, pinned in enumerate(amounts(LIMIT, USED, STEP), 1):
        if pinned > KILL:
            return [*found, *ended(how, pinned, number), row("group", phase="after", gone=True)]
        found += at("held", number, pinned)
    return found


def only(rows: Sequence[Mapping[str, Any]]) -> Climb:
    (climb,) = courses(rows)
    assert isinstance(climb, Climb)
    return climb


def reading(rows: list[dict[str, Any]]) -> Reading:
    return read_run(synthetic.run("pressure"), rows)


def test_three_large_steps_are_followed_by_small_ones_up_to_the_limit() -> None:
    found = list(amounts(LIMIT, USED, STEP))
    assert found[:3] == [(LIMIT - USED) // 4 * turn for turn in (1, 2, 3)]
    assert {later - one for one, later in pairwise(found[2:])} == {STEP}
    assert LIMIT - STEP < found[-1] <= LIMIT
    assert next(amounts(LIMIT, LIMIT, STEP)) == STEP  # a group that is full already


def test_a_file_that_was_read_in_part_counts_as_if_read_whole() -> None:
    part: Mapping[str, Any] = {"read_bytes": FILE // 4, "file_bytes": FILE, "read_seconds": 0.1, "write_seconds": 0.5}
    assert round_seconds(part) == pytest.approx(0.9)


def test_what_comes_and_goes_is_no_mark() -> None:
    rows = at("before", 0, 0) + at("held", 1, STEP, read_seconds=9.0) + at("held", 2, 2 * STEP)
    assert only(rows).marks == []
    assert reading(rows).verdict is None


def test_swapping_and_stalls_are_marks() -> None:
    rows = at("before", 0, 0) + at("held", 1, STEP)
    rows[-1] |= {"swap_bytes": LIMIT // 50, "stalled_share": 0.3}
    assert {mark.kind for mark in only(rows).marks} == {"swapped", "stalled"}


def filled_with_swap() -> list[dict[str, Any]]:
    """As :func:`filled`, but beyond the cliff memory of others is swapped out too, and the kill comes later."""
    rows = [row | {"swap": True} for row in filled()[:-2]]
    for row_of in rows:
        if row_of["kind"] == "group" and row_of["bytes"] > CLIFF:
            row_of["swap_bytes"] = min(row_of["bytes"] - CLIFF, 128 * MIB)
    last = [row | {"swap": True} for row in ended("killed", LIMIT - 32 * MIB)]
    return [*rows, *last, row("group", phase="after", gone=True, swap=True)]


def test_a_group_with_swap_is_said_to_have_it_and_no_amount_is_expected_where_it_ends() -> None:
    climb = only(filled_with_swap())
    assert "swapped" in {mark.kind for mark in climb.marks}
    assert (climb.expected_cliff, climb.expected_kill) == (CLIFF, None)
    said = {finding.rule: finding for finding in reading(filled_with_swap()).findings}
    assert all(finding.title.endswith("(memory could be swapped out)") for finding in said.values())
    assert set(said) == {"cliff", "killed"}
    expected = {figure.name: figure for figure in said["killed"].evidence}["Expected by the group's account"]
    assert (expected.value, expected.reason) == (None, "what others hold may be swapped out")
    assert not any("swapped out" in finding.title for finding in reading(filled()).findings)


def rules(rows: list[dict[str, Any]]) -> dict[str, str]:
    return {finding.rule: finding.severity for finding in reading(rows).findings}


def test_each_conclusion_is_a_finding() -> None:
    assert rules(filled()) == {"killed": "warning", "cliff": "warning"}
    assert rules(filled("refused")) == {"refused": "note", "cliff": "warning"}


def test_a_process_outside_that_takes_more_than_a_twentieth_longer_beyond_the_cliff_is_a_finding() -> None:
    def outside(times: float) -> list[dict[str, Any]]:
        slow = [row for row in filled() if row["who"] == "outside" and row["bytes"] > CLIFF]
        longer = {"write_seconds": slow[0]["write_seconds"] + (times - 1) * round_seconds(slow[0])}
        return [row | longer if row in slow else row for row in filled()]

    assert rules(outside(1.06))["outside-slower"] == "warning"
    assert "outside-slower" not in rules(outside(1.04))
    after = [row("round", phase="after", who="outside", write_seconds=0.12)] * 3
    assert "outside-slower" not in rules(outside(1.06) + after)  # it stays so without the group


def test_a_cliff_is_where_others_are_left_less_than_they_used_whatever_the_size_of_the_group() -> None:
    assert only(filled()).needed_bytes == USED
    assert "300 MiB" in (reading(filled()).verdict or "")
    elsewhere = [row | {"used_bytes": USED // 4} if row["phase"] == "before" else row for row in filled()]
    assert only(elsewhere).needed_bytes is None
    titles = [finding.title for finding in reading(elsewhere).findings if finding.rule == "cliff"]
    assert "% of its limit pinned on" in titles[0]


def test_a_run_that_goes_on_is_read_as_far_as_it_is() -> None:
    whole = filled()
    for count in range(0, len(whole), 5):
        found = reading(whole[:count])
        assert all(quantity.value is not None or quantity.reason for quantity in found.headline)


# Its charts


def test_groups_with_and_without_swap_have_charts_of_their_own() -> None:
    with_swap = [row | {"swap": True} for row in filled()]
    keys = [chart.key for chart in draw(synthetic.run("pressure"), filled() + with_swap)]
    assert keys == ["pressure-rounds", "pressure-group", "pressure-rounds-swap", "pressure-group-swap"]


def test_nothing_is_drawn_before_the_first_step() -> None:
    assert draw(synthetic.run("pressure"), []) == []
    assert draw(synthetic.run("pressure"), at("before", 0, 0)) == []
