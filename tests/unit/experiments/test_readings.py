"""Which findings a run leads to, each rule with rows that meet it and rows that do not."""

from __future__ import annotations

from typing import Any

import pytest

from pinscope.experiments.bandwidth.arithmetic import PUBLISHED_BYTES, cells, nearest_published
from pinscope.experiments.bandwidth.reading import read_bandwidth
from pinscope.experiments.overlap.reading import read_overlap
from pinscope.records.environment import Environment, Link
from pinscope.records.finding import Finding
from pinscope.records.run import Run
from tests.data import synthetic
from tests.unit.experiments.bandwidth.test_arithmetic import row
from tests.unit.experiments.overlap.test_arithmetic import one_pass

MIB = 2**20


def copies(rate: float, size: int = 256 * MIB, **labels: Any) -> list[dict[str, Any]]:
    return [row(size / rate, size, **labels) for _ in range(8)]


def bandwidth_findings(rows: list[dict[str, Any]], **changes: Any) -> dict[str, Finding]:
    run: Run = synthetic.run("bandwidth", **changes)
    return {finding.rule: finding for finding in read_bandwidth(run, rows).findings}


def overlap_findings(rows: list[dict[str, Any]]) -> dict[str, Finding]:
    return {finding.rule: finding for finding in read_overlap(synthetic.run("overlap"), rows).findings}


def test_a_run_without_observations_reads_as_empty() -> None:
    for name, read in (("bandwidth", read_bandwidth), ("overlap", read_overlap)):
        reading = read(synthetic.run(name), [])
        assert (reading.headline, reading.tables, reading.findings) == ((), (), ())


def test_slow_pageable_copies_are_found_with_the_size_from_which_it_matters() -> None:
    rows = copies(50e9) + copies(50e9, 4096) + copies(10e9, memory="pageable") + copies(49e9, 4096, memory="pageable")
    finding = bandwidth_findings(rows)["pageable-slower"]
    assert finding.title == "Pageable h2d copies take 5.0 times as long as pinned ones at 256 MiB"
    assert "Pinned copies are faster from 256 MiB on;" in finding.detail
    assert "of 256 MiB and more once" in finding.advice


def test_copies_that_are_faster_at_the_smallest_size_are_not_said_to_be_slower_below_it() -> None:
    rows = copies(50e9) + copies(50e9, 4096) + copies(10e9, memory="pageable") + copies(20e9, 4096, memory="pageable")
    assert "faster at every size measured (from 4 KiB on);" in bandwidth_findings(rows)["pageable-slower"].detail
    headline = {one.name: one.value for one in read_bandwidth(synthetic.run("bandwidth"), rows).headline}
    assert headline["Pinned copies faster from, h2d, the smallest size"] == 4096


def test_kernels_are_compared_with_the_engines_each_way_and_both_ways() -> None:
    rows = copies(50e9) + copies(45e9, copier="kernel") + copies(40e9, direction="bidirectional")
    rows += copies(30e9, direction="bidirectional", copier="kernel")
    finding = bandwidth_findings(rows)["by-kernel"]
    assert finding.title == "Copies by a kernel reach 90.0 % h2d, 75.0 % both ways at once of the copy engines' rate"
    assert "by-kernel" not in bandwidth_findings(copies(50e9))


def test_equally_fast_pageable_copies_are_no_finding() -> None:
    assert "pageable-slower" not in bandwidth_findings(copies(50e9) + copies(49e9, memory="pageable"))


@pytest.mark.parametrize(("rate", "rule"), [(55e9, "link-as-expected"), (20e9, "link-slow")])
def test_the_best_pinned_rate_is_judged_by_what_the_link_can_carry(rate: float, rule: str) -> None:
    found = bandwidth_findings(copies(rate))
    assert {"link-as-expected", "link-slow"} & set(found) == {rule}
    assert "in packets of 256 bytes (assumed)." in found[rule].detail


def test_small_copies_alone_do_not_judge_the_link() -> None:
    assert not {"link-as-expected", "link-slow"} & set(bandwidth_findings(copies(1e9, 4096)))


def test_a_link_narrower_than_it_could_be_is_found() -> None:
    environment: Environment = synthetic.environment()
    device = environment.devices[0]
    assert isinstance(device.link, Link)
    narrow = device.model_copy(update={"link": device.link.model_copy(update={"width_now": 8})})
    found = bandwidth_findings(copies(55e9), environment=environment.model_copy(update={"devices": (narrow,)}))
    assert found["link-below-best"].title == "GPU 0: only 8 of 16 PCIe lanes are in use"


def test_the_host_model_says_nothing_about_a_link() -> None:
    found = bandwidth_findings(copies(5e9), lab="host")
    assert not {"link-as-expected", "link-slow", "link-below-best"} & set(found)


def test_one_wrong_word_is_critical() -> None:
    assert bandwidth_findings(copies(50e9, wrong_words=1))["content-wrong"].severity == "critical"


@pytest.mark.parametrize(("together", "rule"), [(55e9, "own-uplinks"), (28e9, "shared-uplink")])
def test_gpus_at_once_tell_whether_they_share_an_uplink(together: float, rule: str) -> None:
    alone = [one for device in (0, 1) for one in copies(55e9, device=device)]
    both = [one for device in (0, 1) for one in copies(together, device=device, devices=2)]
    found = bandwidth_findings(alone + both)
    assert {"own-uplinks", "shared-uplink"} & set(found) == {rule}


def test_a_copy_known_less_well_than_asked_is_flagged_at_every_size_with_the_next_command() -> None:
    rows = [row(4 * MIB / rate / 1024, 4096) for rate in (50e9, 30e9, 55e9, 20e9, 52e9, 25e9, 51e9, 50e9)]
    finding = bandwidth_findings(rows)["precision-not-reached"]
    assert finding.title == "1 of 1 combinations did not reach the precision asked for, ± 1.0 %"
    assert "The worst: pinned h2d, 4 KiB by engine, known to ± 150.0 %" in finding.detail
    assert "--device" not in finding.advice
    assert "--set memory=pinned --set directions=h2d --set copiers=engine --set sizes=4KiB" in finding.advice
    second = bandwidth_findings([{**one, "device": 1} for one in rows], devices=2, device=1)["precision-not-reached"]
    assert "--lab cuda --device 1 --set" in second.advice
    assert "precision-not-reached" not in bandwidth_findings(copies(50e9))


def pageable(rate: float, backing: str, cache: str, size: int = 16 * MIB, **labels: Any) -> list[dict[str, Any]]:
    return copies(rate, size, memory="pageable", backing=backing, cache=cache, **labels)


def test_pinned_is_compared_with_pageable_memory_as_malloc_gives_it_in_no_cache_and_says_so() -> None:
    rows = copies(50e9, 16 * MIB) + copies(30e9, 16 * MIB, cache="warm")
    rows += pageable(20e9, "thp", "warm") + pageable(12e9, "thp", "cold") + pageable(10e9, "4k", "cold")
    reading = read_bandwidth(synthetic.run("bandwidth"), rows)
    headline = {one.name: one.value for one in reading.headline}
    assert headline["Pinned ÷ pageable, 4k, cold, h2d, 16 MiB"] == pytest.approx(5)
    found = {finding.rule: finding for finding in reading.findings}
    assert "small pages, none of it in the processor's caches" in found["pageable-slower"].detail
    published = next(table for table in reading.tables if "RTX 2080 Ti" in table.title)
    assert {row[0]: row[3] for row in published.rows} == {
        "pageable, 4k, cold": pytest.approx(10e9), "pinned": pytest.approx(50e9),
    }  # fmt: skip


def test_states_of_pageable_memory_that_differ_are_a_finding_with_the_slowest_and_the_fastest() -> None:
    different = pageable(18e9, "thp", "warm") + pageable(13e9, "4k", "cold") + pageable(15e9, "4k", "warm")
    finding = bandwidth_findings(different)["pageable-state"]
    assert finding.title.startswith("Pageable h2d copies of 16 MiB take up to 1.4 times as long")
    assert finding.detail.startswith("13.0 GB/s (pageable, 4k, cold) against 18.0 GB/s (pageable, thp, warm)")
    equal = pageable(13.5e9, "thp", "warm") + pageable(13e9, "4k", "cold")
    assert "pageable-state" not in bandwidth_findings(equal)


def test_the_smallest_copy_stands_in_the_headline_alone_and_as_one_more() -> None:
    rows = [row(5e-6, 4096, one_more_seconds=2.5e-6, one_more_copies=64) for _ in range(7)] + copies(50e9)
    named = {one.name: one.value for one in read_bandwidth(synthetic.run("bandwidth"), rows).headline}
    assert named["One copy, h2d, 4 KiB"] == pytest.approx(5e-6)
    assert named["One more copy, h2d, 4 KiB"] == pytest.approx(2.5e-6)


def test_the_published_table_is_of_16_mib() -> None:
    """Harris's program copies 4·1024² floats and calls it 16 MB."""
    assert PUBLISHED_BYTES == 4 * 1024**2 * 4
    near = [c for size in (12 * MIB, 16 * MIB, 24 * MIB) for c in cells(copies(50e9, size))]
    chosen = nearest_published(near)
    assert chosen is not None
    assert chosen.bytes == 16 * MIB


def test_the_published_table_stands_stands_beside_a_run_of_that_size_only() -> None:
    def titles(size: int) -> list[str]:
        return [t.title for t in read_bandwidth(synthetic.run("bandwidth"), copies(50e9, size)).tables]

    assert any("RTX 2080 Ti" in title for title in titles(16 * MIB))
    assert not any("RTX 2080 Ti" in title for title in titles(256 * MIB))


def test_the_host_model_never_stands_beside_a_published_gpu() -> None:
    tables = read_bandwidth(synthetic.run("bandwidth", lab="host"), copies(5e9, 16 * MIB)).tables
    assert not any("RTX 2080 Ti" in table.title for table in tables)


def passes_of(seconds: float, **changes: Any) -> list[dict[str, Any]]:
    return [one_pass(seconds, **changes) for _ in range(8)]


def test_a_recipe_that_overlaps_is_good_and_one_that_does_not_is_a_warning() -> None:
    assert overlap_findings(passes_of(1.03))["recipe-overlaps"].severity == "good"
    assert overlap_findings(passes_of(1.8))["recipe-does-not-overlap"].severity == "warning"


def test_a_missing_ingredient_is_named_with_what_it_costs() -> None:
    rows = passes_of(1.03) + passes_of(2.06, separate_stream=False)
    finding = overlap_findings(rows)["ingredient-missing"]
    assert "Without a separate copy stream the pipeline takes 2.0 times as long" in finding.title


def test_passes_known_less_well_than_asked_are_counted() -> None:
    wild = [1.0, 9.0, 1.0, 9.0, 1.0, 9.0, 1.0, 9.0]
    rows = [one_pass(seconds) for seconds in wild]
    assert overlap_findings(rows)["precision-not-reached"].title.startswith("1 of 1 combinations did not reach")
    rows += [one_pass(seconds, separate_stream=False) for seconds in wild]
    finding = overlap_findings(rows)["precision-not-reached"]
    assert finding.title.startswith("2 of 2 combinations did not reach")
    assert "--set directions=h2d --set balance=balanced" in finding.advice


def test_where_the_full_recipe_hides_nothing_no_share_below_zero_is_hidden() -> None:
    finding = overlap_findings(passes_of(2.2))["recipe-does-not-overlap"]
    assert finding.title == "The full recipe hides nothing of the shorter side, h2d balanced"


@pytest.mark.parametrize(("seconds", "found"), [(2.1, False), (2.2, False), (2.3, False), (3.5, True)])
def test_what_is_no_slower_than_a_recipe_that_hides_nothing_costs_nothing(seconds: float, found: bool) -> None:
    rows = passes_of(2.2) + passes_of(seconds, separate_stream=False)
    assert ("ingredient-missing" in overlap_findings(rows)) == found


def test_slow_copies_are_named_as_the_reason_and_kernels_that_run_beside_them_too() -> None:
    """As on an H200: 5.3 times as long, with 93 % of the kernels hidden behind these copies."""
    rows = passes_of(1.03) + passes_of(5.37, memory="pageable", copy_alone_seconds=5.3)
    finding = overlap_findings(rows)["ingredient-missing"]
    assert finding.title == (
        "Without pinned memory the pipeline takes 5.2 times as long, h2d: its copies take 5.3 times as long, and "
        "beside them 93.0 % of the shorter side is hidden"
    )
    assert all(one.value is None or not isinstance(one.value, float) or one.value >= 0 for one in finding.evidence)


def test_corruption_is_said_for_each_case_apart() -> None:
    """As on an H200, where one figure, 63.1 %, was the mean of cases of 0, 37 and 100 %."""
    rows = passes_of(1.0, events=False, corrupted_chunks=50, direction="d2h")
    rows += passes_of(1.0, events=False, corrupted_chunks=20)
    rows += passes_of(1.0, events=False, corrupted_chunks=49, balance="copy_bound")
    rows += passes_of(5.0, events=False, memory="pageable", copy_alone_seconds=5.0)
    reading = read_overlap(synthetic.run("overlap"), rows)
    titles = [one.title for one in reading.findings if one.rule in ("unsafe-without-events", "unordered-yet-intact")]
    assert titles == [
        "100.0 % of the chunks were corrupted without events: pinned memory, d2h",
        "40.0 % to 98.0 % of the chunks were corrupted without events: pinned memory, h2d",
        "0 of 400 chunks were corrupted without events: pageable memory, h2d",
    ]
    shares = {one.name: one.value for one in reading.headline if "corrupted" in one.name}
    assert shares == {
        "Chunks corrupted without events, d2h balanced": 1.0, "Chunks corrupted without events, h2d balanced": 0.4
    }  # fmt: skip


def test_more_than_all_of_the_shorter_side_is_not_hidden() -> None:
    slow = passes_of(5.0, memory="pageable", copy_alone_seconds=5.3)
    title = overlap_findings(passes_of(1.0) + slow)["ingredient-missing"].title
    assert title.endswith("and beside them all of the shorter side is hidden")


def test_corruption_without_events_is_expected_and_with_them_critical() -> None:
    assert overlap_findings(passes_of(1.0, events=False, corrupted_chunks=1))["unsafe-without-events"]
    assert overlap_findings(passes_of(1.0, corrupted_chunks=1))["ordered-copy-corrupted"].severity == "critical"
    on_one_stream = passes_of(1.0, events=False, separate_stream=False, corrupted_chunks=1)
    assert overlap_findings(on_one_stream)["ordered-copy-corrupted"].severity == "critical"
