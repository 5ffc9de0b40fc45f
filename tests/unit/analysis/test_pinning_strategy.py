"""Pinning strategies: which is best, which findings follow, and recipes that run when pasted."""

from __future__ import annotations

import gc
import re
import sys
from types import ModuleType
from typing import Any

import pytest

from pinscope.analysis.pinning_recipe import recipe
from pinscope.analysis.pinning_strategy import TITLES, best_strategy, strategy_cells
from pinscope.analysis.pinning_strategy_reading import read_pinning_strategy
from pinscope.lab.pinning import STRATEGIES
from pinscope.records.finding import Finding, Reading
from pinscope.units import parse_bytes
from tests.data import synthetic

GIB = 2**30
Row = dict[str, Any]


def row(strategy: str, total: float, wait: float = 0.01, repeat: int = 0, **changes: Any) -> Row:
    chunked = strategy != "idle" and STRATEGIES[strategy].chunked  # type: ignore[index]
    fields: Row = {
        "repeat": repeat, "warmup": False, "strategy": strategy, "bytes": 16 * GIB,
        "chunk_bytes": GIB if chunked else None, "threads": 8, "total_seconds": total, "touch_seconds": None,
        "pin_seconds": total, "release_seconds": 0.1, "neighbour_info_seconds": wait,
        "neighbour_nvml_seconds": wait / 2, "neighbour_kernel_seconds": 1e-4, "neighbour_allocation_seconds": wait / 3,
        "release_neighbour_seconds": wait, "pinned": True, "copy_bytes": GIB, "copy_seconds": 0.02,
        "crossing_copies": False if chunked and not strategy.startswith("host_alloc") else None,
    }  # fmt: skip
    return fields | changes


def idle(wait: float = 3e-4) -> Row:
    return row("idle", 1.0, wait, pinned=None, copy_bytes=None, copy_seconds=None, release_seconds=None,
               release_neighbour_seconds=None, pin_seconds=None)  # fmt: skip


def read(rows: list[Row], **params: Any) -> Reading:
    return read_pinning_strategy(synthetic.run("overlap", params=params), rows)


def findings(rows: list[Row]) -> dict[str, Finding]:
    return {one.rule: one for one in read(rows).findings}


USUAL = row("host_alloc", 4.8, 0.3)


def best(*rows: Row, whole: bool = False) -> str | None:
    cell = best_strategy(strategy_cells(rows).values(), whole)
    return cell.strategy if cell else None


def test_of_the_fast_ones_the_gentle_one_is_best_even_if_a_little_slower() -> None:
    assert best(USUAL, row("thp_register", 0.5, 0.15), row("thp_register_chunks", 0.6, 0.015)) == "thp_register_chunks"


def test_a_gentle_one_that_is_much_slower_is_not_best() -> None:
    assert best(row("host_alloc_chunks", 4.7, 0.01), row("thp_register", 0.5, 0.15)) == "thp_register"


def test_equally_gentle_ones_are_decided_by_speed() -> None:
    assert best(row("thp_register_chunks", 0.55, 0.010), row("thp_pipeline", 0.42, 0.012)) == "thp_pipeline"


def test_for_copies_of_any_size_only_one_piece_will_do() -> None:
    assert best(row("thp_pipeline", 0.4), row("thp_register", 0.5), USUAL, whole=True) == "thp_register"
    assert best(row("thp_pipeline", 0.4), whole=True) is None


def test_idle_is_no_strategy() -> None:
    assert best(idle()) is None
    assert read([idle()]).headline == ()


def test_times_are_medians_and_waits_the_longest_of_all_repeats() -> None:
    rows = [row("thp_pipeline", seconds, wait, repeat) for repeat, (seconds, wait) in
            enumerate([(0.4, 0.01), (0.6, 0.03), (0.5, 0.02)])]  # fmt: skip
    cell = strategy_cells(rows)["thp_pipeline"]
    assert cell.total_seconds.median == 0.5
    assert cell.longest_wait == 0.03
    assert cell.copy_bytes_per_second == pytest.approx(GIB / 0.02)
    assert cell.bytes_per_second == pytest.approx(16 * GIB / 0.5)


def test_the_headline_has_the_gain_and_seconds_for_the_users_size() -> None:
    reading = read([idle(), USUAL, row("thp_pipeline", 0.4, 0.015)], target=64 * GIB)
    values = {one.name: one.value for one in reading.headline}
    assert values["Best strategy"] == TITLES["thp_pipeline"]
    assert values["Times faster than one cudaHostAlloc"] == pytest.approx(12)
    assert values["Your 64 GiB take"] == pytest.approx(1.6)
    assert values["Its wait ÷ that of cudaHostAlloc"] == pytest.approx(0.05)
    assert values["Longest neighbour wait, idle"] == 3e-4


def test_a_faster_strategy_is_recommended_with_the_call_and_the_code() -> None:
    finding = findings([USUAL, row("thp_pipeline", 0.4, 0.015)])["faster-strategy"]
    assert "12.0 times faster" in finding.title
    assert 'pinscope.pinned_empty("16 GiB", chunk="1 GiB")' in finding.advice
    assert finding.code is not None
    assert "hostRegister" in finding.code


def test_the_advised_calls_can_be_pasted_whatever_the_size() -> None:
    size, chunk = 1500 * 2**20, 7 * 2**20
    rows = [
        row("host_alloc", 4.8, 0.3, bytes=size),
        row("thp_register", 0.5, 0.3, bytes=size),
        row("thp_register_chunks", 0.5, 0.01, bytes=size, chunk_bytes=chunk),
    ]
    found = findings(rows)
    (chunked,) = re.findall(r'pinned_empty\("(.+?)", chunk="(.+?)"\)', found["faster-strategy"].advice)
    assert [parse_bytes(text) for text in chunked] == [size, chunk]
    (whole,) = re.findall(r'pinned_empty\("(.+?)"\)', found["faster-any-copy"].advice)
    assert parse_bytes(whole) == size


def test_where_nothing_is_faster_nothing_is_recommended() -> None:
    found = findings([USUAL, row("thp_register", 4.0)])
    assert "usual-is-fast" in found
    assert "faster-strategy" not in found


def test_beside_a_chunked_best_stands_the_best_that_takes_any_copy() -> None:
    rows = [USUAL, row("thp_pipeline", 0.4, 0.015), row("thp_register", 0.5, 0.15)]
    finding = findings(rows)["faster-any-copy"]
    assert "9.6 times faster" in finding.title
    assert 'pinscope.pinned_empty("16 GiB"),' in finding.advice
    assert "faster-any-copy" not in findings([USUAL, row("thp_register", 0.5)])


@pytest.mark.parametrize(("wait", "found"), [(0.3, True), (0.001, False)])
def test_a_long_wait_of_a_neighbour_is_found(wait: float, found: bool) -> None:
    assert ("neighbours-wait" in findings([row("host_alloc", 4.8, wait), idle()])) is found


def test_refused_copies_and_memory_that_is_not_pinned_are_found() -> None:
    assert "copies-refused-across-chunks" in findings([row("thp_pipeline", 0.4)])
    assert "copies-refused-across-chunks" not in findings([row("thp_pipeline", 0.4, crossing_copies=True)])
    assert findings([row("thp_register", 0.4, pinned=False)])["not-pinned"].severity == "critical"
    assert "not-pinned" not in findings([row("thp_register", 0.4)])


def test_every_strategy_has_a_title_in_the_reading() -> None:
    assert set(TITLES) == {"idle", *STRATEGIES}


@pytest.mark.parametrize("name", [name for name, one in STRATEGIES.items() if one.backing])
def test_a_recipe_registers_all_of_it_and_undoes_that_with_the_last_view(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: dict[int, int] = {}
    cuda = ModuleType("cupy.cuda")
    cuda.runtime = type("runtime", (), {  # type: ignore[attr-defined]
        "hostRegister": staticmethod(lambda address, nbytes, flags: held.__setitem__(address, nbytes)),
        "hostUnregister": staticmethod(held.pop),
    })  # fmt: skip
    monkeypatch.setitem(sys.modules, "cupy", ModuleType("cupy"))
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    pasted: dict[str, Any] = {}
    cell = strategy_cells([row(name, 0.4, chunk_bytes=2**26 + 2**21 if STRATEGIES[name].chunked else None)])[name]  # type: ignore[index]
    exec(recipe(cell), pasted)  # noqa: S102 - that is what a user does with it
    array = pasted["pinned_buffer"](2**28 + 4096)
    assert array.nbytes == sum(held.values()) == 2**28 + 4096
    assert min(held) == array.ctypes.data
    assert (len(held) > 1) == STRATEGIES[name].chunked  # type: ignore[index]
    view = array[7:9]
    del array
    gc.collect()
    assert held
    del view
    gc.collect()
    assert held == {}


def test_a_recipe_for_chunks_warns_of_copies_that_cross_them() -> None:
    chunked, whole = (strategy_cells([row(name, 1.0)])[name] for name in ("thp_pipeline", "thp_register"))
    assert "No copy may cross a multiple of chunk (1 GiB)" in recipe(chunked)
    assert "cross" not in recipe(whole)
