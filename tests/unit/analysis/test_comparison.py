"""Runs against runs: equal ones are the same, planted differences stand in the verdict, machines are named by key."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

from pinscope.analysis.comparison import Measured, Side, compare, exact, verdict
from pinscope.analysis.statistics import Summary
from pinscope.analysis.texts import MOST_WORDS
from pinscope.errors import BadInput
from pinscope.experiments.bandwidth.reading import Cell
from pinscope.records.environment import Device, Link
from pinscope.records.run import Run, finding
from tests.data.recorded import RECORDED
from tests.data.simulated_runs import Host, as_it_is
from tests.unit.store.runs import new_run

MIB = 2**20


def pinned(memory: str, size: int) -> float:
    """3 % slower from 1 MiB on."""
    return 1.03 if memory == "pinned" and size >= MIB else 1.0


def pageable(memory: str, size: int) -> float:
    """15 % slower from 64 KiB on."""
    return 1.15 if memory == "pageable" and size >= 2**16 else 1.0


def _false_share(seeds: range, runs: int) -> float:
    """Of the cells of every pair of so many runs of a host, how many are called different."""
    called = cells = 0
    for seed in seeds:
        host = Host(seed)
        for one, other in combinations([host.side("A", 1) for _ in range(runs)], 2):
            compared = compare(one, replace(other, name="B"))
            called += sum(cell.differs for cell in compared.cells)
            cells += len(compared.cells)
    return called / cells


def _told(seeds: range, planted: Any, memory: str, change: float) -> int:
    """In how many comparisons of three runs a side the verdict says of what is slower, and by about how much."""
    hosts = map(Host, seeds)
    compared = [compare(host.side("A", 3), host.side("B", 3, planted)) for host in hosts]
    return sum(
        bool(one.groups) and f"{memory}, size from " in (said := verdict(one)) and "slower" in said
        and abs(one.groups[0].change - change) < change / 3
        for one in compared
    )  # fmt: skip


HOSTS = pytest.mark.parametrize("seeds", [range(1), pytest.param(range(100, 120), marks=pytest.mark.release)], ids=len)
CHANGES = pytest.mark.parametrize(
    ("planted", "memory", "change"), [(pinned, "pinned", 0.029), (pageable, "pageable", 0.13)]
)


@HOSTS
def test_runs_of_one_host_are_the_same(seeds: range) -> None:
    assert _false_share(seeds, runs=3 if len(seeds) == 1 else 6) <= 0.05
    assert _told(seeds, as_it_is, "pinned", 0.029) == 0


@HOSTS
@CHANGES
def test_a_slow_down_stands_in_the_verdict_of_three_runs_a_side(
    planted: Any, memory: str, change: float, seeds: range
) -> None:
    assert _told(seeds, planted, memory, change) >= 0.95 * len(seeds)


# Small comparisons


def cell(seconds: float, off: float = 0.02, memory: str = "pinned", size: int = MIB, **values: Any) -> Cell:
    """A cell whose times are all so long."""
    times = Summary(20, seconds, seconds, seconds, (seconds * (1 - off), seconds * (1 + off)), off)
    made = Cell(memory, None, None, "h2d", "engine", size, 0, 1, times, 1, times, times, times, 0)
    return replace(made, **values)


def side(name: str, *cells: Cell, run: Run | None = None, **changes: Any) -> Side:
    return Side(name, [Measured(run or new_run(status="done"), cells, **changes)])


def test_a_rate_stands_for_a_cell_and_its_other_figures_are_shown_where_they_alone_differ() -> None:
    slow = Summary(20, 5.0, 5.0, 5.0, (4.9, 5.1), 0.02)
    compared = compare(
        side("A", cell(1.0), cell(1.0, size=4096)), side("B", cell(1.3), cell(1.0, size=4096, issue_seconds=slow))
    )
    assert [(one.words, one.figure, one.verdict) for one in compared.shown] == [
        ("4 KiB", "issue_seconds", "worse"),
        ("1 MiB", "bytes_per_second", "worse"),
    ]
    assert compared.shown[1].ratio == pytest.approx(1 / 1.3)
    assert compared.counts == {"same": 1, "worse": 1}


def test_cells_are_matched_by_their_labels_and_those_of_one_side_are_counted() -> None:
    compared = compare(
        side("A", cell(1.0), cell(2.0, size=4096)),
        side("B", cell(1.0), cell(1.0, memory="mapped"), cell(3.0, size=8192)),
    )
    assert [one.words for one in compared.firsts] == ["pinned, 1 MiB"]
    assert compared.alone_counts == (1, 2)


def test_a_sentence_calls_a_side_by_its_name_its_gpu_or_its_host_where_that_tells_them_apart() -> None:
    run = new_run(status="done")
    named = run.model_copy(update={"name": "after"})
    elsewhere = run.model_copy(update={"environment": run.environment.model_copy(update={"host": "other"})})
    h100, h200 = RECORDED["bandwidth-h100"], RECORDED["bandwidth-h200"]
    for first, second, called in (
        (run, run, "B"),
        (run, named, "'after'"),
        (run, elsewhere, "other"),
        (h100, h200, "H200"),
    ):
        compared = compare(side("A", cell(1.0), run=first), side("B", cell(1.3), run=second))
        assert f"{called} is slower" in verdict(compared)


def test_what_was_measured_once_is_not_told_from_chance() -> None:
    compared = compare(side("A", cell(1.0, float("inf"))), side("B", cell(9.0, float("inf"))))
    assert compared.counts == {"unknown": 1}
    assert verdict(compared).endswith("Take several runs a side.")


def test_what_is_counted_differs_from_nothing_by_anything() -> None:
    compared = compare(side("A", cell(1.0)), side("B", cell(1.0, wrong_words=3)))
    assert [(one.figure, one.verdict, one.ratio) for one in compared.shown] == [("wrong_words", "worse", None)]


def test_a_tie_says_how_small_a_difference_would_show() -> None:
    compared = compare(side("A", cell(1.0)), side("B", cell(1.01)))
    assert verdict(compared).endswith("no difference: 1 cell is the same; 2.0 % would show in half of them.")
    assert compared.tellable == pytest.approx(0.02, rel=0.05)


def test_exact_figures_know_no_chance() -> None:
    assert exact(3.0).uncertainty == 0.0


def test_findings_come_and_go_only_where_all_runs_of_a_side_have_them() -> None:
    old, new, both = (finding("note", rule, title=rule, detail="", advice="") for rule in ("old", "new", "both"))
    b = Side("B", [Measured(new_run(status="done"), [cell(1.0)], some) for some in ([new, both], [new, both, old])])
    compared = compare(side("A", cell(1.0), findings=[old, both]), b)
    assert {word: [one.rule for one in some] for word, some in compared.findings.items()} == {
        "came": ["new"],
        "went": [],
    }


LINK = Link(
    kind="pcie", generation_now=5, width_now=16, generation_max=5, width_max=16, limit_bytes_per_second=57e9,
    raw_bytes_per_second=63e9,
)  # fmt: skip
GPU = Device(
    index=0, uuid="GPU-1", name="NVIDIA H100", pci_bus_id=None, numa_node=0, memory_total_bytes=80 * 2**30,
    memory_free_bytes=1, compute_capability="9.0", iommu="off", link=LINK,
)  # fmt: skip


def on(device: Device, **changes: Any) -> Side:
    """A run on a machine with this GPU."""
    run = new_run(status="done", lab="cuda")
    machine = run.environment.model_copy(update={"devices": (device,), "driver": "580.1", **changes})
    return side("?", cell(1.0), run=run.model_copy(update={"environment": machine}))


def test_every_key_in_which_machines_differ_is_named_and_what_moves_by_itself_is_not() -> None:
    run = new_run().environment
    changes = {
        "driver": "590.2", "kernel": "7.0", "machine_id": "another", "numa_nodes": 7, "pinscope_version": "9.9",
        "huge_pages": run.huge_pages.model_copy(update={"transparent": "never?", "hugetlb_free_pages": 77}),
        "limits": run.limits.model_copy(update={"host_available_bytes": 1}),
    }  # fmt: skip
    link = LINK.model_copy(update={"width_now": 8, "generation_now": 1})
    other = {"name": "NVIDIA H200", "iommu": "translating", "link": link, "memory_free_bytes": 9}
    device = GPU.model_copy(update=other)

    machines = compare(on(GPU), on(device, **changes)).machines

    assert {key.key for key in machines.different} == {
        "driver", "kernel", "machine_id", "numa_nodes", "pinscope_version", "huge_pages.transparent", "gpu.name",
        "gpu.iommu", "gpu.link.width_now",
    }  # fmt: skip
    assert not machines.is_one_machine
    assert compare(on(GPU), on(GPU)).machines.different == []


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (lambda: on(GPU), "cannot be compared: the host model's figures describe no GPU"),
        (lambda: side("B", cell(1.0), run=new_run(status="done", experiment="overlap")), "bandwidth and overlap"),
        (lambda: Side("B", []), "B has no run"),
    ],
)
def test_what_cannot_be_compared_is_refused(other: Any, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        compare(side("A", cell(1.0)), other())


def test_a_verdict_says_how_many_cells_are_worse_and_how_many_better_however_long_their_names_are() -> None:
    sizes = [2**power for power in range(12, 24)]
    times = {sizes[0]: 2.0, **dict.fromkeys(sizes[5:8], 0.5)}
    made = [[cell(times.get(size, 1.0) if is_b else 1.0, size=size) for size in sizes] for is_b in (False, True)]
    long = [
        [replace(some, memory="registered by each of the processes that copy from it") for some in few] for few in made
    ]
    for first, second in (made, [[*made[0], *long[0]], [*made[1], *long[1]]]):
        compared = compare(side("A", *first), side("B", *second))
        said = verdict(compared)
        assert [len(group.cells) for group in compared.groups] == [compared.counts["worse"], compared.counts["better"]]
        assert f"in {compared.counts['worse']}" in said
        assert f"in {compared.counts['better']}" in said
        assert len(said.partition(": ")[2].split()) <= MOST_WORDS
