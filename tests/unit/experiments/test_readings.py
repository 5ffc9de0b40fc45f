"""Which findings a run leads to, each rule with rows that meet it and rows that do not."""

from __future__ import annotations

from typing import Any

import pytest

from pinscope.records.environment import Environment, Link
from pinscope.records.finding import Finding
from pinscope.records.run import Run
from tests.data import synthetic
from tests.data.readings import As
from tests.unit.experiments.bandwidth.test_arithmetic import row
from tests.unit.experiments.overlap.test_arithmetic import one_pass

MIB = 2**20
read_bandwidth, read_overlap = As("bandwidth").read, As("overlap").read


def copies(rate: float, size: int = 256 * MIB, **labels: Any) -> list[dict[str, Any]]:
    return [row(size / rate, size, **labels) for _ in range(8)]


def bandwidth_findings(rows: list[dict[str, Any]], **changes: Any) -> dict[str, Finding]:
    run: Run = synthetic.run("bandwidth", **changes)
    return {finding.rule: finding for finding in read_bandwidth(run, rows).findings}


def bandwidth_verdict(rows: list[dict[str, Any]], **changes: Any) -> str:
    return read_bandwidth(synthetic.run("bandwidth", **changes), rows).verdict or ""


def overlap_findings(rows: list[dict[str, Any]]) -> dict[str, Finding]:
    return {finding.rule: finding for finding in read_overlap(synthetic.run("overlap"), rows).findings}


def test_a_run_without_observations_reads_as_empty() -> None:
    for name, read in (("bandwidth", read_bandwidth), ("overlap", read_overlap)):
        reading = read(synthetic.run(name), [])
        assert reading.verdict is None
        assert (reading.headline, reading.tables, reading.findings) == ((), (), ())


def test_slow_pageable_copies_are_found_with_the_size_from_which_it_matters() -> None:
    rows = copies(50e9) + copies(50e9, 4096) + copies(10e9, memory="pageable") + copies(49e9, 4096, memory="pageable")
    finding = bandwidth_findings(rows)["pageable-slower"]
    assert finding.title == "Pageable copies take 5.0 times (h2d) as long as pinned ones"
    assert "Pinned copies are faster from 256 MiB on." in finding.detail
    assert bandwidth_verdict(rows) == ("Pin copies to GPU of 256 MiB: pageable ones are 5.0 times slower.")


def test_both_directions_are_one_finding_and_the_worse_decides_how_grave_it_is() -> None:
    rows = [*copies(50e9), *copies(10e9, memory="pageable")]
    back = [*copies(50e9, direction="d2h"), *copies(42e9, memory="pageable", direction="d2h")]
    finding = bandwidth_findings([*rows, *back])["pageable-slower"]
    assert "5.0 times (h2d) and 1.2 times (d2h)" in finding.title
    assert finding.severity == "warning"
    assert bandwidth_findings(back)["pageable-slower"].severity == "note"


def test_a_gain_that_is_known_only_roughly_says_so() -> None:
    slow = [row(256 * MIB / rate, 256 * MIB, memory="pageable") for rate in (8e9, 9e9, 10e9, 11e9) for _ in range(2)]
    finding = bandwidth_findings([*copies(50e9), *slow])["pageable-slower"]
    assert "times (± 18 %; h2d)" in finding.title
    assert "about 5.3 times slower" in bandwidth_verdict([*copies(50e9), *slow])


def test_a_gain_that_noise_may_have_made_is_none() -> None:
    wild = [row(256 * MIB / rate, 256 * MIB, memory="pageable") for rate in (20e9, 60e9, 30e9, 60e9) for _ in range(2)]
    assert "pageable-slower" not in bandwidth_findings([*copies(50e9), *wild])
    assert "vary too much to tell whether pinning makes them faster" in bandwidth_verdict([*copies(50e9), *wild])


@pytest.mark.parametrize(
    ("rate", "words"), [(49e9, "hardly makes copies to GPU faster"), (70e9, "makes copies to GPU slower")]
)
def test_pinned_copies_that_are_no_faster_are_not_called_so(rate: float, words: str) -> None:
    assert f"Pinning {words}: " in bandwidth_verdict([*copies(50e9), *copies(rate, memory="pageable")])


def test_one_kind_of_memory_alone_still_has_a_verdict() -> None:
    both = [*copies(55e9), *copies(54e9, direction="d2h")]
    assert bandwidth_verdict(both) == ("Pinned copies of 256 MiB run at 55.0 GB/s to GPU and 54.0 GB/s from GPU.")
    assert bandwidth_verdict(copies(10e9, memory="pageable")) == "Pageable copies of 256 MiB run at 10.0 GB/s to GPU."
    kernels = copies(45e9, copier="kernel", memory="write_combined")
    headline = read_bandwidth(synthetic.run("bandwidth"), kernels).headline
    assert [one.name for one in headline] == ["Write-combined to GPU, by a kernel, 256 MiB"]
    assert bandwidth_verdict(kernels) == "Write-combined copies of 256 MiB by a kernel run at 45.0 GB/s to GPU."


def test_the_headline_begins_with_the_rate_the_gain_and_the_share_of_the_link() -> None:
    rows = [*copies(55e9), *copies(10e9, memory="pageable"), *copies(54e9, direction="d2h")]
    assert [one.name for one in read_bandwidth(synthetic.run("bandwidth"), rows).headline][:4] == [
        "Pinned to GPU, 256 MiB", "Pinned against pageable, to GPU, 256 MiB",
        "Share of the link's limit, best pinned to GPU", "Pinned from GPU, 256 MiB",
    ]  # fmt: skip


def test_wrong_data_is_the_verdict_whatever_the_rates_are() -> None:
    assert "delivered wrong data" in bandwidth_verdict([*copies(50e9), *copies(10e9, memory="pageable", wrong_words=1)])


@pytest.mark.parametrize("rows", [copies(5e9), [*copies(5e9), *copies(2e9, memory="pageable")]])
def test_a_verdict_on_the_host_model_says_so_and_names_no_gpu_copy(rows: list[dict[str, Any]]) -> None:
    verdict = bandwidth_verdict(rows, lab="host")
    assert verdict.startswith("Host model, no GPU: pin")
    assert " GPU" not in verdict[18:]


def test_copies_that_are_faster_at_the_smallest_size_are_not_said_to_be_slower_below_it() -> None:
    rows = copies(50e9) + copies(50e9, 4096) + copies(10e9, memory="pageable") + copies(20e9, 4096, memory="pageable")
    assert "faster at every size measured, from 4 KiB." in bandwidth_findings(rows)["pageable-slower"].detail
    assert bandwidth_verdict(rows).startswith("Pin copies to GPU from 4 KiB on: ")
    evidence = {one.name: one.value for one in bandwidth_findings(rows)["pageable-slower"].evidence}
    assert evidence["Size from which pinned is faster, h2d (smallest measured)"] == 4096


def test_a_size_at_which_pageable_copies_vary_is_none_from_which_pinned_ones_are_faster() -> None:
    wild = [row(4096 / rate, 4096, memory="pageable") for rate in (20e9, 60e9, 30e9, 40e9) for _ in range(2)]
    finding = bandwidth_findings([*copies(50e9), *copies(50e9, 4096), *copies(10e9, memory="pageable"), *wild])
    assert "faster from 256 MiB on" in finding["pageable-slower"].detail


def test_equally_fast_pageable_copies_are_no_finding() -> None:
    assert "pageable-slower" not in bandwidth_findings(copies(50e9) + copies(49e9, memory="pageable"))


def test_the_best_pinned_rate_is_judged_by_what_the_link_can_carry() -> None:
    assert "link-slow" not in bandwidth_findings(copies(55e9))
    assert "in packets of 256 bytes (assumed)." in bandwidth_findings(copies(20e9))["link-slow"].detail


def test_both_directions_of_a_link_are_one_finding_and_the_slower_decides() -> None:
    found = bandwidth_findings([*copies(55e9), *copies(20e9, direction="d2h")])
    assert "95.5 % (h2d) and 34.7 % (d2h)" in found["link-slow"].title


def test_a_rate_above_the_limit_of_the_link_is_no_share_above_100_per_cent() -> None:
    headline = {one.name: one for one in read_bandwidth(synthetic.run("bandwidth"), copies(60e9)).headline}
    share = headline["Share of the link's limit, best pinned to GPU"]
    assert share.value is None
    assert share.reason


def test_small_copies_alone_do_not_judge_the_link() -> None:
    assert "link-slow" not in bandwidth_findings(copies(1e9, 4096))
    assert not any("link" in one.name for one in read_bandwidth(synthetic.run("bandwidth"), copies(1e9, 4096)).headline)


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


def test_one_wrong_word_is_critical() -> None:
    assert bandwidth_findings(copies(50e9, wrong_words=1))["content-wrong"].severity == "critical"


@pytest.mark.parametrize(("together", "shared"), [(55e9, False), (28e9, True)])
def test_gpus_at_once_tell_whether_they_share_an_uplink(together: float, shared: bool) -> None:
    alone = [one for device in (0, 1) for one in copies(55e9, device=device)]
    both = [one for device in (0, 1) for one in copies(together, device=device, devices=2)]
    assert ("shared-uplink" in bandwidth_findings(alone + both)) == shared


def test_what_gpus_reach_together_is_no_finer_than_it_is_known() -> None:
    alone = [one for device in (0, 1) for one in copies(55e9, device=device)]
    wild = [row(256 * MIB / rate, 256 * MIB, device=device, devices=2)
            for device in (0, 1) for rate in (25e9, 30e9, 27e9, 27.5e9) for _ in range(2)]  # fmt: skip
    assert bandwidth_findings(alone + wild)["shared-uplink"].title.startswith("2 GPUs at once reach 50 % (±")
    wilder = [row(256 * MIB / rate, 256 * MIB, device=device, devices=2)
              for device in (0, 1) for rate in (30e9, 60e9, 45e9, 50e9) for _ in range(2)]  # fmt: skip
    assert "shared-uplink" not in bandwidth_findings(alone + wilder)


def pageable(rate: float, backing: str, cache: str, size: int = 16 * MIB, **labels: Any) -> list[dict[str, Any]]:
    return copies(rate, size, memory="pageable", backing=backing, cache=cache, **labels)


def test_pinned_is_compared_with_pageable_memory_as_malloc_gives_it_in_no_cache_and_says_so() -> None:
    rows = copies(50e9, 16 * MIB) + copies(30e9, 16 * MIB, cache="warm")
    rows += pageable(20e9, "thp", "warm") + pageable(12e9, "thp", "cold") + pageable(10e9, "4k", "cold")
    reading = read_bandwidth(synthetic.run("bandwidth"), rows)
    headline = {one.name: one.value for one in reading.headline}
    assert headline["Pinned against pageable (4 KiB pages, cold CPU caches), to GPU, 16 MiB"] == pytest.approx(5)
    found = {finding.rule: finding for finding in reading.findings}
    assert "(4 KiB pages, cold CPU caches)" in found["pageable-slower"].title


def test_states_of_pageable_memory_that_differ_are_a_finding_with_the_slowest_and_the_fastest() -> None:
    different = pageable(18e9, "thp", "warm") + pageable(13e9, "4k", "cold") + pageable(15e9, "4k", "warm")
    finding = bandwidth_findings(different)["pageable-state"]
    assert finding.title.endswith(": 13.0 to 18.0 GB/s (h2d)")
    assert finding.detail.startswith("h2d, 16 MiB: slowest with 4k, cold, fastest with thp, warm.")
    assert finding.title.startswith("Pages and CPU caches change")
    by_caches = different + pageable(13e9, "thp", "cold")
    assert bandwidth_findings(by_caches)["pageable-state"].title.startswith("CPU caches change")
    equal = pageable(13.5e9, "thp", "warm") + pageable(13e9, "4k", "cold")
    assert "pageable-state" not in bandwidth_findings(equal)


def passes_of(seconds: float, **changes: Any) -> list[dict[str, Any]]:
    return [one_pass(seconds, **changes) for _ in range(8)]


def overlap_verdict(rows: list[dict[str, Any]], **changes: Any) -> str:
    return read_overlap(synthetic.run("overlap", **changes), rows).verdict or ""


def test_a_recipe_that_overlaps_is_good_and_one_that_does_not_is_a_warning() -> None:
    assert overlap_findings(passes_of(1.03))["recipe-overlaps"].severity == "good"
    assert overlap_findings(passes_of(1.8))["recipe-does-not-overlap"].severity == "warning"


def test_a_missing_ingredient_is_named_with_what_it_costs() -> None:
    rows = passes_of(1.03) + passes_of(2.06, separate_stream=False)
    finding = overlap_findings(rows)["ingredient-missing"]
    assert finding.title == "One stream for both makes the balanced pipeline take 2.0 times (h2d) as long"
    assert finding.detail == "It takes 2.06 s instead of 1.03 s (h2d). h2d: copies and kernels do not overlap."
    assert finding.severity == "warning"


def test_a_missing_ingredient_is_one_finding_for_both_directions() -> None:
    rows = passes_of(1.03) + passes_of(2.06, separate_stream=False)
    rows += passes_of(1.03, direction="d2h") + passes_of(2.06, separate_stream=False, direction="d2h")
    found = [one for one in read_overlap(synthetic.run("overlap"), rows).findings if one.rule == "ingredient-missing"]
    assert len(found) == 1
    assert "2.0 times (h2d) and 2.0 times (d2h)" in found[0].title
    assert found[0].detail.endswith("h2d and d2h: copies and kernels do not overlap.")


def test_what_costs_most_comes_first() -> None:
    rows = passes_of(1.03) + passes_of(2.06, separate_stream=False)
    rows += passes_of(5.37, memory="pageable", copy_alone_seconds=5.3) + passes_of(2.5, depth=1)
    titles = [one.title for one in read_overlap(synthetic.run("overlap"), rows).findings if one.severity == "warning"]
    assert [title.split(" makes")[0] for title in titles] == [
        "Pageable memory", "A single device buffer", "One stream for both"
    ]  # fmt: skip


def test_the_verdict_on_overlap_says_what_is_hidden() -> None:
    assert overlap_verdict(passes_of(1.03)) == (
        "Use pinned memory, a copy stream, two buffers and events: the pipeline to GPU takes 1.03 s, not 2.00 s."
    )
    assert "the pipeline from GPU takes" in overlap_verdict(passes_of(1.03, direction="d2h"))
    assert overlap_verdict(passes_of(1.03, events=False)) == ""
    assert "do not trust" in overlap_verdict(passes_of(1.0, corrupted_chunks=1))


def test_a_verdict_names_the_direction_that_does_not_overlap_and_no_share_that_cannot_be() -> None:
    failing = passes_of(1.03) + passes_of(1.6, direction="d2h")
    assert "hide only 40.0 % of copies from GPU or kernels" in overlap_verdict(failing)
    assert "Copies to GPU and kernels do not overlap here" in overlap_verdict(passes_of(2.2))
    assert "%" not in overlap_verdict(passes_of(0.9))
    assert overlap_verdict(passes_of(1.03), lab="host").startswith("Host model, no GPU: use pinned memory, ")


def test_no_share_of_a_run_lies_beyond_nothing_and_everything() -> None:
    rows = passes_of(0.9) + passes_of(2.3, separate_stream=False)
    rows += passes_of(6.5, memory="pageable", copy_alone_seconds=5.3)
    reading = read_overlap(synthetic.run("overlap"), rows)
    shown = [*reading.headline, *(each for finding in reading.findings for each in finding.evidence)]
    assert all(0 <= one.value <= 1 for one in shown if one.unit == "share" and isinstance(one.value, float))
    (table,) = reading.tables
    shares = [cell for row in table.rows for cell, unit in zip(row, table.units, strict=True) if unit == "share"]
    assert all(0 <= cell <= 1 for cell in shares if isinstance(cell, float))


def test_where_the_full_recipe_hides_nothing_no_share_below_zero_is_hidden() -> None:
    finding = overlap_findings(passes_of(2.2))["recipe-does-not-overlap"]
    assert finding.title == (
        "Pinned memory, a copy stream, two buffers and events hide nothing (h2d) of copies or kernels, "
        "whichever are shorter"
    )


@pytest.mark.parametrize(("seconds", "found"), [(2.1, False), (2.2, False), (2.3, False), (3.5, True)])
def test_what_is_no_slower_than_a_recipe_that_hides_nothing_costs_nothing(seconds: float, found: bool) -> None:
    rows = passes_of(2.2) + passes_of(seconds, separate_stream=False)
    assert ("ingredient-missing" in overlap_findings(rows)) == found


def test_slow_copies_are_named_as_the_reason_with_how_long_compute_is_idle() -> None:
    rows = passes_of(1.03) + passes_of(5.37, memory="pageable", copy_alone_seconds=5.3)
    finding = overlap_findings(rows)["ingredient-missing"]
    assert finding.title == "Pageable memory makes the balanced pipeline take 5.2 times (h2d) as long"
    assert finding.detail.endswith(
        "h2d: the copies alone take 5.3 times as long as pinned ones, and compute is idle 200 ms of 5.37 s."
    )
    assert all(one.value is None or not isinstance(one.value, float) or one.value >= 0 for one in finding.evidence)


def test_corruption_is_said_for_each_case_apart() -> None:
    """As on an H200, where one figure, 63.1 %, was the mean of cases of 0, 37 and 100 %."""
    rows = passes_of(1.0, events=False, corrupted_chunks=50, direction="d2h")
    rows += passes_of(1.0, events=False, corrupted_chunks=20)
    rows += passes_of(1.0, events=False, corrupted_chunks=49, balance="copy_bound")
    rows += passes_of(5.0, events=False, memory="pageable", copy_alone_seconds=5.0)
    reading = read_overlap(synthetic.run("overlap"), rows)
    found = {one.rule: one for one in reading.findings}
    unsafe = found["unsafe-without-events"]
    assert unsafe.severity == "note"
    assert "in passes without them, made on purpose, up to 100.0 % of the chunks were wrong" in unsafe.title
    assert unsafe.detail.startswith(
        "Pinned memory, h2d: 40.0 % balanced, 98.0 % copy-bound; pageable memory, h2d: 0.0 %"
    )
    assert {one.name: one.value for one in unsafe.evidence} == {
        "Wrong chunks, pinned memory, h2d, balanced": 0.4, "Wrong chunks, pinned memory, h2d, copy-bound": 0.98,
        "Wrong chunks, pinned memory, d2h, balanced": 1.0, "Wrong chunks, pageable memory, h2d, balanced": 0.0,
        "Checked chunks": 1600,
    }  # fmt: skip
    shares = {one.name: one.value for one in reading.headline if "Wrong" in one.name}
    assert shares == {"Wrong chunks without events, from GPU": 1.0, "Wrong chunks without events, to GPU": 0.4}
    assert "unordered-yet-intact" not in found


def test_events_that_were_left_out_without_harm_are_still_asked_for() -> None:
    finding = overlap_findings(passes_of(1.0, events=False))["unordered-yet-intact"]
    assert "none of 400 chunks held wrong data" in finding.title
    assert "cudaStreamWaitEvent" in finding.advice


def test_a_missing_ingredient_whose_cost_noise_may_have_made_is_none() -> None:
    wild = [one_pass(seconds, separate_stream=False) for seconds in (1.0, 3.0, 1.0, 3.0) for _ in range(2)]
    assert "ingredient-missing" not in overlap_findings(passes_of(1.03) + wild)


def test_of_slow_copies_it_is_said_how_long_compute_is_idle_and_not_what_they_hide() -> None:
    slow = passes_of(5.0, memory="pageable", copy_alone_seconds=5.3)
    detail = overlap_findings(passes_of(1.0) + slow)["ingredient-missing"].detail
    assert detail.endswith("5.3 times as long as pinned ones, and compute is idle 200 ms of 5.00 s.")
    assert "hidden" not in detail


def test_corruption_without_events_is_expected_and_with_them_critical() -> None:
    assert overlap_findings(passes_of(1.0, events=False, corrupted_chunks=1))["unsafe-without-events"]
    assert overlap_findings(passes_of(1.0, corrupted_chunks=1))["ordered-copy-corrupted"].severity == "critical"
    on_one_stream = passes_of(1.0, events=False, separate_stream=False, corrupted_chunks=1)
    assert overlap_findings(on_one_stream)["ordered-copy-corrupted"].severity == "critical"
