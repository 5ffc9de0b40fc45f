"""Which way is fastest, from how many uses one pays, and what is said of it: of rows made up for it."""

from __future__ import annotations

from typing import Any

from pinscope.experiments.staging.findings import code
from pinscope.experiments.staging.reading import Staging, of
from pinscope.records.run import Finding
from tests.data import synthetic
from tests.data.readings import As, Made

draw = As("staging").draw
MADE = Made("staging")
reading, rules = MADE.reading, MADE.findings

MIB = 2**20
SIZE = 256 * MIB


def rows(way: str, seconds: float, cpu: float = 0.0, **more: Any) -> list[dict[str, Any]]:
    """A first use and eight repeats; ``cpu``: seconds of processor time of one."""
    row = {
        "way": way, "bytes": SIZE, "threads": 1, "chunk": None, "uses": 1, "wall_seconds": seconds,
        "prepare_seconds": 0.0, "finish_seconds": 0.0, "cpu_seconds": cpu, "thread_cpu_seconds": cpu,
        "wrong_words": 0, "setup_seconds": None, **more,
    }  # fmt: skip
    first = row | {"repeat": 0, "warmup": True, "setup_seconds": 0.5, "wall_seconds": 2 * seconds}
    return [first, *(row | {"repeat": repeat, "warmup": False} for repeat in range(8))]


MEASURED = [
    *rows("plain", 0.040, 0.040), *rows("plain", 0.320, 0.320, uses=8),
    *rows("pin_then_copy", 0.200, 0.2, prepare_seconds=0.155, finish_seconds=0.040),
    *rows("pin_then_copy", 0.235, 0.2, prepare_seconds=0.155, finish_seconds=0.040, uses=8),
    *rows("register", 0.022, 0.016, prepare_seconds=0.012, finish_seconds=0.005),
    *rows("two_buffers", 0.0101, 0.060, threads=8, chunk=MIB), *rows("two_buffers", 0.010, 0.090, threads=16),
    *rows("fill_only", 0.008, 0.06, threads=8, wrong_words=None),
    *rows("copy_only", 0.005, 0.001, threads=8, wrong_words=None),
    *rows("in_place", 0.005, 0.0002), *rows("in_place", 0.040, 0.0002, uses=8),
    *rows("in_place_spin", 0.005, 0.005),
    *rows("torch_to", 0.040, 0.040, threads=16),
    *rows("torch_pin_then_to_first", 0.160, 0.3, threads=16, prepare_seconds=0.15),
    *rows("torch_pin_then_to", 0.0105, 0.150, threads=16, prepare_seconds=0.005),
]  # fmt: skip


def measured(observations: list[dict[str, Any]]) -> Staging:
    staging = of(synthetic.run("staging"), observations)
    assert staging is not None
    return staging


def finding(rule: str, observations: list[dict[str, Any]] | None = None) -> Finding:
    return rules(observations or MEASURED)[rule]


def test_of_ways_as_good_as_the_fastest_the_one_that_takes_least_processor_time_is_recommended() -> None:
    staging = measured(MEASURED)
    assert staging.ways["two_buffers"].threads == 8
    assert [cell.way for cell in staging.winners(uses=1)] == ["two_buffers", "torch_pin_then_to"]


def test_data_that_is_made_in_pinned_memory_is_no_choice_for_data_that_is_not() -> None:
    staging = measured([*rows("in_place", 0.001), *rows("plain", 1.0)])
    assert {cell.way for cell in staging.winners(uses=1)} == {"plain"}
    assert set(staging.at(uses=1)) == {"in_place", "plain"}
    assert measured(rows("in_place", 0.001)).winners(uses=1) == []


def test_sentences_are_about_the_size_nearest_to_the_usual_one() -> None:
    sizes = [2**10, 2**26, 2**32]
    staging = measured([row for size in sizes for row in rows("plain", 0.040, bytes=size)])
    assert (staging.sizes, staging.size) == (sizes, 2**26)


def test_a_way_pays_from_the_use_at_which_its_parts_come_to_less_than_plain_copies() -> None:
    ways = measured(MEASURED).ways
    assert ways["register"].paid_after(ways["plain"]) == 1
    assert ways["pin_then_copy"].paid_after(ways["plain"]) == 6  # 195 ms, and each gains 35
    slow = measured([*rows("register", 0.1, prepare_seconds=0.01), *rows("plain", 0.04)]).ways
    assert slow["register"].paid_after(slow["plain"]) is None


def test_a_verdict_says_only_what_was_measured() -> None:
    assert "no way is clearly faster" in (reading([*rows("plain", 0.01), *rows("pin_then_copy", 0.02)]).verdict or "")
    assert reading([*rows("in_place", 0.01)]).verdict is None


def test_a_plain_copy_that_takes_longer_is_a_warning_with_code_for_the_threads_that_were_best() -> None:
    said = finding("staging-fastest")
    assert (said.severity, "4.0 times" in said.title) == ("warning", True)
    assert "threads=8, chunk=33554432" in (said.code or "")
    as_fast = finding("staging-fastest", [*rows("plain", 0.0100), *rows("register", 0.0099)])
    assert as_fast.severity == "note"
    assert "faster than a plain copy" in as_fast.title


def test_a_way_that_is_faster_within_the_noise_is_no_better_than_a_plain_copy() -> None:
    wild = [row for part in (0.010, 0.030, 0.031, 0.050) for row in rows("register", part)[1:3]]
    said = finding("staging-fastest", [*rows("plain", 0.040), *wild])
    assert said.title.startswith("No way is known to bring 256 MiB to the GPU faster than a plain copy")
    assert (said.severity, said.advice, said.code) == ("note", "Use a plain copy.", None)


def test_what_ties_with_the_way_that_is_advised_is_said_to_do_as_well() -> None:
    assert finding("staging-fastest").advice.endswith(
        "For 256 MiB PyTorch's pin_memory().to() in pinned memory that it has kept will do as well."
    )
    alone = [row for row in MEASURED if row["way"] != "torch_pin_then_to"]
    assert "as well" not in finding("staging-fastest", alone).advice


def varied(way: str, seconds: float, **more: Any) -> list[dict[str, Any]]:
    """Repeats that vary too much to tell."""
    return [{**row, "wall_seconds": row["wall_seconds"] * (0.3 + row["repeat"])} for row in rows(way, seconds, **more)]


def test_times_that_are_no_figures_decide_nothing_and_are_not_shown() -> None:
    wild = [*varied("plain", 0.100), *rows("register", 0.001)]
    assert reading(wild).verdict == "Copy 256 MiB once by a plain copy: no way is clearly faster."
    assert "staging-fastest" not in rules(wild)
    known = [*rows("plain", 0.100), *rows("register", 0.001)]
    assert (reading(known).verdict or "").startswith("Copy 256 MiB by registering it")
    assert "staging-fresh" not in rules([*rows("back_plain", 0.018), *varied("back_fresh", 0.9)])


def test_a_ratio_that_is_no_figure_has_a_bound() -> None:
    def wavering(way: str, seconds: float) -> list[dict[str, Any]]:
        return [{**row, "wall_seconds": seconds * (0.75 + 0.5 * (row["repeat"] % 2))} for row in rows(way, seconds)]

    fresh = [*wavering("back_plain", 0.010), *wavering("back_fresh", 0.100)]
    assert "takes at least" in (reading(fresh).verdict or "")
    assert all(figure.value for figure in finding("staging-fresh", fresh).evidence)


def test_to_copy_once_a_new_pinned_buffer_is_dear_and_registering_in_place_is_named_where_it_is_not() -> None:
    said = finding("staging-pin-to-copy")
    assert [figure.value for figure in said.evidence] == [0.200, 0.040, 0.022]
    assert "5.0 times" in said.title
    assert "registering" in said.title
    slow = [row for row in MEASURED if row["way"] != "register"] + rows("register", 0.041)
    said = finding("staging-pin-to-copy", slow)
    assert "regist" not in said.title + said.detail + said.advice


BACK = [
    *rows("back_plain", 0.018), *rows("back_fresh", 0.19), *rows("back_pinned", 0.005),
    *rows("ring_two", 0.0062, threads=8), *rows("ring_four", 0.0060, threads=8),
]  # fmt: skip


def halves(copies: float, drain: float) -> list[dict[str, Any]]:
    """A ring's, beside the other and alone (5 and 4 ms)."""
    return [
        *rows("ring_copies", copies, threads=8, wrong_words=None),
        *rows("ring_drain", drain, threads=8, wrong_words=None),
        *rows("ring_copies_alone", 0.005, threads=8, wrong_words=None),
        *rows("ring_drain_alone", 0.004, threads=8, wrong_words=None),
    ]


def test_fresh_memory_is_warned_of_where_it_takes_longer_than_memory_written_before() -> None:
    said = finding("staging-fresh", BACK)
    assert (said.severity, "1.41 GB/s" in said.title, "14.9 GB/s" in said.title) == ("warning", True, True)
    assert "staging-fresh" not in rules([*rows("back_plain", 0.018), *rows("back_fresh", 0.018)])


def test_a_ring_is_advised_with_code_where_it_is_faster_than_a_plain_copy_from_the_gpu() -> None:
    said = finding("staging-ring", [*BACK, *halves(0.0058, 0.0041)])
    assert "3.0 times" in said.title
    assert "threads=8, slots=4" in (said.code or "")
    slow = [*rows("back_plain", 0.018), *rows("ring_two", 0.0181, threads=8), *halves(0.0058, 0.0041)]
    assert "staging-ring" not in rules(slow)


def test_a_run_that_brings_nothing_to_the_gpu_answers_with_what_comes_from_it() -> None:
    there = reading([*BACK, *halves(0.0058, 0.0041)])
    assert there.verdict == (
        "Keep the destination, best pinned: 256 MiB from the GPU takes about 10.6 times as long into fresh memory."
    )
    assert {figure.key for figure in there.headline} == {
        "back_fresh.rate", "back_plain.rate", "back_pinned.rate", "ring.rate"
    }  # fmt: skip
    assert reading([*rows("back_plain", 0.018), *rows("back_fresh", 0.018)]).verdict is None
    assert [chart.key for chart in draw(synthetic.run("staging"), BACK)] == ["staging-answer-back"]
    assert [chart.key for chart in draw(synthetic.run("staging"), MEASURED)] == ["staging-answer"]


def test_no_half_of_a_ring_is_called_slower_where_one_varies_too_much_and_no_pinned_memory_better_where_it_ties() -> (
    None
):
    told = [*BACK, *halves(0.0090, 0.0041)]
    assert "slower half" in finding("staging-ring-halves", told).detail
    wild = varied("ring_drain", 0.0041, threads=8, wrong_words=None)
    kept = [row for row in told if row["way"] != "ring_drain"]
    assert "slower half" not in finding("staging-ring-halves", [*kept, *wild]).detail
    alike = [*rows("back_plain", 0.018), *rows("back_fresh", 0.19), *rows("back_pinned", 0.018)]
    assert "pinned" not in (reading(alike).verdict or "") + finding("staging-fresh", alike).advice


def test_a_ring_without_its_halves_is_not_judged() -> None:
    assert set(rules(BACK)) == {"staging-fresh"}


def test_halves_that_slow_each_other_are_named() -> None:
    apart = [*BACK, *halves(0.0052, 0.0041)]
    assert "staging-ring-halves" not in rules(apart)
    said = finding("staging-ring-halves", [*BACK, *halves(0.0052, 0.0090)])
    assert said.title.startswith("Beside the other half of a drained ring, draining takes 2.2 times")


def test_what_comes_from_the_gpu_changes_no_answer_of_what_goes_there() -> None:
    there, both = reading(MEASURED), reading([*MEASURED, *BACK])
    assert (there.verdict, there.headline) == (both.verdict, both.headline)
    charts = draw(synthetic.run("staging"), [*MEASURED, *BACK, *rows("back_fresh", 0.01, bytes=MIB)])
    assert {"from the GPU, fresh memory", "ring of two, drained"} <= {
        trace.name for chart in charts for trace in chart.figure.data
    }


def test_code_to_paste_is_python() -> None:
    for way in ["two_buffers", "reused_buffer", "register", "in_place", "ring_two", "ring_four"]:
        compile(code(way, 8, MIB) or "", way, "exec")
        assert code("cupy_asarray", 1, MIB) is None
