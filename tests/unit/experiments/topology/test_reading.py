"""Who shares an uplink, what far nodes and processes cost, and what a host could not show."""

from __future__ import annotations

from typing import Any

import pytest

from pinscope.errors import BadInput
from pinscope.experiments.registry import read_run
from pinscope.experiments.topology.experiment import Flight, TopologyObservation, common_window
from pinscope.experiments.topology.reading import Host
from pinscope.records.run import Finding, Reading
from tests.unit.experiments.topology.hosts import FAR, LINK, ROWS, copied, host, run

TWO_PAIRS = ((0, 1), (2, 3))
TWO_SWITCHES = ((0, 1, 2, 3), (4, 5, 6, 7))


def read(rows: ROWS, gpus: int = 2, nodes: int = 1) -> Reading:
    return read_run(run(gpus, nodes), rows)


def findings(rows: ROWS, gpus: int = 2, nodes: int = 1) -> dict[str, Finding]:
    return {finding.rule: finding for finding in read(rows, gpus, nodes).findings}


def test_planted_uplinks_are_found_and_no_others() -> None:
    for gpus, uplinks in [
        (2, []),
        (2, [(0, 1)]),
        (4, TWO_PAIRS),
        (4, [(1, 2)]),
        (8, TWO_SWITCHES),
        (8, [(0, 1), (2, 3), (4, 5), (6, 7)]),
    ]:
        measured = Host(host(gpus, uplinks))
        assert measured.uplinks("h2d") == list(uplinks)
        assert measured.uplinks("d2h") == list(uplinks)


def test_a_shared_uplink_is_the_verdict_and_a_warning_with_code_for_gpus_that_share_none() -> None:
    rows = host(4, TWO_PAIRS)
    assert read(rows, 4).verdict == (
        "GPUs 0 and 1 share an uplink, GPUs 2 and 3 another: a pair copies to the GPUs at 60 % of its rates alone."
    )
    concluded = findings(rows, 4)
    finding = concluded["shared-uplink-h2d"]
    assert finding.severity == "warning"
    assert "such as GPUs 0 and 2" in finding.advice
    assert 'os.environ["CUDA_VISIBLE_DEVICES"] = "0,2"' in (finding.code or "")
    compile(finding.code or "", "code", "exec")


@pytest.mark.parametrize("part", [0.76, 0.89])
def test_a_pair_that_one_uplink_would_slow_more_only_slows_each_other(part: float) -> None:
    rows = [row for row in host(2) if row["devices"] == 1] + copied(dict.fromkeys((0, 1), part * LINK), "d2h")
    concluded = findings(rows)
    assert "slow each other down" in concluded["slower-together-d2h"].title
    assert "shared-uplink-d2h" not in concluded
    verdict = read(rows).verdict or ""
    assert verdict.startswith(
        f"GPUs 0 and 1 slow each other down: together they copy from the GPUs at {part:.0%}".replace("%", " %")
    )
    assert len(verdict) <= 150


def test_an_uplink_of_all_gpus_leaves_no_choice_of_gpus() -> None:
    finding = findings(host(2, [(0, 1)]))["shared-uplink-h2d"]
    assert "or host memory" in finding.detail
    assert finding.code is None
    assert "no choice of GPUs" in finding.advice


def test_a_share_of_rates_alone_is_no_finer_than_it_is_known_and_no_reason_where_noise_may_have_made_it() -> None:
    rows = [row for row in host(2, directions=("h2d",)) if row["devices"] == 1]

    def together(*parts: float) -> list[dict[str, Any]]:
        cases = [copied(dict.fromkeys((0, 1), part * LINK), repeats=1) for part in (*parts, *parts)]
        return [row | {"repeat": number} for number, case in enumerate(cases) for row in case if not row["warmup"]]

    rough = [*rows, *together(0.88, 0.99, 0.994, 1.1)]
    assert "99 % (± 16 %) of solo rates" in (read(rough).verdict or "")
    wild = findings([*rows, *together(0.5, 0.79, 0.81, 1.1)])
    assert wild == {}


def test_all_at_once_may_be_slower_though_no_pair_is() -> None:
    rows = [row for row in host(4, directions=("h2d",)) if row["devices"] != 4]
    rows += copied(dict.fromkeys(range(4), LINK / 2))
    assert findings(rows, 4)["all-at-once-slower"].severity == "warning"
    assert "50 % of their rates alone" in (read(rows, 4).verdict or "")


@pytest.mark.parametrize(("part", "said"), [(0.737, True), (0.93, False)])
def test_a_pair_that_copies_both_ways_at_less_than_the_sum_is_said_though_one_way_it_reaches_it(
    part: float, said: bool
) -> None:
    alone = [*copied({0: LINK}, "bidirectional"), *copied({1: LINK}, "bidirectional")]
    rows = [*host(2), *alone, *copied(dict.fromkeys((0, 1), part * LINK), "bidirectional")]
    concluded = findings(rows)
    assert ("slower-both-ways" in concluded) == said
    assert not said or [figure.value for figure in concluded["slower-both-ways"].evidence] == pytest.approx(
        [part * 4 * LINK, 2 * LINK, 2 * LINK]
    )


def test_one_gpu_says_what_it_reaches_and_what_was_not_measured() -> None:
    reading = read(host(1), 1)
    assert reading.verdict == (
        "Shared uplinks were not measured (one GPU): GPU 0 copies at 50.0 GB/s to GPU and 50.0 GB/s from GPU."
    )
    assert reading.findings == ()
    assert [figure.name for figure in reading.headline] == ["GPU 0 alone, to GPU", "GPU 0 alone, from GPU"]


def two_nodes(far: float) -> ROWS:
    rows = host(2, near={0: 0, 1: 1})
    for way in ("h2d", "d2h"):
        rows += copied({1: far}, way, node=0) + copied({0: LINK}, way, node=1)
    return rows


def test_a_far_node_that_slows_a_gpu_is_named_with_the_command_that_avoids_it() -> None:
    concluded = findings(two_nodes(FAR), nodes=2)
    finding = concluded["far-node-slower"]
    assert finding.severity == "warning"
    assert finding.title.startswith(
        "GPU 1 reaches 60.0 % of its rate with host memory on NUMA node 0 instead of node 1"
    )
    assert "numactl --cpunodebind=1 --membind=1" in finding.advice


def test_a_gpu_slower_than_others_of_its_model_is_named() -> None:
    finding = findings(copied({0: LINK}) + copied({1: LINK / 2}))["gpu-slower-than-others"]
    assert finding.severity == "warning"
    assert finding.title == "GPU 1 alone copies to the GPU at 25.0 GB/s, GPU 0 of its model at 50.0 GB/s"
    assert "--device 1" in finding.advice


def test_nothing_measured_yet_is_no_verdict() -> None:
    reading = read([])
    assert (reading.verdict, reading.headline, reading.tables, reading.findings) == (None, (), (), ())
    assert read(copied({0: LINK}, repeats=0)).headline == ()


def test_a_run_that_broke_off_reads_at_every_row() -> None:
    rows = host(2, directions=("bidirectional",))
    for count in range(0, len(rows), 7):
        verdict = read(rows[:count]).verdict
        assert verdict is None or len(verdict) <= 150


def test_rows_that_lack_what_a_copy_has_are_refused() -> None:
    rows = [row | {"way": None} for row in copied({0: LINK})]
    with pytest.raises(BadInput, match="a copy without way"):
        read(rows)


def beside_all_reduce(reduce: float, copies: float, wrong: int = 0) -> list[dict[str, Any]]:
    """Of two GPUs all-reduces alone (1 ms), copies alone (20 ms), and both at once; eight repeats."""
    conditions = [(1e-3, None, None), (None, "h2d", 0.02), (reduce, "h2d", copies)]
    return [
        TopologyObservation(
            kind="all_reduce", repeat=repeat, warmup=False, device=device, gpus="0+1", devices=2, bytes=2**28, way=way,
            copies=4 if way else None, device_seconds=copied, reduce_seconds=reduced,
            wrong_words=wrong if repeat == 7 else None,
        ).model_dump()
        for repeat in range(8) for reduced, way, copied in conditions for device in (0, 1)
    ]  # fmt: skip


def test_an_all_reduce_that_takes_longer_beside_copies_is_said_and_one_that_does_not_is_in_the_table_only() -> None:
    reading = read(host(2) + beside_all_reduce(1.4e-3, 0.0202))
    said = next(finding for finding in reading.findings if finding.rule == "all-reduce-slowed")
    assert said.title == (
        "Beside copies to the GPUs NCCL's all-reduce takes 1.4 times as long; the copies take 1.0 times"
    )
    quiet = read(host(2) + beside_all_reduce(1.01e-3, 0.0201))
    assert "all-reduce-slowed" not in {finding.rule for finding in quiet.findings}
    assert [table.title for table in quiet.tables] == ["Every combination", "Copies beside NCCL's all-reduce"]
    assert (quiet.verdict, quiet.headline) == (read(host(2)).verdict, read(host(2)).headline)


def test_copies_that_take_longer_beside_an_all_reduce_are_said_and_wrong_sums_spoil_the_run() -> None:
    rules = {finding.rule for finding in read(host(2) + beside_all_reduce(1e-3, 0.03)).findings}
    assert "all-reduce-slowed" in rules
    assert (read(host(2) + beside_all_reduce(1e-3, 0.02, wrong=3)).verdict or "").startswith("Data arrived wrong")


def flight(begun: float, *ends: float) -> Flight:
    return Flight(0, "h2d", begun, ends)


def test_the_common_window_ends_with_the_first_to_finish() -> None:
    slow, fast = flight(10.0, 2.0, 4.0), flight(10.5, 1.0, 2.0)
    window = common_window([slow, fast])
    assert window == (10.5, 12.5)
    assert fast.done(12.5) - fast.done(10.5) == 2.0
    assert slow.done(12.5) - slow.done(10.5) == pytest.approx(1.25 - 0.25)


def test_turns_that_touch_are_not_copying_at_once() -> None:
    """Copies of one engine: 0.1 s in common would show two full links, though they followed each other."""
    assert common_window([flight(0.0, 1.0, 2.0, 3.0, 4.0), flight(3.9, 1.0, 2.0, 3.0, 4.0)]) is None
    assert common_window([flight(0.0, 1.0, 2.0, 3.0, 4.0), flight(2.0, 1.0, 2.0, 3.0, 4.0)]) == (2.0, 4.0)


def test_a_short_flow_beside_a_long_one_has_its_own_time_in_common() -> None:
    assert common_window([flight(0.0, 8.0, 16.0), flight(1.0, 1.0, 2.0)]) == (1.0, 3.0)


def test_a_flow_has_done_nothing_before_it_begins_and_all_after_it_ends() -> None:
    flow = flight(5.0, 1.0, 2.0, 3.0)
    assert [flow.done(moment) for moment in (4.0, 5.0, 5.5, 7.0, 8.0, 99.0)] == [0, 0, 0.5, 2, 3, 3]
