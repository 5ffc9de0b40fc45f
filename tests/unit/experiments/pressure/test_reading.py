"""What a pressure run leads to, on rows that are made up: each finding where it must be, and none from noise."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from typing import Any

import pytest

from pinscope.experiments.pressure.experiment import PressureObservation
from pinscope.experiments.pressure.reading import OnHost, courses
from pinscope.records.run import Finding, Reading
from tests.data import synthetic
from tests.data.readings import As

read_pressure_run = As("pressure").read

GIB = 2**30
FILE = 2**27
STEPS = 4
Change = Callable[[str, int], dict[str, Any]]


def rows(
    process: Change | None = None, host: Change | None = None, steps: int = STEPS, rounds: int = 6, **every: Any
) -> list[dict[str, Any]]:
    """A calm run of ``steps`` GiB; ``process`` and ``host`` change what rounds and readings say at (phase, step)."""
    found: list[dict[str, Any]] = []

    def add(kind: str, phase: str, step: int, pinned: int, seconds: float, **values: Any) -> None:
        changes = {"process": process, "host": host}[kind]
        changed = (changes(phase, step) if changes and values.get("moment") != "begin" else {}) | every
        fields = {
            "repeat": 0, "warmup": False, "kind": kind, "phase": phase, "step": step, "bytes": pinned,
            "target_bytes": STEPS * GIB, "elapsed_seconds": seconds,
        }  # fmt: skip
        found.append(PressureObservation.model_validate(fields | values | changed).model_dump())

    clock = 0.0
    for phase, step in (("before", 0), *(("held", number) for number in range(1, steps + 1)), ("after", 0)):
        pinned = step * GIB
        for moment in ("begin", "end"):
            held = pinned if moment == "end" else max(step - 1, 0) * GIB
            if moment == "end":
                for number in range(rounds):
                    add(
                        "process", phase, step, pinned, clock + number / 10, repeat=number,
                        warmup=phase == "before" and number == 0, fault_pages=100,
                        fault_median_seconds=2e-6 * (1 + 0.05 * number), fault_longest_seconds=1e-4 * (1 + number),
                        file_bytes=FILE, file_cached_bytes=FILE, read_bytes=FILE, read_seconds=0.05,
                    )  # fmt: skip
                clock += 1.0
            add(
                "host", phase, step, held, clock, moment=moment, floor_reached=False,
                available_bytes=20 * GIB - held, free_bytes=10 * GIB, per_cpu_bytes=0, cached_bytes=GIB,
                swap_in_bytes=0, swap_out_bytes=0, memory_some_seconds=0.0, memory_full_seconds=0.0,
                io_some_seconds=5.0, io_full_seconds=4.0,
            )  # fmt: skip
    return found


def stages(found: list[dict[str, Any]]) -> OnHost:
    (run,) = courses(found)
    assert isinstance(run, OnHost)
    return run


def reading(found: list[dict[str, Any]], **limits: int) -> Reading:
    """Of a host with 128 GiB, unless ``limits`` say otherwise."""
    run = synthetic.run("pressure", params={})
    environment = run.environment.model_copy(update={"limits": run.environment.limits.model_copy(update=limits)})
    return read_pressure_run(run.model_copy(update={"environment": environment}), found)


def findings(found: list[dict[str, Any]]) -> dict[str, Finding]:
    return {finding.rule: finding for finding in reading(found).findings}


def at(phase: str, first: int, last: int = STEPS, **values: Any) -> Change:
    """Values of rounds or readings in these steps of a phase."""
    return lambda where, step: values if where == phase and first <= step <= last else {}


def test_the_share_is_that_of_the_control_group_where_it_has_less_than_the_host() -> None:
    calm = reading(rows(), cgroup_limit_bytes=8 * GIB)
    assert (calm.verdict or "").startswith("Pinning 4 GiB (50.0 % of the cgroup)")
    roomy = reading(rows(), cgroup_limit_bytes=2**40)
    assert {figure.name: figure.value for figure in roomy.headline}[
        "Most memory pinned, share of the host's memory"
    ] == 4 / 128


def test_what_others_suffer_is_found_from_the_amount_on_that_brought_it() -> None:
    for suffering, title in [
        ({"process": at("held", 3, fault_median_seconds=9e-6)}, "page faults were at least 1.75 times slower"),
        ({"process": at("held", 3, read_seconds=0.5)}, "reading its file again was at least 1.5 times slower"),
        ({"process": at("held", 3, file_cached_bytes=FILE // 4)}, "5.0 % or more of its file left the page cache"),
        ({"process": at("held", 3, file_cached_bytes=0)}, "5.0 % or more of its file left the page cache"),
        ({"host": at("held", 3, swap_out_bytes=GIB)}, "16 MiB or more were swapped"),
    ]:
        found = findings(rows(**suffering))
        assert set(found) == {"others-suffer", "gone-for-everybody"}
        assert found["others-suffer"].title == f"From 3 GiB pinned on {title}"
        assert found["others-suffer"].severity == "warning"
        assert (reading(rows(**suffering)).verdict or "") == f"Pin less than 3 GiB: with that {title}."


@pytest.mark.parametrize(
    "noise",
    [
        at("held", 2, 2, fault_median_seconds=9e-6),  # one step alone
        at("held", 3, fault_median_seconds=3.5e-6),  # too little
        at("held", 2, 2, file_cached_bytes=FILE - 4096),  # a page
    ],
)
def test_what_comes_and_goes_is_no_finding(noise: Change) -> None:
    assert set(findings(rows(noise))) == {"gone-for-everybody"}


def test_one_noisy_round_before_pinning_raises_the_bar() -> None:
    calm = rows(at("held", 3, fault_median_seconds=9e-6))
    rounds = [row for row in calm if row["phase"] == "before" and row["kind"] == "process"]
    rounds[3]["fault_median_seconds"] = 10e-6
    assert "others-suffer" not in findings(calm)


def test_what_stays_slow_without_the_memory_is_not_blamed_on_it() -> None:
    def slow(phase: str, step: int) -> dict[str, Any]:
        return {"fault_median_seconds": 9e-6} if phase == "after" or step > 2 else {}

    assert set(findings(rows(slow))) == {"gone-for-everybody"}
    assert " after freeing." in (reading(rows(slow)).verdict or "")


def faults(*seconds: float) -> Change:
    """In turn, from the third step on."""
    turn = cycle(seconds)
    return lambda phase, step: {"fault_median_seconds": next(turn)} if phase == "held" and step > 2 else {}


@pytest.mark.parametrize(
    ("slow", "after", "words"),
    [
        (faults(9e-6), {}, "Pin less than 3 GiB: with that page faults were at least 1.75 times slower."),
        (faults(4e-6), {}, " made page faults up to "),
        (faults(1e-6, 9e-6, 30e-6), {}, "vary too much to tell whether it slows them."),
        (faults(4e-6), {"fault_median_seconds": 3.9e-6}, "is not why page faults slowed"),
    ],
)
def test_pinning_is_said_to_slow_page_faults_only_where_that_is_known(
    slow: Change, after: dict[str, Any], words: str
) -> None:
    def change(phase: str, step: int) -> dict[str, Any]:
        return after if phase == "after" else slow(phase, step)

    assert words in (reading(rows(change, rounds=9)).verdict or "")


def test_how_long_a_page_fault_took_is_said_only_where_it_is_known() -> None:
    cold = at("held", 3, file_cached_bytes=0)
    wild = faults(1e-6, 9e-6, 30e-6)
    for times, is_said in ((faults(3e-6), True), (wild, False)):
        found = findings(rows(lambda phase, step, times=times: cold(phase, step) | times(phase, step), rounds=9))
        assert ("A page fault of an ordinary process took" in found["others-suffer"].detail) == is_said


def test_memory_that_others_took_is_not_blamed_on_pinning() -> None:
    taken = reading(rows(host=at("held", 3, available_bytes=10 * GIB)))
    assert "gone-for-everybody" not in {finding.rule for finding in taken.findings}
    assert taken.headline[0].reason == "other programs took or gave back memory meanwhile"
    lingering = findings(rows(host=at("after", 0, available_bytes=18 * GIB)))
    assert "only 50.0 % of what went was back" in lingering["gone-for-everybody"].detail


def test_what_waits_on_a_processors_list_is_back() -> None:
    lingering = at("after", 0, available_bytes=18 * GIB, per_cpu_bytes=2 * GIB)
    found = stages(rows(host=lingering))
    assert found.returned_share == 1.0
    assert stages(rows(host=at("held", 4, available_bytes=15 * GIB, per_cpu_bytes=GIB))).lost_per_byte == 1.0


def test_what_is_not_told_is_missing_with_a_reason_and_never_zero() -> None:
    nothing = {
        "file_bytes": None, "file_cached_bytes": None, "read_bytes": None, "read_seconds": None,
        "memory_some_seconds": None, "memory_full_seconds": None, "io_some_seconds": None, "io_full_seconds": None,
        "swap_in_bytes": None, "swap_out_bytes": None, "cached_bytes": None, "free_bytes": None,
        "per_cpu_bytes": None,
    }  # fmt: skip
    result = reading(rows(**nothing))
    missing = {figure.name: figure.reason for figure in result.headline if figure.value is None}
    assert missing == {
        "Least share of the test file in the page cache": "no file could be made; the notes say why",
        "Longest stall for memory, share of a step's time": "this kernel does not report it; the notes say why",
    }
    assert {finding.rule for finding in result.findings} == {"gone-for-everybody"}


def test_a_run_that_goes_on_reads_as_far_as_it_is() -> None:
    for count in [0, 1, 5, 7, 12, 20, 40, 48]:
        result = reading(rows()[:count])
        assert all(figure.value is not None or figure.reason for figure in result.headline)
        if count == 12:  # in the midst of the first step
            assert {figure.reason for figure in result.headline if figure.value is None} == {
                "too few steps", "no step has ended yet"
            }  # fmt: skip


def test_prices_and_returns_need_what_they_compare() -> None:
    calm = stages(rows())
    assert calm.lost_per_byte == pytest.approx(1.0)
    assert calm.returned_share == 1.0
    assert stages(rows(steps=1)).lost_per_byte == pytest.approx(1.0)  # two points: their difference
    only_before = stages([row for row in rows() if row["phase"] == "before"])
    assert only_before.lost_per_byte is None
    assert only_before.returned_share is None
    assert only_before.marks == []


def test_what_was_not_told_is_not_drawn_and_a_run_that_goes_on_as_far_as_it_is() -> None:
    run, draw = synthetic.run("pressure", "host", params={"floor": GIB}), As("pressure").draw
    no_file = dict.fromkeys(("file_bytes", "file_cached_bytes", "read_bytes", "read_seconds"))
    assert [note.text for note in draw(run, rows(**no_file))[0].figure.layout.annotations] == ["Page fault"]
    capped = draw(run, rows(cgroup_headroom_bytes=FILE))[1]
    assert "left in the control group" in {trace.name for trace in capped.figure.data}
    assert draw(run, rows()[:1]) == draw(run, []) == []
    assert [chart.key for chart in draw(run, rows()[:-1])] == ["pressure-felt", "pressure-memory"]
