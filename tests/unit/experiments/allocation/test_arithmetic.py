"""Buffers: what each costs, when a pinned one has paid, and which findings follow."""

from __future__ import annotations

from typing import Any

import pytest

from pinscope.analysis.statistics import summarize
from pinscope.experiments.allocation.reading import Buffers, needed_faults, pool_words
from tests.data import synthetic
from tests.data.readings import Made

MADE = Made("allocation")
read, findings = MADE.reading, MADE.findings

MIB, GIB = 2**20, 2**30
Row = dict[str, Any]
EMPTY = dict.fromkeys(
    ("way", "get_seconds", "touch_seconds", "register_seconds", "unregister_seconds", "give_back_seconds",
     "page_faults", "memory", "backing", "direction", "wall_seconds")
)  # fmt: skip


def buffers(way: str, get: float, give_back: float = 0.0, size: int = GIB, **parts: float) -> list[Row]:
    """One uncounted buffer, absurdly slow, and three equal ones."""
    return [
        {**EMPTY, "kind": "buffer", "repeat": repeat, "warmup": repeat < 0, "bytes": size, "way": way,
         "get_seconds": get + (99.0 if repeat < 0 else 0.0), "give_back_seconds": give_back, **parts}
        for repeat in range(-1, 3)
    ]  # fmt: skip


def copies(
    memory: str, seconds: float, size: int = GIB, direction: str = "h2d", backing: str | None = None
) -> list[Row]:
    return [
        {**EMPTY, "kind": "copy", "repeat": repeat, "warmup": False, "bytes": size, "memory": memory,
         "backing": backing, "direction": direction, "wall_seconds": seconds}
        for repeat in range(3)
    ]  # fmt: skip


BOTH_COPIES = [*copies("pageable", 0.10), *copies("pinned", 0.02)]
PAGEABLE = buffers("fresh_4k", 0.3, 0.1, page_faults=GIB // 4096)


def measured(rows: Any) -> Buffers:
    return Buffers(synthetic.run("allocation"), rows)


def test_a_fresh_pinned_buffer_pays_after_its_extra_cost_over_the_gain_of_a_copy() -> None:
    for get, give_back, needed in [
        (0.3, 0.1, 0),
        (0.2, 0.1, 0),
        (0.3 + 0.08, 0.1, 1),
        (0.3 + 0.081, 0.1, 2),
        (1.0, 0.2, 10),
    ]:
        rows = [*PAGEABLE, *buffers("pinned", get - 1e-9, give_back), *BOTH_COPIES]
        (even,) = measured(rows).evens
        assert even.gain_seconds == pytest.approx(0.08)
        assert even.copies == needed


def test_what_a_pinned_buffer_replaces_decides_when_it_has_paid() -> None:
    huge = [*buffers("fresh_thp", 0.05, 0.01), *copies("pageable", 0.06, backing="thp")]
    rows = [*PAGEABLE, *huge, *buffers("pinned", 0.395, 0.1), *BOTH_COPIES]
    paid = {even.base: even.copies for even in measured(rows).evens}
    assert paid == {"fresh_4k": 2, "fresh_thp": 11}
    assert "pays after 2 copies" in findings(rows)["pays-soon"].title


def test_fresh_memory_takes_a_page_fault_for_each_of_its_pages() -> None:
    for way, size, page, needed in [
        ("fresh_4k", 16 * MIB, 4096, 4096),
        ("fresh_4k", 4097, 4096, 2),
        ("registered_4k", 2**16, 2**16, 1),
        ("fresh_thp", 16 * MIB, 4096, 8),
        ("registered_thp", MIB, 4096, 1),
        ("fresh_thp", GIB, 2**16, 2),  # pages of 64 KiB, huge ones of 512 MiB
        ("malloc_touch", 16 * MIB, 4096, None),
        ("pool", 16 * MIB, 4096, None),
    ]:
        assert needed_faults(way, size, page) == needed


def test_memory_with_fewer_faults_than_pages_is_flagged_and_compared_with_nothing() -> None:
    recycled = buffers("fresh_4k", 24e-6, 1e-6, page_faults=3)
    rows = [*recycled, *buffers("pinned", 0.38, 0.1), *BOTH_COPIES]
    (cell,) = measured(rows).reused
    assert (cell.way, cell.page_faults) == ("fresh_4k", 3)
    once = [*PAGEABLE[:-1], PAGEABLE[-1] | {"page_faults": GIB // 4096 - 1}]  # one turn among fresh ones is enough
    assert measured(once).reused
    rules = findings(rows)
    assert "1 of 2 buffers were not fresh memory: 3 page faults for 262,144 pages" in rules["not-fresh"].title
    assert not {"pays-late", "pays-soon"} & set(rules)


def test_faults_that_were_not_counted_accuse_nobody() -> None:
    rows = [*buffers("fresh_4k", 0.3, 0.1), *buffers("pinned", 0.38, 0.1), *BOTH_COPIES]
    assert measured(rows).reused == []
    assert "pays-soon" in findings(rows)


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([*buffers("malloc_touch", 24e-6), *buffers("pinned", 4e-3)], id="what malloc recycled"),
        pytest.param([*PAGEABLE, *buffers("write_combined", 0.3)], id="copies from it were not timed"),
        pytest.param(buffers("pinned", 0.6), id="no pageable buffer"),
    ],
)
def test_what_cannot_be_compared_has_no_break_even(rows: list[Row]) -> None:
    assert measured([*rows, *BOTH_COPIES]).evens == []
    assert not {"pays-late", "pays-soon"} & set(findings([*rows, *BOTH_COPIES]))


def test_a_count_that_rests_on_costs_that_tie_is_told_only_where_one_copy_gains_more_than_they_may_be_off() -> None:
    tie = [*PAGEABLE, *buffers("pinned", 0.301, 0.1)]  # may be off by 2 % of 0.4 s, twice
    back = [*copies("pageable", 0.03, direction="d2h"), *copies("pinned", 0.02, direction="d2h")]
    told = {even.direction: even.copies for even in measured([*tie, *BOTH_COPIES, *back]).evens}
    assert told == {"h2d": 1, "d2h": None}
    pays = findings([*tie, *BOTH_COPIES, *back])["pays-soon"]
    assert pays.title.endswith("pays from the first copy on (h2d)")
    assert not any("d2h" in figure.name for figure in pays.evidence)
    assert "pays-soon" not in findings([*tie, *back])
    dearer = measured([*PAGEABLE, *buffers("pinned", 0.415, 0.1), *back]).evens
    assert [even.copies for even in dearer] == [12]


def test_what_is_dearer_only_by_chance_is_neither_called_dearer_nor_advised_against() -> None:
    none = [*copies("pageable", 0.02), *copies("pinned", 0.02)]
    wide = [*buffers("pinned", 0.2, 0.1), *buffers("pinned", 0.4, 0.2), *buffers("pinned", 0.32, 0.1)]
    assert "pinning-never-pays" not in findings([*PAGEABLE, *wide, *none])
    assert "pays-soon" not in findings([*PAGEABLE, *wide, *BOTH_COPIES])  # it varies too much to tell
    near = [*buffers("pinned", 0.31, 0.1), *buffers("pinned", 0.33, 0.1), *buffers("pinned", 0.29, 0.1)]
    assert "about as long as" in findings([*PAGEABLE, *near, *BOTH_COPIES])["pays-soon"].detail
    assert "more than" in findings([*PAGEABLE, *buffers("pinned", 0.6, 0.1), *BOTH_COPIES])["pays-soon"].detail


@pytest.mark.parametrize(
    ("get", "pageable", "pinned", "even", "rule"),
    [
        (0.3, 0.10, 0.02, (0.08, 0), None),
        (0.6, 0.10, 0.02, (0.08, 4), "pays-soon"),
        (9.0, 0.10, 0.02, (0.08, 109), "pays-late"),
        (0.5, 0.02, 0.03, (-0.01, None), "pinning-never-pays"),
        (0.5, 0.02, 0.019, (None, None), None),  # copies that are not told apart
        (0.2, 0.02, 0.02, (None, 0), None),  # what costs nothing extra has paid though copies gain nothing
    ],
)
def test_the_break_even_decides_the_finding(
    get: float, pageable: float, pinned: float, even: tuple[float | None, int | None], rule: str | None
) -> None:
    rows = [*PAGEABLE, *buffers("pinned", get, 0.1), *copies("pageable", pageable), *copies("pinned", pinned)]
    (found,) = measured(rows).evens
    assert (found.gain_seconds, found.copies) == pytest.approx(even)
    assert {"pays-soon", "pays-late", "pinning-never-pays"} & set(findings(rows)) == ({rule} if rule else set())


def test_the_host_model_speaks_of_mlock_not_of_cuda() -> None:
    reading = read([*PAGEABLE, *buffers("pinned", 9.0), *BOTH_COPIES], lab="host")
    words = str(reading)
    assert "map + mlock" in words
    assert "cudaHostAlloc" not in words


def verdict(rows: list[Row]) -> str | None:
    return read(rows).verdict


def test_a_verdict_says_only_what_was_measured() -> None:
    assert verdict([]) is None
    assert verdict(PAGEABLE) is None
    assert verdict(buffers("pinned", 0.5, 0.1)) == "Getting and freeing 1 GiB of pinned memory takes 600 ms."
    assert verdict(buffers("registered_thp", 0.1, 0.1)) == (
        "Getting and freeing 1 GiB of pinned memory (touch + register, huge pages) takes 200 ms."
    )
    same = [*copies("pageable", 0.02), *copies("pinned", 0.02)]
    assert (verdict([*PAGEABLE, *buffers("pinned", 0.5, 0.1), *same]) or "").endswith(
        ", but copies are not measurably faster than pageable ones."
    )
    assert (verdict([*PAGEABLE, *buffers("pinned", 0.2, 0.1), *same]) or "").endswith(", no more than pageable memory.")


def test_memory_that_was_not_fresh_is_in_no_verdict_or_headline() -> None:
    rows = [*buffers("fresh_4k", 24e-6, 1e-6, page_faults=3), *buffers("pinned", 0.5, 0.1), *BOTH_COPIES]
    assert verdict(rows) == "Getting and freeing 1 GiB of pinned memory takes 600 ms."
    headline = read(rows).headline
    assert [figure.name for figure in headline] == ["cudaHostAlloc, get and free, 1 GiB"]


def test_a_run_that_has_just_begun_reads_without_conclusions() -> None:
    assert read([]).headline == ()
    reading = read(buffers("malloc", 1e-6, size=MIB), status="running")
    assert reading.findings == ()
    assert len(reading.tables) == 1


def wavering(way: str, seconds: float, apart: float, **parts: Any) -> list[Row]:
    return [
        {**row, "get_seconds": row["get_seconds"] * (1 + apart * (repeat % 2))}
        for repeat in range(10)
        for row in buffers(way, seconds, **parts)[1:2]
    ]


@pytest.mark.parametrize(
    ("apart", "longer"), [(0.3, " times (± "), (1.85, ", at least 2.")], ids=["roughly", "not known"]
)
def test_a_way_is_called_faster_by_a_figure_that_is_known_or_by_its_bound(apart: float, longer: str) -> None:
    rows = [*wavering("pinned", 0.04, apart), *wavering("registered_thp", 0.015, 0.3)]
    said = findings(rows)["faster-way"]
    assert longer in said.title
    assert "takes about " in said.title
    near = [*wavering("pinned", 0.016, apart), *wavering("registered_thp", 0.015, 0.3)]
    assert "faster-way" not in findings(near)


def test_what_the_driver_kept_is_told_though_its_time_varies_too_much() -> None:
    small = wavering("pinned", 1e-5, 3.0, size=MIB, page_faults=0)
    said = findings([*small, *buffers("pinned", 0.4, page_faults=GIB // 4096)])["kept-by-driver"]
    assert "takes at most" in said.title
    assert [figure.value for figure in said.evidence] == [0, None, 1]


def test_a_pool_whose_repeats_vary_too_much_is_told_by_the_most_that_it_takes() -> None:
    assert pool_words(summarize([1e-6] * 8)) == "1.00 µs"
    assert pool_words(summarize([0.5e-6, 1e-6, 1e-6, 2e-6, 0.6e-6, 1e-6, 1.9e-6, 1e-6])).startswith("at most ")
