"""What a run carries of a real GPU host: its bus, its driver, its NUMA nodes, and where its buffers lay."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pinscope.lab.cuda import CudaLab
from pinscope.probes.environment import capture_environment
from pinscope.probes.numa import read_nodes
from pinscope.records.environment import PCIE

MIB = 2**20
ALL_MEMORY = frozenset(node.number for node in read_nodes().value or () if node.memory_bytes)


def run(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "pinscope", "run", *arguments, "--lab", "cuda", "--quick", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


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


def test_the_kernel_module_is_what_modinfo_says() -> None:
    try:
        done = subprocess.run(["modinfo", "-F", "license", "nvidia"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("no modinfo here")
    if done.returncode:
        pytest.skip(f"modinfo does not know the module: {done.stderr.strip()}")
    assert capture_environment().kernel_module == ("open" if "GPL" in done.stdout else "proprietary")


def test_the_link_limit_follows_the_packets_that_were_read() -> None:
    for device in capture_environment().devices:
        link = device.link
        if link is None or link.kind != "pcie" or link.generation_max is None or link.width_max is None:
            continue
        rates = PCIE[link.generation_max]
        assert link.limit_bytes_per_second == rates.payload_bytes_per_second(link.width_max, link.max_payload_bytes)
        assert link.max_payload_bytes is not None or "link.max_payload_bytes" in device.missing


@pytest.mark.parametrize("memory", ["pageable", "pinned", "mapped", "write_combined", "registered"])
def test_the_node_of_each_kind_of_host_buffer_is_seen(lab: CudaLab, memory: Any) -> None:
    with lab.host_buffer(64 * MIB, memory):
        assert set(lab.host_nodes.take()) <= ALL_MEMORY
        assert lab.host_nodes.reason is None
        assert lab.host_nodes.ever
    assert lab.host_nodes.take() == ()


def test_a_run_bound_to_a_node_has_all_its_buffers_there() -> None:
    node = max(ALL_MEMORY)
    document = run("bandwidth", "--set", f"node={node}", "--set", "sizes=1MiB", "--set", "memory=pageable,pinned")
    assert Counter(row["host_node"] for row in document["observations"]).keys() == {node}
    assert any(f"bound to NUMA node {node}" in note for note in document["run"]["notes"])


def test_a_run_says_what_it_did_about_numa_and_counts_link_errors_before_and_after() -> None:
    document = run("overlap", "--set", "chunk=4MiB", "--set", "chunks=4", "--set", "repeats=8")
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
    ],
)
def test_every_experiment_tells_where_its_buffers_lay(experiment: str, smallest: list[str]) -> None:
    settings = [word for setting in smallest for word in ("--set", setting)]
    rows = run(experiment, *settings)["observations"]
    seen = {row["host_node"] for row in rows} - {None}
    assert seen, experiment
    assert seen <= ALL_MEMORY
    assert all(row["host_node"] is not None for row in rows if row.get("kind") in ("buffer", "copy"))


def test_the_batches_of_a_data_loader_are_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # PyTorch makes it when it is imported
    only_one = ["workers=0", "pin_memory=on", "non_blocking=on"]
    rows = run("dataloader", *(word for setting in only_one for word in ("--set", setting)))["observations"]
    assert {row["host_node"] for row in rows} <= ALL_MEMORY


def test_processors_of_a_run_are_those_of_its_node() -> None:
    """A child that the run starts inherits them."""
    node = next(node for node in read_nodes().value or () if node.number == max(ALL_MEMORY))
    program = (
        "import os, sys\n"
        "from pinscope.lab.placement import place, placement\n"
        "from pinscope.probes.environment import capture_environment\n"
        "place(placement(sys.argv[1], capture_environment(), 'cuda', 0))\n"
        "os.execvp('cat', ['cat', '/proc/self/status'])\n"
    )
    command = [sys.executable, "-c", program, str(node.number)]
    status = subprocess.run(command, capture_output=True, text=True, check=True, env=dict(os.environ)).stdout
    allowed = next(line.split()[1] for line in status.splitlines() if line.startswith("Cpus_allowed_list"))
    here = next(
        line.split()[1]
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("Cpus_allowed_list")
    )
    assert allowed in (node.processors, here)
