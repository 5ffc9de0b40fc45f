"""Which findings a run leads to, each rule with rows that meet it and rows that do not."""

from __future__ import annotations

from typing import Any

import pytest

from pinscope.experiments.registry import measured_run
from pinscope.records.environment import Environment, Link
from tests.data import synthetic
from tests.data.readings import Made
from tests.unit.experiments.bandwidth.test_arithmetic import row
from tests.unit.experiments.overlap.test_arithmetic import one_pass

MIB = 2**20
BANDWIDTH, OVERLAP = Made("bandwidth"), Made("overlap")
bandwidth_findings, overlap_findings = BANDWIDTH.findings, OVERLAP.findings


def copies(rate: float, size: int = 256 * MIB, **labels: Any) -> list[dict[str, Any]]:
    return [row(size / rate, size, **labels) for _ in range(8)]


def wild(*rates: float, **labels: Any) -> list[dict[str, Any]]:
    """Twice each rate."""
    return [row(256 * MIB / rate, 256 * MIB, **labels) for rate in rates for _ in range(2)]


def bandwidth_verdict(rows: list[dict[str, Any]], **changes: Any) -> str:
    return BANDWIDTH.reading(rows, **changes).verdict or ""


def test_slow_pageable_copies_are_found_with_the_size_from_which_it_matters() -> None:
    rows = copies(50e9) + copies(50e9, 4096) + copies(10e9, memory="pageable") + copies(49e9, 4096, memory="pageable")
    finding = bandwidth_findings(rows)["pageable-slower"]
    assert finding.title == "Pageable copies take 5.0 times (± 27 %; h2d) as long as pinned ones"
    assert "Pinned copies are faster from 256 MiB on (h2d)." in finding.detail
    assert bandwidth_verdict(rows) == (
        "Pin host buffers of 256 MiB copied to GPU: unpinned, 256 MiB is about 5.0 times slower."
    )


def test_a_gain_that_is_known_only_roughly_says_so() -> None:
    slow = wild(8e9, 9e9, 10e9, 11e9, memory="pageable")
    finding = bandwidth_findings([*copies(50e9), *slow])["pageable-slower"]
    assert "times (± 46 %; h2d)" in finding.title
    assert "about 5.3 times slower" in bandwidth_verdict([*copies(50e9), *slow])


def test_a_gain_that_noise_may_have_made_is_none() -> None:
    rows = [*copies(50e9), *wild(20e9, 60e9, 30e9, 60e9, memory="pageable")]
    assert "pageable-slower" not in bandwidth_findings(rows)
    assert "vary too much to tell whether pinning makes them faster" in bandwidth_verdict(rows)


def test_where_only_one_direction_is_known_the_other_is_not_said_to_be_faster() -> None:
    known = [*copies(50e9), *copies(10e9, memory="pageable")]
    back = copies(50e9, direction="d2h")
    both = [*known, *back, *copies(10e9, memory="pageable", direction="d2h")]
    one = [*known, *back, *wild(20e9, 60e9, 30e9, 60e9, memory="pageable", direction="d2h")]
    assert "at every size measured, from 256 MiB (h2d and d2h)." in bandwidth_findings(both)["pageable-slower"].detail
    assert "at every size measured, from 256 MiB (h2d)." in bandwidth_findings(one)["pageable-slower"].detail
    assert bandwidth_verdict(both).startswith("Pin host buffers of 256 MiB: unpinned, 256 MiB to GPU")
    assert bandwidth_verdict(one).startswith("Pin host buffers of 256 MiB copied to GPU: unpinned")


def test_a_gain_of_which_only_its_sign_is_known_has_no_figure() -> None:
    rows = [*copies(50e9), *wild(1e9, 1.3e9, 1.5e9, 1.8e9, memory="pageable")]
    assert "pageable-slower" not in bandwidth_findings(rows)
    assert bandwidth_verdict(rows) == "Pin host buffers of 256 MiB copied to GPU: unpinned, 256 MiB is slower."


def test_of_a_call_whose_time_varies_too_much_it_is_said_what_it_takes_at_most() -> None:
    pinned, slow = copies(50e9), copies(10e9, memory="pageable")
    odd = [{**call, "issue_seconds": 1e-6 * number} for number, call in enumerate(pinned, 1)]
    assert "after 1.00 µs instead of 1.00 µs (h2d)" in bandwidth_findings([*pinned, *slow])["pageable-slower"].detail
    finding = bandwidth_findings([*odd, *slow])["pageable-slower"]
    assert "after 1.00 µs instead of at most " in finding.detail
    assert [figure.value for figure in finding.evidence if "call" in figure.name] == [None, 1e-6]


@pytest.mark.parametrize(
    ("rate", "words"),
    [(49e9, "makes no difference to copies to GPU that ± could tell"), (90e9, "makes copies to GPU slower")],
)
def test_pinned_copies_that_are_no_faster_are_not_called_so(rate: float, words: str) -> None:
    assert f"Pinning {words}: " in bandwidth_verdict([*copies(50e9), *copies(rate, memory="pageable")])


@pytest.mark.parametrize("rows", [copies(5e9), [*copies(5e9), *copies(2e9, memory="pageable")]])
def test_a_verdict_on_the_host_model_says_so_and_names_no_gpu_copy(rows: list[dict[str, Any]]) -> None:
    verdict = bandwidth_verdict(rows, lab="host")
    assert verdict.startswith("Host model, no GPU: pin")
    assert " GPU" not in verdict[18:]


def test_a_size_at_which_pageable_copies_vary_is_none_from_which_pinned_ones_are_faster() -> None:
    small = [row(4096 / rate, 4096, memory="pageable") for rate in (20e9, 60e9, 30e9, 40e9) for _ in range(2)]
    finding = bandwidth_findings([*copies(50e9), *copies(50e9, 4096), *copies(10e9, memory="pageable"), *small])
    assert "faster from 256 MiB on" in finding["pageable-slower"].detail


def test_equally_fast_pageable_copies_are_no_finding() -> None:
    assert "pageable-slower" not in bandwidth_findings(copies(50e9) + copies(49e9, memory="pageable"))


def test_the_best_pinned_rate_is_judged_by_what_the_link_can_carry() -> None:
    assert "link-slow" not in bandwidth_findings(copies(55e9))
    assert "in packets of 256 bytes (assumed)." in bandwidth_findings(copies(20e9))["link-slow"].detail


def test_a_rate_that_noise_may_have_made_low_is_not_put_down_to_the_link() -> None:
    noise, slow = wild(40e9, 46e9, 50e9, 55e9), copies(20e9, direction="d2h")
    assert "link-slow" not in bandwidth_findings(noise)
    found = bandwidth_findings([*noise, *slow])["link-slow"]
    assert [figure.name for figure in found.evidence] == ["Best pinned rate, d2h", "Link limit"]


def test_a_rate_above_the_limit_of_the_link_is_no_share_above_100_per_cent() -> None:
    headline = {figure.name: figure for figure in BANDWIDTH.reading(copies(60e9)).headline}
    share = headline["Share of the link's limit, pinned to GPU, 256 MiB"]
    assert share.value is None
    assert share.reason


def test_both_ways_count_while_both_copy_also_in_older_runs() -> None:
    """1 GB each way: 50 GB/s while both copy, though the slower one goes on alone. Pageable copies go in turn."""

    def rate(memory: str) -> float:
        rows = [
            row(0.025, 10**9, direction="bidirectional", memory=memory, h2d_seconds=0.02, d2h_seconds=0.025)
            for _ in range(8)
        ]
        (cell,) = measured_run(synthetic.run("bandwidth"), rows).cells
        return float(cell.bytes_per_second)

    assert rate("pinned") == pytest.approx(1e9 / 0.02 + 1e9 / 0.025)
    assert rate("pageable") == pytest.approx(2e9 / 0.025)


def test_a_figure_that_may_be_off_by_more_than_half_is_none() -> None:
    def headline(*rates: float) -> list[Any]:
        rows = [each for rate in rates for each in copies(rate)[:3]]
        return [figure.value for figure in BANDWIDTH.reading(rows).headline]

    assert headline(5e9, 13e9, 40e9) == [None, None]
    assert headline(12e9, 13e9, 14e9) == [pytest.approx(13e9), pytest.approx(0.226, abs=1e-3)]


def test_small_copies_alone_do_not_judge_the_link() -> None:
    assert "link-slow" not in bandwidth_findings(copies(1e9, 4096))
    assert not any("link" in figure.name for figure in BANDWIDTH.reading(copies(1e9, 4096)).headline)


def test_a_link_narrower_than_it_could_be_is_found() -> None:
    environment: Environment = synthetic.environment()
    device = environment.devices[0]
    assert isinstance(device.link, Link)
    narrow = device.model_copy(update={"link": device.link.model_copy(update={"width_now": 8})})
    found = bandwidth_findings(copies(55e9), environment=environment.model_copy(update={"devices": (narrow,)}))
    assert found["link-below-best"].title == "GPU 0: only 8 of 16 PCIe lanes are in use"


def test_the_host_model_says_nothing_about_a_link() -> None:
    found = bandwidth_findings(copies(5e9), lab="host")
    assert not {"link-slow", "link-below-best"} & set(found)


def pageable(rate: float, backing: str, cache: str, size: int = 16 * MIB, **labels: Any) -> list[dict[str, Any]]:
    return copies(rate, size, memory="pageable", backing=backing, cache=cache, **labels)


def test_a_range_of_pageable_rates_is_that_of_what_changes_them() -> None:
    caches = [*pageable(8e9, "4k", "cold"), *pageable(15e9, "4k", "warm"), *pageable(7.9e9, "thp", "cold")]
    finding = bandwidth_findings([*caches, *pageable(15.5e9, "thp", "warm")])["pageable-state"]
    assert finding.title == "CPU caches change how fast large pageable copies are: 7.90 to 15.5 GB/s (h2d, 16 MiB)"
    assert "slowest with thp, cold, fastest with thp, warm" in finding.detail
    both = [*pageable(4e9, "4k", "cold"), *pageable(8e9, "4k", "warm"), *pageable(9e9, "thp", "cold")]
    finding = bandwidth_findings([*both, *pageable(18e9, "thp", "warm")])["pageable-state"]
    assert "Pages and CPU caches change how fast large pageable copies are: 4.00 to 18.0 GB/s" in finding.title


def passes_of(seconds: float, **changes: Any) -> list[dict[str, Any]]:
    return [one_pass(seconds, **changes) for _ in range(8)]


def overlap_verdict(rows: list[dict[str, Any]], **changes: Any) -> str:
    return OVERLAP.reading(rows, **changes).verdict or ""


def test_a_recipe_that_overlaps_is_good_and_one_that_does_not_is_a_warning() -> None:
    assert overlap_findings(passes_of(1.03))["recipe-overlaps"].severity == "good"
    assert overlap_findings(passes_of(1.8))["recipe-does-not-overlap"].severity == "warning"


def test_a_missing_ingredient_is_named_with_what_it_costs() -> None:
    rows = passes_of(1.03) + passes_of(2.06, separate_stream=False)
    finding = overlap_findings(rows)["ingredient-missing"]
    assert finding.title == "One stream for both makes the balanced pipeline take 2.0 times (h2d) as long"
    assert finding.detail == "It takes 2.06 s instead of 1.03 s (h2d). h2d: copies and kernels do not overlap."
    assert finding.severity == "warning"
    for seconds, why in ((1.96, "copies and kernels do not overlap."), (1.94, "6.0 % of the shorter of")):
        rows = passes_of(1.03) + passes_of(seconds, separate_stream=False)
        assert f"h2d: {why}" in overlap_findings(rows)["ingredient-missing"].detail


def test_passes_that_vary_too_much_tell_nothing_of_what_overlaps() -> None:
    wild = [one_pass(seconds) for seconds in (1.0, 3.0, 1.0, 3.0, 1.1, 2.9) for _ in range(2)]
    reading = OVERLAP.reading(wild)
    assert (reading.verdict or "").startswith("Measure again: ")
    assert [figure.value for figure in reading.headline] == [None]
    assert not {"recipe-overlaps", "recipe-does-not-overlap"} & {finding.rule for finding in reading.findings}


def test_a_verdict_names_the_direction_that_does_not_overlap_and_no_share_that_cannot_be() -> None:
    failing = passes_of(1.03) + passes_of(1.6, direction="d2h")
    assert "hide only 40.0 % of copies from GPU or kernels" in overlap_verdict(failing)
    assert "Copies to GPU and kernels do not overlap here" in overlap_verdict(passes_of(2.2))
    assert "%" not in overlap_verdict(passes_of(0.9))
    assert overlap_verdict(passes_of(1.03), lab="host").startswith("Host model, no GPU: use pinned memory, ")


def test_a_verdict_names_the_first_direction_in_which_each_ingredient_is_known_to_tell() -> None:
    pageable = {"memory": "pageable", "copy_alone_seconds": 5.3}
    back = passes_of(1.02, direction="d2h") + passes_of(6.0, direction="d2h", **pageable)
    noise = [one_pass(seconds, **pageable) for seconds in (1.0, 9.0, 1.0, 9.0) for _ in range(2)]
    assert ": from GPU 1.02 s" in overlap_verdict(passes_of(1.03) + noise + back)
    assert ": to GPU 1.03 s" in overlap_verdict(passes_of(1.03) + passes_of(6.0, **pageable) + back)


def test_no_share_of_a_run_lies_beyond_nothing_and_everything() -> None:
    rows = passes_of(0.9) + passes_of(2.3, separate_stream=False)
    rows += passes_of(6.5, memory="pageable", copy_alone_seconds=5.3)
    reading = OVERLAP.reading(rows)
    shown = [*reading.headline, *(figure for finding in reading.findings for figure in finding.evidence)]
    assert all(0 <= one.value <= 1 for one in shown if one.unit == "share" and isinstance(one.value, float))
    (table,) = reading.tables
    shares = [cell for row in table.rows for cell, unit in zip(row, table.units, strict=True) if unit == "share"]
    assert all(0 <= cell <= 1 for cell in shares if isinstance(cell, float))


def test_what_is_no_slower_than_a_recipe_that_hides_nothing_costs_nothing() -> None:
    for seconds, found in [(2.1, False), (2.2, False), (2.3, False), (3.5, True)]:
        rows = passes_of(2.2) + passes_of(seconds, separate_stream=False)
        assert ("ingredient-missing" in overlap_findings(rows)) == found


def test_a_missing_ingredient_whose_cost_noise_may_have_made_is_none() -> None:
    wild = [one_pass(seconds, separate_stream=False) for seconds in (1.0, 3.0, 1.0, 3.0) for _ in range(2)]
    assert "ingredient-missing" not in overlap_findings(passes_of(1.03) + wild)


def test_corruption_without_events_is_expected_and_with_them_critical() -> None:
    assert overlap_findings(passes_of(1.0, events=False, corrupted_chunks=1))["unsafe-without-events"]
    on_one_stream = passes_of(1.0, events=False, separate_stream=False, corrupted_chunks=1)
    assert overlap_findings(on_one_stream)["ordered-copy-corrupted"].severity == "critical"
