"""Ways to move many pieces: which wins, from which size a loop does, and what a run then says. Rows are synthetic."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from pinscope.errors import InvalidParameter
from pinscope.experiments.contract import budget_of
from pinscope.experiments.scatter.experiment import EXPERIMENT, ScatterObservation, ScatterParams
from pinscope.experiments.scatter.findings import code
from pinscope.experiments.scatter.reading import Scatter
from pinscope.report.facts import table_texts
from tests.data import synthetic
from tests.data.readings import As, Made

draw = As("scatter").draw
MADE = Made("scatter")
read, findings = MADE.reading, MADE.findings

ROWS = list[dict[str, Any]]
KIB = 1024
PIECES = 4096


def rows(way: str, rate: float, size: int = 4 * KIB, *, held: float = 0.5, **labels: Any) -> ROWS:
    """Eight equal repeats after a warm-up, at so many bytes/second."""
    seconds = PIECES * size / rate
    given: dict[str, Any] = {"direction": "h2d", "layout": "scattered", "sms": 0, **labels}
    return [
        ScatterObservation(
            kind="move", repeat=max(number - 1, 0), warmup=number == 0, way=way, bytes=size, pieces=PIECES,
            wall_seconds=seconds, device_seconds=seconds * 0.9, issue_seconds=seconds * held,
            wrong_words=None, **given,
        ).model_dump()
        for number in range(9)
    ]  # fmt: skip


def wild(way: str, *rates: float, **labels: Any) -> ROWS:
    """Twice each rate."""
    return [row for rate in rates for row in rows(way, rate, **labels)[1:3]]


def loads(way: str, slower: float, blocks: int | None = None, noise: float = 0.0) -> ROWS:
    return [
        ScatterObservation(
            kind="compute", repeat=number, warmup=False, way=way, direction="h2d", layout="scattered", bytes=4 * KIB,
            pieces=PIECES, blocks=blocks, sms=blocks or 0, wall_seconds=1e-3, alone_seconds=1e-2,
            together_seconds=1e-2 * (1 + slower + noise * (number - 3.5)),
        ).model_dump()
        for number in range(8)
    ]  # fmt: skip


def as_on_an_h100() -> ROWS:
    """Rounded: what a C++ program reached, and a larger size at which a loop is good enough."""
    measured: ROWS = []
    for size, loop, batch, kernel, contiguous in (
        (4 * KIB, 1.45e9, 3.3e9, 49.7e9, 54e9), (256 * KIB, 34.5e9, 48.7e9, 51.1e9, 55e9),
        (4096 * KIB, 52.5e9, 54e9, 50.5e9, 55e9),
    ):  # fmt: skip
        measured += (
            rows("contiguous", contiguous, size) + rows("loop", loop, size, held=0.9) + rows("batch", batch, size)
        )
        measured += rows("graph", loop, size, held=0.75) + rows("cpu", 9e9, size, threads=1)
        measured += rows("kernel", kernel * 0.6, size, blocks=2, sms=2, held=0.01)
        measured += rows("kernel", kernel, size, blocks=8, sms=8, held=0.01)
        measured += rows("kernel", kernel * 1.01, size, blocks=132, sms=132, held=0.01)
    return measured


def loop_suffices(measured: ROWS) -> int | None:
    return Scatter.of(measured).loop_suffices["h2d", "scattered"]


def test_of_ways_as_good_as_the_fastest_the_simplest_is_advised() -> None:
    best = {size: pieces.winners[0].way for (_, _, size), pieces in Scatter.of(as_on_an_h100()).cases.items()}
    assert best == {4 * KIB: "kernel", 256 * KIB: "batch", 4096 * KIB: "loop"}
    clear = Scatter.of(rows("loop", 10e9) + rows("kernel", 11.5e9))
    assert [cell.way for cell in clear.first.winners] == ["kernel"]


def test_a_way_that_noise_may_have_made_faster_is_not_advised() -> None:
    kernel = wild("kernel", 20e9, 55e9, 55e9, 90e9, blocks=8)
    measured = [*rows("contiguous", 54e9), *rows("loop", 40e9), *kernel]
    assert "scatter-by-kernel" not in findings(measured)
    assert read(measured).verdict == (
        "Measure again: 4 KiB pieces scattered over 1 GiB to GPU vary too much to tell the fastest way."
    )


def test_no_rate_is_said_that_is_not_known() -> None:
    kernel, loop = rows("kernel", 50e9, blocks=8), wild("loop", 0.7e9, 1e9, 1e9, 1.6e9, held=0.9)
    slow = read([*kernel, *loop])
    assert (slow.verdict or "").endswith("to GPU by one kernel: 50.0 GB/s, a loop is slower.")
    assert not slow.findings
    assert "n/a" in [cell for table in slow.tables for row in table_texts(table) for cell in row]
    steady = read([*kernel, *rows("loop", 1e9, held=0.9)])
    assert (steady.verdict or "").endswith("to GPU by one kernel: 50.0 GB/s, a loop 1.00 GB/s.")
    assert {finding.rule for finding in steady.findings} == {"scatter-by-kernel", "scatter-cpu-held"}


def test_a_way_is_not_advised_where_a_loop_is_as_good() -> None:
    small = rows("copy_2d", 53e9, layout="strided") + rows("loop", 1.6e9, layout="strided")
    same = rows("copy_2d", 55e9, 4096 * KIB, layout="strided") + rows("loop", 53e9, 4096 * KIB, layout="strided")
    slow = rows("copy_2d", 55e9, 4096 * KIB, layout="strided") + rows("loop", 40e9, 4096 * KIB, layout="strided")
    assert "for strided pieces of 4 KiB to the GPU." in findings(small + same)["scatter-by-copy_2d"].detail
    assert "for strided pieces of 4 KiB and 4 MiB to the GPU." in findings(small + slow)["scatter-by-copy_2d"].detail
    assert "scatter-by-copy_2d" not in findings(same)
    assert (read(same).verdict or "").endswith("by one 2D copy (55.0 GB/s): no way is clearly faster.")


def test_a_loop_suffices_from_the_size_on_above_which_it_always_does() -> None:
    assert loop_suffices(as_on_an_h100()) == 4096 * KIB
    never = rows("contiguous", 50e9) + rows("loop", 10e9)
    assert loop_suffices(never) is None
    dip = rows("contiguous", 50e9, 8 * KIB) + rows("loop", 10e9, 8 * KIB)
    fine = [*rows("contiguous", 50e9), *rows("loop", 49e9)]
    assert loop_suffices(fine + dip) is None


def test_of_sizes_that_vary_too_much_it_is_not_said_whether_a_loop_suffices() -> None:
    small = [*rows("contiguous", 50e9), *rows("loop", 10e9), *rows("graph", 10e9)]
    large = rows("contiguous", 50e9, 64 * KIB)
    noise = wild("loop", 20e9, 49e9, 49e9, 90e9, size=64 * KIB)
    unknown = [*small, *large, *noise]
    assert "scatter-loop-suffices" not in findings(unknown)
    reasons = {figure.key: figure.reason for figure in read(unknown).headline}
    assert reasons["loop.size"] == "its repeats vary too much"
    assert "scatter-loop-suffices" in findings([*small, *large, *rows("loop", 48e9, 64 * KIB)])
    slow = [*large, *rows("loop", 16e9, 64 * KIB)]
    title = "A loop of copies is not good enough at {} a piece"
    assert findings([*small, *slow])["scatter-loop-suffices"].title == title.format("4 KiB and 64 KiB")
    odd = [*rows("loop", 10e9), *wild("contiguous", 20e9, 49e9, 49e9, 90e9), *slow]
    assert findings(odd)["scatter-loop-suffices"].title == title.format("64 KiB")


@pytest.mark.parametrize(("area", "words"), [(2**28, "256 MiB"), (2**30, "1 GiB")])
def test_what_is_advised_names_the_area_that_it_was_measured_on(area: int, words: str) -> None:
    reading = read(as_on_an_h100(), params={"area": area})
    assert f"4 KiB pieces scattered over {words} to GPU by one kernel: 49.7 GB/s" in (reading.verdict or "")
    (kernel,) = (finding for finding in reading.findings if finding.rule == "scatter-by-kernel")
    assert f"for pieces in {words}" in kernel.detail


@pytest.mark.parametrize("way", ["batch", "copy_2d", "kernel"])
def test_code_to_paste_is_python_with_the_measured_numbers(way: str) -> None:
    text = code(Scatter.of(rows(way, 1e9, blocks=8)).cells[0])
    compile(text, way, "exec")
    assert "piece, pieces = 4096, 4096" in text
    assert "BLOCKS" not in text


def test_what_the_kernel_costs_compute_is_told_for_few_and_many_blocks_and_beside_the_batch() -> None:
    beside = loads("kernel", 0.002, 8) + loads("kernel", 0.3, 132) + loads("batch", -0.01)
    finding = findings(as_on_an_h100() + beside)["scatter-compute"]
    assert finding.severity == "warning"
    assert "a kernel of 132 blocks to the GPU takes 30.0 % longer, beside 8 blocks not measurably" in finding.title
    assert "Beside a batch call it takes not measurably longer." in finding.detail
    assert finding.evidence[0].value == pytest.approx(1.3)
    assert "scatter-compute" not in findings(as_on_an_h100() + loads("kernel", 0.001, 8))
    assert "scatter-compute" not in findings(as_on_an_h100() + loads("kernel", 0.1, 132, noise=0.1))


def test_a_batch_that_is_slower_into_an_idle_stream_is_to_be_queued_behind_work() -> None:
    small, large = rows("batch", 2.1e9) + rows("batch_queued", 6.9e9), rows("batch", 40e9, 64 * KIB)
    finding = findings(small + large + rows("batch_queued", 41e9, 64 * KIB))["scatter-batch-idle"]
    assert "scattered 4 KiB pieces at 2.10 GB/s into an idle stream, at 6.90 GB/s behind other work" in finding.title
    assert len(finding.title.split()) <= 20
    assert "64 KiB" not in finding.detail


def test_a_batch_is_not_to_be_queued_where_another_way_is_the_one_to_take() -> None:
    measured = rows("batch", 2.1e9) + rows("batch_queued", 6.9e9) + rows("kernel", 49e9, blocks=8)
    assert "scatter-batch-idle" not in findings(measured)


def test_nothing_is_said_of_an_idle_stream_where_a_batch_is_as_fast() -> None:
    measured = rows("batch", 40e9, 64 * KIB) + rows("batch_queued", 43e9, 64 * KIB) + rows("loop", 16e9, 64 * KIB)
    assert "scatter-batch-idle" not in findings(measured)
    assert Scatter.of(measured + rows("batch_queued", 90e9)).first.winners == []


def test_a_run_without_rows_says_and_draws_nothing_and_one_of_a_single_way_no_more_than_it_knows() -> None:
    assert (read([]).headline, read([]).tables, read([]).findings) == ((), (), ())
    assert draw(synthetic.run("overlap"), []) == []
    one = read(rows("contiguous", 50e9))
    assert (one.verdict, one.headline, one.findings) == (None, (), ())


@pytest.mark.parametrize("layout", ["scattered", "strided"])
def test_pieces_have_places_of_their_own_and_half_of_the_area_stays_free(layout: Any) -> None:
    case = ScatterParams.preset("cuda", quick=False).case("d2h", layout, 256 * KIB)
    places = case.places()
    assert case.pieces == len(set(places.tolist())) == 2048 == case.slots // 2
    assert (np.diff(places) == 2).all() == (layout == "strided")
    numbers = case.place_on_device(places)
    assert (numbers[places] == np.arange(case.pieces)).all()
    assert np.count_nonzero(numbers < 0) == case.slots - case.pieces
    assert (case.places() == places).all()


def test_a_2d_copy_is_measured_of_strided_pieces_only() -> None:
    params = ScatterParams.preset("cuda", quick=True)
    moves = [case.what for case in cast("Any", EXPERIMENT).cases(params)]
    assert len({pieces for pieces, _ in moves}) == 8
    ways = {
        layout: {variant.way for pieces, variant in moves if pieces.layout == layout}
        for layout in ("scattered", "strided")
    }
    assert ways["strided"] - ways["scattered"] == {"copy_2d"}
    assert {pieces.direction for pieces, variant in moves if variant.way == "batch_queued"} == {"h2d"}
    with pytest.raises(InvalidParameter, match="copy_2d takes the layout strided"):
        params.with_overrides({"ways": "copy_2d", "layouts": "scattered"})


def test_a_run_that_does_not_fit_takes_a_smaller_area_while_the_pieces_do() -> None:
    params = ScatterParams.preset("cuda", quick=False)
    budget = budget_of(EXPERIMENT, params, synthetic.environment())
    assert budget.pinned_bytes == 2**30 + 2**29 == budget.device_bytes
    smaller = params.smaller()
    assert smaller is not None
    assert smaller.area == 2**29
    assert params.with_overrides({"area": "16MiB"}).smaller() is None
