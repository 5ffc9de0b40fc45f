"""Many small copies on a real GPU: every word where it belongs, the figures of a C++ program, nothing left behind."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import pytest
from cupy.cuda import runtime

from pinscope.experiments.scatter.code_to_move import code
from pinscope.experiments.scatter.cuda_bench import Bench
from pinscope.experiments.scatter.cuda_ways import MOVERS, time_once, why_not
from pinscope.experiments.scatter.experiment import EXPERIMENT, ScatterObservation, ScatterParams
from pinscope.experiments.scatter.reading import Cell, Scatter
from pinscope.experiments.scatter.ways import Case, Variant
from pinscope.lab.cuda import CudaLab
from pinscope.lab.harness import Harness

MIB = 2**20
GB = 1e9


def rows_of(lab: CudaLab, **changes: Any) -> list[dict[str, Any]]:
    """Of a quick run."""
    params = ScatterParams.preset("cuda", quick=True).with_overrides(changes)
    return [row.model_dump() for row in EXPERIMENT.measure(params, lab, Harness())]


def measured(lab: CudaLab, **changes: Any) -> dict[tuple[str, str, int], Mapping[str, Cell]]:
    """Case → way → its cell."""
    return {case: pieces.ways for case, pieces in Scatter.of(rows_of(lab, **changes)).cases.items()}


def test_every_way_moves_every_word_and_touches_no_other(lab: CudaLab) -> None:
    rows = rows_of(lab, sizes="48,4KiB,1MiB", area=16 * MIB, pieces=700, repeats=8, time_limit=0.01)
    compared = [row for row in rows if row["wrong_words"] is not None]
    assert {(row["way"], row["direction"], row["layout"]) for row in compared} == {
        (way, direction, layout)
        for way in MOVERS
        for direction in ("h2d", "d2h")
        for layout in ("scattered", "strided")
        if way != "copy_2d" or layout == "strided"
    }
    assert [row for row in compared if row["wrong_words"]] == []


@pytest.mark.parametrize("direction", ["h2d", "d2h"])
def test_a_word_that_does_not_arrive_and_one_beside_the_pieces_are_noticed(lab: CudaLab, direction: Any) -> None:
    case = Case(direction, "scattered", 4096, 100, 4 * MIB)
    with ExitStack() as stack:
        bench = Bench(lab, case.area_bytes, case.nbytes, stack)
        mover = MOVERS["kernel"](bench, case, Variant("kernel", blocks=4), stack)
        mover.spoil()
        assert mover.wrong_words() >= case.nbytes // 8 - 1  # nothing was moved yet
        time_once(bench, mover)
        assert mover.wrong_words() == 0
        numbers = case.place_on_device()
        beside = next(at for at, number in enumerate(numbers) if number < 0)
        hit = bench.row.address + 8 if direction == "h2d" else bench.area.address + beside * 4096 + 8
        runtime.memset(hit, 0x5A, 8)
        runtime.deviceSynchronize()
        assert mover.wrong_words() == 1


def test_the_figures_are_those_of_a_cpp_program(lab: CudaLab) -> None:
    """H100, C++, 4096 x 4 KiB: loop 1.45, kernel 49.7, 2D 54.0 GB/s; the batch, which the CPU paces, 3.3 or 2.1."""
    found = measured(lab, sizes="4KiB", pieces=4096, directions="h2d", repeats=15, time_limit=0.5)
    scattered, strided = found["h2d", "scattered", 4096], found["h2d", "strided", 4096]
    for cell, least in (
        (scattered["loop"], 1.3), (scattered["graph"], 1.3), (scattered["kernel"], 44.7), (strided["copy_2d"], 48.6),
    ):  # fmt: skip
        assert cell.bytes_per_second > least * GB, cell.way
    assert scattered["batch"].bytes_per_second > scattered["loop"].bytes_per_second
    assert scattered["loop"].held_share > 0.5
    assert scattered["kernel"].held_share < 0.2


def test_copy_engines_and_few_blocks_cost_compute_next_to_nothing(lab: CudaLab) -> None:
    """On an H200 8 blocks cost compute 0.2 % and then move 16 GB/s; 132 blocks cost 8 % and move 43 GB/s."""
    rows = rows_of(lab, sizes="4KiB", layouts="scattered", ways="loop,batch,kernel", blocks="8,132", directions="h2d")
    loads = {(one.way, one.blocks): one for one in Scatter.of(rows).loads}
    assert loads["batch", None].longer_share < 0.05
    few, many = loads["kernel", 8], loads["kernel", 132]
    assert few.longer_share < 0.05
    assert few.longer_share < many.longer_share + 0.01
    alone = Scatter.of(rows).first.ways["kernel"].bytes_per_second
    assert 0.15 * alone < few.bytes_per_second < many.bytes_per_second  # one after the other: 0.07
    assert many.bytes_per_second > 0.7 * alone


def test_a_driver_without_the_batch_call_says_so(lab: CudaLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pinscope.experiments.scatter.cuda_ways._batch_call", lambda: None)
    with ExitStack() as stack:
        bench = Bench(lab, 4 * MIB, 2 * MIB, stack)
        assert "12.8" in (why_not("batch", bench) or "")
        assert why_not("loop", bench) is None


def test_all_memory_comes_back(lab: CudaLab) -> None:
    runtime.deviceSynchronize()
    before = runtime.memGetInfo()[0]
    rows_of(lab, sizes="64KiB", area=64 * MIB, layouts="scattered", directions="h2d", repeats=8, time_limit=0.01)
    assert before - runtime.memGetInfo()[0] <= 8 * MIB


@pytest.mark.parametrize("way", ["batch", "copy_2d", "kernel"])
def test_the_code_of_a_finding_runs_as_pasted(lab: CudaLab, way: Any) -> None:
    """It checks itself, each way, that the pieces are where they belong."""
    rows = [
        ScatterObservation(
            kind="move", way=way, direction="h2d", layout="scattered", bytes=4096, pieces=1000, repeat=0, warmup=False,
            blocks=8 if way == "kernel" else None, wall_seconds=1e-3,
            device_seconds=1e-3, issue_seconds=1e-3,
        ).model_dump()
    ]  # fmt: skip
    pasted = code(Scatter.of(rows).cells[0])
    assert pasted is not None
    exec(pasted, {})  # noqa: S102 - that is what a user does with it
