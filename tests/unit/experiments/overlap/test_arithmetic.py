"""Overlap arithmetic on passes whose answer is known."""

from __future__ import annotations

from typing import Any

import pytest

from pinscope.experiments.overlap.reading import Cell, Passes
from pinscope.experiments.overlap.ways import Recipe
from tests.data import synthetic
from tests.data.readings import As


def one_pass(seconds: float, **changes: Any) -> dict[str, Any]:
    return {
        "repeat": 0, "warmup": False, "kind": "pass", "direction": "h2d", "balance": "balanced", "memory": "pinned",
        "separate_stream": True, "depth": 2, "events": True, "bytes": 1000, "chunks": 50, "device_seconds": seconds,
        "wall_seconds": seconds, "issue_seconds": 0.1, "stall_seconds": 0.2, "copy_alone_seconds": 1.0,
        "pinned_copy_seconds": 1.0, "compute_alone_seconds": 1.0, "corrupted_chunks": 0, "lane": None, "chunk": None,
        "start_seconds": None, "end_seconds": None, **changes,
    }  # fmt: skip


def passes(rows: list[dict[str, Any]]) -> list[Cell]:
    return Passes(synthetic.run("overlap"), rows).cells


def test_recipes_are_measured_against_pinned_copies_and_against_their_own() -> None:
    rows = [one_pass(5.5, memory="pageable", copy_alone_seconds=5.0)]
    (cell,) = passes(rows)
    assert cell.copy_slowdown == pytest.approx(5)
    assert cell.serial_ratio == pytest.approx(5.5 / 2)
    assert cell.own_serial == pytest.approx(5.5 / 6)
    assert cell.least_seconds == pytest.approx(1.02)
    assert cell.overlap == pytest.approx(1 + 1 - 5.5)
    assert cell.own_overlap == pytest.approx(0.5)


def test_what_ran_beside_what_is_known_only_of_steady_passes_and_of_slow_copies_in_turn() -> None:
    """Slow copies have fast and slow states: five of them before all passes tell nothing of these."""

    def known(passes_take: list[float], copies: float, memory: str) -> bool:
        rows = [one_pass(seconds, memory=memory, copy_alone_seconds=copies) for seconds in passes_take]
        (cell,) = passes(rows)
        assert (cell.possible_own_overlap_share is not None) == cell.knows_own_overlap
        return cell.knows_own_overlap

    assert known([1.02, 1.021] * 6, 1.0, "pinned")
    assert not known([1.0, 1.5] * 6, 1.0, "pinned")
    assert not known([1.55, 1.551] * 6, 1.2, "pageable")


def test_an_overlap_has_its_plus_minus() -> None:
    for passes_take, off in [
        ([1.02] * 8, 0.03),
        ([1.02, 1.12] * 4, 0.07),
        ([1.02] * 7, None),
        ([1.95, 2.05] * 4, None),
    ]:
        rows = [one_pass(seconds, repeat=repeat) for repeat, seconds in enumerate(passes_take)]
        reading = As("overlap").read(synthetic.run("overlap"), rows)
        assert reading.headline[0].spread == (off and pytest.approx(off, abs=0.01))
        said = " ".join(finding.title for finding in reading.findings)
        assert ("(± " in said) == bool(off and off > 0.05)


@pytest.mark.parametrize(
    ("alone", "whole", "words"),
    [
        (5.0, 5.5, "h2d: the copies alone take 5.0 times (± 27 %) as long as pinned ones, and compute is idle"),
        (5.6, 5.5, "h2d: the copies alone take as long as the whole, and compute is idle"),
        (1.2, 5.5, "h2d: compute is idle"),
    ],
    ids=["shorter than the whole", "no shorter", "not told from pinned ones"],
)
def test_slow_copies_are_named_as_the_reason_where_they_are_known_to_be_slow_and_never_longer_than_the_whole(
    alone: float, whole: float, words: str
) -> None:
    rows = [
        row | {"repeat": repeat}
        for repeat in range(8)
        for row in (one_pass(1.02), one_pass(whole, memory="pageable", copy_alone_seconds=alone))
    ]
    (said,) = (said for said in As("overlap").read(synthetic.run("overlap"), rows).findings if said.severity != "good")
    assert words in said.detail


def test_a_recipe_names_what_is_left_out() -> None:
    for recipe, label in [
        (Recipe("pinned", True, 2, True), "full recipe"),
        (Recipe("pinned", True, 8, True), "full recipe, ring of 8"),
        (Recipe("pageable", True, 2, True), "no pinned memory"),
        (Recipe("pinned", False, 1, False), "no separate copy stream, no double buffering, no events"),
    ]:
        assert recipe.label == label
