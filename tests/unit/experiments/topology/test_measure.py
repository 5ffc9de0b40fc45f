"""The whole procedure with real processes. The host model's engines stand for GPUs: two labs, two processes each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, ClassVar

import psutil
import pytest

from pinscope.experiments.contract import budget_of
from pinscope.experiments.topology import child_member, experiment
from pinscope.experiments.topology.experiment import (
    AtOnce,
    Flight,
    Topology,
    TopologyObservation,
    TopologyParams,
    cases,
    common_window,
    reduce_and_copy,
    take,
)
from pinscope.experiments.topology.reading import Host
from pinscope.lab.harness import Harness
from pinscope.lab.hostmodel import HostModelLab
from pinscope.probes.proc import Answer
from pinscope.records.environment import NumaNode
from tests.data import synthetic
from tests.unit.experiments.registration.test_across import TwoEngines

MIB = 2**20
SMALL = {"size": MIB, "repeats": 8, "time_limit": 0.05}


def params(**overrides: object) -> TopologyParams:
    return TopologyParams.preset("cuda", True).with_overrides({**SMALL, **overrides})


def measure(lab: HostModelLab, harness: Harness | None = None, **overrides: object) -> list[TopologyObservation]:
    with lab:
        return list(Topology().measure(params(**overrides), lab, harness or Harness()))


def host(rows: Sequence[TopologyObservation]) -> Host:
    return Host([row.model_dump() for row in rows])


@pytest.fixture(scope="module")
def two() -> list[TopologyObservation]:
    return measure(TwoEngines())


def members() -> list[psutil.Process]:
    found = []
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            if "pinscope.experiments.topology.child_member" in child.cmdline():
                found.append(child)
    return found


def test_each_alone_and_both_at_once_are_measured_by_one_process_and_by_two(two: list[TopologyObservation]) -> None:
    found = {(cell.issued_by, cell.gpus, cell.direction) for cell in host(two).cells}
    expected = {
        (who, gpus, way)
        for who in ("one_process", "process_each")
        for gpus in ((0,), (1,), (0, 1))
        for way in ("h2d", "d2h", "bidirectional")
    }
    # On a busy machine two may take turns, and are left out; that all were tried shows in what was compared.
    assert found <= expected
    assert {case for case in found if len(case[1]) == 1} == {case for case in expected if len(case[1]) == 1}
    assert members() == []


def test_what_arrives_is_compared_in_every_case(two: list[TopologyObservation]) -> None:
    copies = [row for row in two if row.kind == "copy"]
    compared = [row for row in copies if row.wrong_words is not None]
    assert all(row.wrong_words == 0 for row in compared)
    assert len(compared) == 2 * (8 + 8)  # by both teams: two GPUs alone, then both; one, one and two ways
    assert len({(row.issued_by, row.gpus, row.direction) for row in compared}) == 18


def test_processes_that_start_together_copy_in_a_common_window(two: list[TopologyObservation]) -> None:
    together = [row for row in two if (row.issued_by, row.devices, row.warmup) == ("process_each", 2, False)]
    known = [row for row in together if row.window_seconds is not None]
    assert known
    for row in known:
        assert row.window_seconds is not None
        assert row.window_seconds <= row.device_seconds  # type: ignore[operator]
        assert 0 < (row.window_bytes or 0) <= row.bytes * (row.copies or 0)


def test_one_gpu_alone_is_measured_by_one_process_only() -> None:
    rows = measure(HostModelLab(), directions="h2d")
    assert {(row.kind, row.gpus, row.issued_by) for row in rows} == {("copy", "0", "one_process")}
    assert host(rows).at_once("h2d") is None


class Clock:
    """Time that goes on by a tenth of a millisecond when it is read."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        self.now += 1e-4
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Copies:
    """SYNTHETIC: four copies of 10 ms whose engine reaches their start event when it takes them.

    Args:
        clock: by which they run.
        begin: seconds from their queueing until then.
    """

    stream = None

    def __init__(self, clock: Clock, begin: float) -> None:
        self._clock, self._begin = clock, begin

    def queue(self) -> None:
        self._over = self._clock.now + self._begin + 0.04

    def is_over(self) -> bool:
        return self._clock.monotonic() >= self._over

    def ends(self) -> list[float]:
        return [0.01, 0.02, 0.03, 0.04]


class Lets:
    """A lab that holds nothing."""

    def hold(self, *streams: object) -> AbstractContextManager[None]:
        return nullcontext()


def flown(monkeypatch: pytest.MonkeyPatch, *begin: float) -> list[Flight]:
    clock = Clock()
    monkeypatch.setattr(child_member, "time", clock)
    monkeypatch.setattr(child_member, "open_lab", lambda device_id, seed: Lets())
    one: Any = child_member.Member({str(number): "" for number in range(len(begin))}, 0)
    one._flows = {(number, "h2d"): Copies(clock, seconds) for number, seconds in enumerate(begin)}
    flights = one.copy(range(len(begin)), ["h2d"], None)["flights"]
    return [Flight(**{**flight, "ends": tuple(flight["ends"])}) for flight in flights]


@pytest.mark.parametrize(("begin", "common"), [((0.0, 0.04), None), ((0.04, 0.0), None), ((0.0, 0.0), 0.04)])
def test_copies_have_in_common_the_time_in_which_they_ran_side_by_side(
    monkeypatch: pytest.MonkeyPatch, begin: tuple[float, float], common: float | None
) -> None:
    flights = flown(monkeypatch, *begin)
    assert flights[1].begun - flights[0].begun == pytest.approx(begin[1] - begin[0], abs=1e-3)
    window = common_window(flights)
    assert (window and window[1] - window[0]) == pytest.approx(common, abs=1e-3)


class Placing:
    """A team whose system puts all host memory on these nodes; ``None`` where the kernel does not tell."""

    copiers: ClassVar = {0: 0, 1: 0}

    def __init__(self, nodes: Mapping[str, list[int]]) -> None:
        self.nodes, self.notes = nodes, list[str]()
        self.harness = Harness(note=self.notes.append)

    def ask(self, step: str, orders: Mapping[int, Any]) -> dict[int, Any]:
        return {0: {"on_nodes": self.nodes}}


def test_a_node_on_which_the_system_puts_no_memory_is_left_out_and_noted() -> None:
    team: Any = Placing({"0": [1], "1": [0]})
    assert take(team, params(), AtOnce((0,), "h2d", "node", {0: 1, 1: 1})) == {}
    assert team.notes[0].startswith(
        "Left out: host memory on NUMA node 1. Buffers that were asked for there lie on node 0"
    )


def test_near_memory_is_where_it_lies_and_where_it_was_asked_for_if_the_kernel_does_not_tell() -> None:
    near = AtOnce((0,), "h2d", "near", {0: None, 1: 0})
    found: Any = Placing({"0": [1], "1": [0]})
    assert take(found, params(), near) == {0: 1, 1: 0}
    untold: Any = Placing({"0": [], "1": []})
    assert take(untold, params(), near) == {0: None, 1: 0}
    assert take(untold, params(), AtOnce((0,), "h2d", "node", {0: 1, 1: 1})) == {0: 1, 1: 1}


def test_pairs_and_all_are_measured_near_and_each_and_all_on_every_other_node() -> None:
    near = {0: 0, 1: 0, 2: 1, 3: 1}
    placements = cases((0, 1, 2, 3), ["h2d"], near, (0, 1), pairs=True)
    found = [[(case.devices, case.nodes[case.devices[0]]) for case in group] for group in placements]
    assert found[0] == [
        ((0,), 0), ((1,), 0), ((2,), 1), ((3,), 1), ((0, 1), 0), ((0, 2), 0), ((0, 3), 0), ((1, 2), 0), ((1, 3), 0),
        ((2, 3), 1), ((0, 1, 2, 3), 0),
    ]  # fmt: skip
    assert found[1:] == [[((2,), 0), ((3,), 0), ((0, 1, 2, 3), 0)], [((0,), 1), ((1,), 1), ((0, 1, 2, 3), 1)]]


def test_a_pair_that_is_all_gpus_is_measured_once() -> None:
    assert [case.devices for case in cases((0, 1), ["h2d"], {}, (), pairs=True)[0]] == [(0,), (1,), (0, 1)]
    assert [case.devices for case in cases((0,), ["h2d"], {}, (), pairs=True)[0]] == [(0,)]


def test_the_budget_grows_with_gpus() -> None:
    topology, chosen = Topology(), TopologyParams.preset("cuda", False)
    one, eight = (budget_of(topology, chosen, synthetic.environment(devices)) for devices in (1, 8))
    assert eight.pinned_bytes - one.pinned_bytes == 7 * 2 * chosen.size
    assert eight.seconds > 3 * one.seconds
    only = budget_of(topology, chosen.with_overrides({"all_devices": False}), synthetic.environment(8))
    assert only.pinned_bytes == one.pinned_bytes


def test_the_environment_reaches_every_process_and_copies_that_took_turns_are_noted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such as what a host with several GPUs needs: NCCL_NVLS_ENABLE, CUDA_VISIBLE_DEVICES."""
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "0")
    window = common_window
    monkeypatch.setattr(experiment, "common_window", lambda flights: None if len(flights) > 1 else window(flights))
    seen: list[str | None] = []
    notes: list[str] = []

    def look(_fraction: float, message: str) -> None:
        if "GPU 0, h2d" in message:
            seen.extend(member.environ().get("NCCL_NVLS_ENABLE") for member in members())

    rows = measure(TwoEngines(), Harness(report=look, note=notes.append), directions="h2d")
    assert seen == ["0"] * 3
    assert [cell.gpus for cell in host(rows).cells] == [(0,), (1,)] * 2
    assert [line[:50] for line in notes if "took turns" in line] == [
        "Left out: GPUs 0 and 1, h2d, by one process. Their", "Left out: GPUs 0 and 1, h2d, by one process per GP",
    ]  # fmt: skip


class Ranks:
    """SYNTHETIC: two ranks that answer at once; an all-reduce takes 1 ms, beside copies 1.5; four copies 20 ms."""

    def __init__(self) -> None:
        self.orders: list[dict[str, Any]] = []

    def ask(self, step: str, orders: Mapping[int, Any]) -> dict[int, tuple[float, dict[str, Any]]]:
        order = orders[0]
        self.orders.append(order)
        reply: dict[str, Any] = {"take": {"nodes": [0]}, "check": {"wrong": 0}}.get(order["do"], {})
        if order["do"] == "run":
            both = bool(order["reduces"] and order["way"])
            reply = {
                "reduce_seconds": (1.5e-3 if both else 1e-3) if order["reduces"] else None,
                "copy_seconds": 0.02 if order["way"] else None,
            }
        return dict.fromkeys(orders, (0.0, reply))


def test_all_reduces_and_copies_are_timed_alone_and_beside_each_other_in_turn() -> None:
    ranks: Any = Ranks()
    with HostModelLab() as lab:
        rows = list(reduce_and_copy(ranks, params(directions="h2d,d2h"), (0, 1), lab, Harness()))
    runs = [(order["reduces"], order["way"]) for order in ranks.orders if order["do"] == "run"][3:]
    assert runs[:5] == [(41, None), (0, "h2d"), (41, "h2d"), (0, "d2h"), (41, "d2h")]  # twice 20 ms, and one more
    assert ranks.orders[-1]["do"] == "end"
    beside = Host([TopologyObservation(**row).model_dump() for row in rows]).besides
    assert [(each.direction, each.reduce_ratio, each.copies_ratio) for each in beside] == [
        ("h2d", pytest.approx(1.5), 1.0), ("d2h", pytest.approx(1.5), 1.0)
    ]  # fmt: skip


def test_without_pytorch_or_a_second_gpu_copies_beside_an_all_reduce_are_left_out_and_noted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(experiment, "find_spec", lambda name: None)
    notes: list[str] = []
    measure(HostModelLab(), Harness(note=notes.append), directions="h2d", all_reduce="on")
    assert any("copies beside NCCL's all-reduce. PyTorch is not installed here" in note for note in notes)
    monkeypatch.setattr(experiment, "find_spec", lambda name: name)
    notes.clear()
    measure(HostModelLab(), Harness(note=notes.append), directions="h2d", all_reduce="on")
    assert "Left out: copies beside NCCL's all-reduce. It takes several GPUs." in notes
    assert not TopologyParams.preset("cuda", quick=True).all_reduce


@pytest.mark.parametrize(("nodes", "noted"), [((0,), True), ((0, 1), False)])
def test_a_host_with_one_numa_node_is_said_to_have_no_far_one(
    monkeypatch: pytest.MonkeyPatch, nodes: tuple[int, ...], noted: bool
) -> None:
    host_of = Answer(
        tuple(NumaNode(number=node, processors="0", memory_bytes=2**30, available_bytes=2**30) for node in nodes)
    )
    monkeypatch.setattr(experiment, "read_nodes", lambda: host_of)
    notes: list[str] = []
    measure(HostModelLab(), Harness(note=notes.append), directions="h2d", node="any")
    assert ("Left out: host memory on a far NUMA node. This host shows one node." in notes) == noted
