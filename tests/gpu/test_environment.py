"""What a run carries of a real GPU host, against nvidia-smi and modinfo; and where its buffers lay."""

from __future__ import annotations

import csv
import subprocess
from collections import Counter
from io import StringIO
from typing import Any

import pytest

from pinscope.analysis.machine import machine_findings
from pinscope.lab.cuda import CudaLab
from pinscope.probes.environment import capabilities, capture_environment
from pinscope.probes.host_memory import read_nodes
from tests.gpu.machine import MIB, run

QUERY = "index,name,uuid,pci.bus_id,memory.total,compute_cap,driver_version,pcie.link.gen.max,pcie.link.width.max"
ALL_MEMORY = frozenset(node.number for node in read_nodes().value or () if node.memory_bytes)


def test_the_environment_says_of_everything_what_it_is_or_why_not() -> None:
    environment = capture_environment()
    for record in (environment, *environment.devices, *(one.link_errors for one in environment.devices)):
        assert record is not None
        nothing = {name for name, value in record.model_dump().items() if value is None}
        assert nothing <= set(record.missing)
    assert environment.nodes
    assert environment.kernel_module in ("open", "proprietary")
    assert environment.mps is False
    assert environment.confidential_computing is not None


@pytest.mark.parametrize("memory", ["pageable", "pinned", "mapped", "write_combined", "registered"])
def test_the_node_of_each_kind_of_host_buffer_is_seen(lab: CudaLab, memory: Any) -> None:
    with lab.host_buffer(64 * MIB, memory):
        assert set(lab.host_nodes.take()) <= ALL_MEMORY
        assert lab.host_nodes.reason is None
        assert lab.host_nodes.ever
    assert lab.host_nodes.take() == ()


def test_a_run_bound_to_a_node_has_all_its_buffers_there() -> None:
    node = max(ALL_MEMORY)
    document = run("bandwidth", f"node={node}", "sizes=1MiB", "memory=pageable,pinned", quick=True)
    assert Counter(row["host_node"] for row in document["observations"]).keys() == {node}
    assert any(f"bound to NUMA node {node}" in note for note in document["run"]["notes"])


def test_a_run_says_what_it_did_about_numa_and_counts_link_errors_before_and_after() -> None:
    document = run("overlap", "chunk=4MiB", "chunks=4", "repeats=8", quick=True)
    environment, device = document["run"]["environment"], document["run"]["environment"]["devices"][0]
    expected = "one NUMA node" if len(environment["nodes"]) == 1 else "NUMA node"
    assert any(expected in note for note in document["run"]["notes"])
    assert {row["host_node"] for row in document["observations"]} <= ALL_MEMORY
    before, after = device["link_errors"], device["link_errors_after"]
    assert before["missing"] == after["missing"]
    for kind in ("replays", "correctable", "nonfatal", "fatal"):
        assert before[kind] is None or after[kind] >= before[kind]


@pytest.mark.parametrize(
    ("experiment", "smallest"),
    [
        ("registration", ["shared=64MiB", "buffer=8MiB", "repeats=1"]),
        ("page_tables", ["total=256MiB"]),
        ("pinning_strategy", ["size=1GiB", "repeats=1", "strategies=thp_register_chunks"]),
        ("allocation", ["sizes=1MiB", "ways=pinned,registered_4k"]),
        ("access", ["ways=copy,mapped", "size=16MiB", "uses=1", "spacings=1"]),
        ("dataloader", ["workers=0", "pin_memory=on", "non_blocking=on"]),
    ],
)
def test_every_experiment_tells_where_its_buffers_lay(experiment: str, smallest: list[str]) -> None:
    if experiment == "dataloader":
        pytest.importorskip("torch")
    rows = run(experiment, *smallest, quick=True)["observations"]
    seen = {row["host_node"] for row in rows} - {None}
    assert seen, experiment
    assert seen <= ALL_MEMORY
    assert all(row["host_node"] is not None for row in rows if row.get("kind") in ("buffer", "copy"))


@pytest.fixture
def stated() -> list[list[str]]:
    """One line per GPU, as nvidia-smi states it."""
    command = ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader,nounits"]
    text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    return [[cell.strip() for cell in row] for row in csv.reader(StringIO(text))]


def test_devices_are_those_that_nvidia_smi_states(stated: list[list[str]]) -> None:
    environment = capture_environment()
    assert len(environment.devices) == len(stated)
    for device, row in zip(environment.devices, stated, strict=True):
        index, name, uuid, bus_id, memory, capability, driver, generation, width = row
        assert [str(device.index), device.name, device.uuid] == [index, name, uuid]
        assert (device.pci_bus_id or "").lower() == bus_id.lower()
        assert device.memory_total_bytes is not None
        # nvidia-smi states MiB, rounded down or up with the driver's branch.
        assert abs(device.memory_total_bytes / 2**20 - float(memory)) <= 1
        assert device.compute_capability == capability
        assert environment.driver == driver
        assert device.link is not None
        if device.link.kind == "pcie":
            assert [str(device.link.generation_max), str(device.link.width_max)] == [generation, width]
            assert device.link.limit_bytes_per_second is not None


def test_this_machine_can_use_its_gpu() -> None:
    environment = capture_environment()
    works = {one.name: one.works for one in capabilities(environment)}
    assert works["gpu"]
    assert works["driver"]
    assert works["nvml"]
    assert works["cuda-lab"] == works["cupy"]
    assert "no-gpu" not in {finding.rule for finding in machine_findings(environment)}
