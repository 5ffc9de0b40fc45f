"""All GPUs at once on real ones, beside nvbandwidth; one link that two share for sure.

Predicted before the first run: rates within 1 % of nvbandwidth's; a copy engine and a kernel on one link reach 0.52 of
their rates alone. Two labs on one GPU were expected to reach half, too; but their copies take turns in its one engine:
a row of copies, then the other lab's.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from statistics import median
from typing import Any

import pytest
from cupy.cuda import runtime

from pinscope.experiments.registry import read_run
from pinscope.experiments.topology import child_member
from pinscope.experiments.topology.child_member import Member
from pinscope.experiments.topology.experiment import Flight, Topology, TopologyParams, common_window
from pinscope.experiments.topology.reading import WAYS, Host, IssuedBy, OneWay, issuer
from pinscope.lab.cuda import CudaLab
from pinscope.lab.harness import Harness
from pinscope.lab.protocol import Copier, DeviceBuffer, HostBuffer, Stream
from pinscope.probes.environment import capture_environment
from pinscope.records.finding import Reading
from tests.data import synthetic

MIB = 2**20
ALONE = {"h2d": 55.5e9, "d2h": 55.4e9}
ALL_OF_TWO = {"h2d": 54.6e9, "d2h": 54.8e9}
"""Bytes/second of each GPU by nvbandwidth 0.8 on two H200s, alone and both at once."""


def on_h200() -> bool:
    return bool(runtime.getDeviceProperties(0)["name"].startswith(b"NVIDIA H200"))


@pytest.fixture(scope="module")
def whole() -> dict[str, Any]:
    """A full run of all GPUs, by the command."""
    command = [sys.executable, "-m", "pinscope", "run", "topology", "--lab", "cuda", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@pytest.fixture(scope="module")
def host(whole: dict[str, Any]) -> Host:
    return Host(whole["observations"])


class SameGpuTwice(CudaLab):
    """A machine with two GPUs that are one and the same: one copy engine each way serves both."""

    def peers(self) -> Sequence[int]:
        return (0, 1)

    def place_of(self, device: int) -> str:
        return super().place_of(0)


def concluded(rows: list[dict[str, Any]], gpus: int) -> Reading:
    return read_run(synthetic.run("topology", devices=gpus), rows)


class ByKernel(CudaLab):
    """A GPU whose copies a kernel carries out: beside a copy engine it shares the link packet by packet."""

    def copy_to_device(
        self, target: DeviceBuffer, source: HostBuffer, stream: Stream, copier: Copier = "kernel"
    ) -> None:
        super().copy_to_device(target, source, stream, "kernel")

    def copy_to_host(self, target: HostBuffer, source: DeviceBuffer, stream: Stream, copier: Copier = "kernel") -> None:
        super().copy_to_host(target, source, stream, "kernel")


def test_every_word_arrives(whole: dict[str, Any], host: Host) -> None:
    assert whole["run"]["status"] == "done"
    assert [cell.wrong_count for cell in host.cells] == [0] * len(host.cells)


@pytest.mark.parametrize("way", ["h2d", "d2h"])
def test_each_gpu_alone_reaches_the_rate_of_nvbandwidth(host: Host, way: str) -> None:
    rates = {gpu: cell.rate for gpu, cell in host.alone(way).items()}
    assert set(rates) == set(range(runtime.getDeviceCount()))
    if on_h200():
        assert all(rate == pytest.approx(ALONE[way], rel=0.01) for rate in rates.values()), rates


def test_with_one_gpu_what_was_not_measured_is_said(lab: CudaLab) -> None:
    params = TopologyParams.preset("cuda", quick=True).with_overrides({"all_devices": False})
    rows = [row.model_dump() for row in Topology().measure(params, lab, Harness())]
    assert "not measured (one GPU)" in (concluded(rows, 1).verdict or "")


def test_copies_that_one_engine_takes_in_turns_are_not_two_full_links() -> None:
    """They were: each lab's start event was reached when its turn came, and the share came to 0.999."""
    bus_ids = {device.index: device.pci_bus_id for device in capture_environment().devices if device.pci_bus_id}
    notes: list[str] = []
    with SameGpuTwice(0, bus_ids) as lab:
        params = TopologyParams.preset("cuda", quick=True)
        rows = [row.model_dump() for row in Topology().measure(params, lab, Harness(note=notes.append))]
    known = Host(rows)
    for who in WAYS:
        for way in ("h2d", "d2h"):
            cell = known.at_once(way, who)
            reached = cell.alone_share if cell else None
            # Half, and at most one copy of each too much: between its events a copy counts as moving evenly.
            assert reached is None or reached < 0.76, (who, way, reached)
            left_out = [line for line in notes if f", {way}, by {issuer(who)}. Their copies took turns" in line]
            assert bool(left_out) == (cell is None), (who, way, notes)
    verdict = concluded(rows, 2).verdict or ""
    assert not verdict.startswith("No two of 2 GPUs share an uplink:"), verdict


def rate(process: Member, gpus: Sequence[int], way: OneWay) -> float:
    """Bytes/second of all together while all copied; the median of five."""
    found = []
    for _ in range(5):
        process.prepare(gpus, [way])
        copied = process.copy(gpus, [way], None)["flights"]
        flights = [Flight(**{**one, "ends": tuple(one["ends"])}) for one in copied]
        window = common_window(flights)
        assert window is not None, flights
        first, last = window
        found.append(sum(flight.done(last) - flight.done(first) for flight in flights) * 256 * MIB / (last - first))
    return median(found)


@pytest.mark.parametrize("way", ["h2d", "d2h"])
def test_an_engine_and_a_kernel_on_one_link_reach_half_of_their_rates_alone(
    monkeypatch: pytest.MonkeyPatch, way: OneWay
) -> None:
    place = CudaLab(0).place_of(0)
    labs = [CudaLab(0, {0: place}), ByKernel(0, {0: place})]
    monkeypatch.setattr(child_member, "open_lab", lambda place, seed: labs.pop(0))
    process = Member({"0": place, "1": place}, 0)
    try:
        process.start()
        process.take({"0": None, "1": None}, 256 * MIB, [way], 4)
        single = [rate(process, [gpu], way) for gpu in (0, 1)]
        both = rate(process, [0, 1], way)
        assert both / sum(single) == pytest.approx(0.52, abs=0.06), (both, single)
        assert [one["words"] for one in process.check([0, 1], [way])["wrong"]] == [0, 0]
    finally:
        process.end()


@pytest.mark.two_gpus
@pytest.mark.parametrize("issued_by", WAYS)
@pytest.mark.parametrize("way", ["h2d", "d2h"])
def test_all_gpus_at_once_reach_the_rate_of_nvbandwidth(host: Host, way: str, issued_by: IssuedBy) -> None:
    cell = host.at_once(way, issued_by)
    assert cell is not None
    rates = {gpu: own.median for gpu, own in cell.own.items()}
    if on_h200():
        assert all(rate <= 1.01 * ALONE[way] for rate in rates.values()), rates
    if on_h200() and len(rates) == 2:
        assert all(rate >= 0.99 * ALL_OF_TWO[way] for rate in rates.values()), rates
