"""Findings about a machine: each rule fires on the machine it is about and is silent on a good one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pinscope.analysis.machine import machine_findings
from pinscope.probes.environment import capture_environment
from pinscope.probes.gpu import GpuMemory
from pinscope.probes.proc import Answer, Proc
from pinscope.records.environment import Environment
from pinscope.records.run import Finding
from tests.data.gpu_fake import FakeGpu, FakeNvml
from tests.data.link_limits import pcie_limits

TREE = Proc.below(Path(__file__).parents[2] / "data" / "proc" / "container-in-vm-cgroup1")
GIB = 2**30


def gpu(**pcie: int) -> FakeGpu:
    """A Gen5 × 16 GPU at its best, changed by ``pcie``."""
    best = {"generation_now": 5, "width_now": 16, "generation_max": 5, "gpu_generation_max": 5, "width_max": 16}
    return FakeGpu(
        name=Answer("NVIDIA H200"), uuid=Answer("GPU-1"), pci_bus_id=Answer("00000000:1B:00.0"),
        memory=Answer(GpuMemory(141 * GIB, 140 * GIB, GIB, None)), compute_capability=Answer((9, 0)),
        c2c=Answer.missing("none"), bar1=Answer((256 * GIB, 0)),
        pcie={name: Answer(pcie.get(name, value)) for name, value in best.items()},
    )  # fmt: skip


def machine(*gpus: FakeGpu, **changes: Any) -> Environment:
    """The captured host with these GPUs; fields of the environment, its limits and huge pages may be changed."""
    nvml = FakeNvml(driver_version=Answer("580.159"), cuda_version=Answer((13, 0)), gpus=gpus)
    environment = capture_environment(TREE, nvml if gpus else FakeNvml(absent="no NVIDIA driver is installed here"))
    for part in ("limits", "huge_pages"):
        record = getattr(environment, part)
        own = {name: changes.pop(name) for name in list(changes) if name in type(record).model_fields}
        changes[part] = record.model_copy(update=own)
    return environment.model_copy(update={"packages": {"cupy-cuda13x": "14.2.0"}} | changes)


def rules(environment: Environment) -> dict[str, Finding]:
    return {finding.rule: finding for finding in machine_findings(environment)}


def test_a_machine_without_gpu_is_told_what_still_works_and_a_good_one_praised_for_its_link() -> None:
    assert [(rule, finding.severity) for rule, finding in rules(machine(gpu())).items()] == [("link-at-best", "good")]
    finding = rules(machine())["no-gpu"]
    assert finding.severity == "note"
    assert "no NVIDIA driver is installed here" in finding.detail
    assert "--lab host" in finding.advice


def test_a_link_with_too_few_lanes_is_a_warning_with_both_limits() -> None:
    finding = rules(machine(gpu(width_now=8)))["link-below-best"]
    assert finding.severity == "warning"
    values = {quantity.name: quantity.value for quantity in finding.evidence}
    assert values["Lanes now"] == 8
    assert values["Payload limit now"] == pcie_limits(5, 8)[1]
    assert values["Payload limit at best"] == pcie_limits(5, 16)[1]
    assert "Reseat" in finding.advice


def test_a_lower_generation_alone_is_only_a_note_because_idle_links_drop() -> None:
    finding = rules(machine(gpu(generation_now=1)))["link-below-best"]
    assert finding.severity == "note"
    assert "save power" in finding.detail
    assert "pinscope run bandwidth" in finding.advice


def test_each_gpu_is_judged_by_itself_and_by_what_its_slot_can_do() -> None:
    good, hidden = gpu(generation_now=4, generation_max=4), gpu()
    hidden.pcie["width_now"] = Answer.missing("not supported")
    findings = machine_findings(machine(good, hidden, gpu(width_now=4)))
    judged = [(finding.rule, finding.title[:5]) for finding in findings]
    assert judged == [("link-at-best", "GPU 0"), ("link-below-best", "GPU 2")]


def test_a_driver_too_old_for_cupy_is_critical_and_a_missing_cupy_no_finding() -> None:
    finding = rules(machine(gpu(), cuda_driver="12.4"))["cupy-does-not-fit-driver"]
    assert finding.severity == "critical"
    assert "[cuda12]" in finding.advice
    assert rules(machine(gpu(), packages={})).keys() == {"link-at-best"}


def test_huge_pages_that_are_off_and_compaction_that_page_faults_wait_for_are_findings() -> None:
    for rule, name, firing, silent in [
        ("thp-off", "transparent", "never", ("madvise", "always", None)),
        ("thp-defrag-stalls", "defrag", "always", ("madvise", "defer", None)),
    ]:
        assert rule in rules(machine(gpu(), **{name: firing}))
        assert not any(rule in rules(machine(gpu(), **{name: setting})) for setting in silent)


def test_little_lockable_memory_matters_more_without_a_gpu() -> None:
    low = 8 * 2**20
    assert rules(machine(memlock_headroom_bytes=low))["memlock-low"].severity == "warning"
    assert rules(machine(gpu(), memlock_headroom_bytes=low))["memlock-low"].severity == "note"
    assert "memlock-low" not in rules(machine(memlock_headroom_bytes=GIB))
    assert "memlock-low" not in rules(machine(memlock_headroom_bytes=None))


def test_a_control_group_well_below_the_host_is_noted() -> None:
    for limit, headroom, fires in [
        (32 * GIB, 30 * GIB, True),
        (128 * GIB, 20 * GIB, True),
        (120 * GIB, 100 * GIB, False),
        (None, None, False),
    ]:
        environment = machine(
            gpu(), host_total_bytes=128 * GIB, host_available_bytes=120 * GIB,
            cgroup_limit_bytes=limit, cgroup_headroom_bytes=headroom,
        )  # fmt: skip
        finding = rules(environment).get("cgroup-below-host")
        assert (finding is not None) is fires
        if finding is not None:
            assert {quantity.value for quantity in finding.evidence} == {limit, headroom, 128 * GIB, 120 * GIB}


@pytest.mark.parametrize(("node", "command"), [(1, "--membind=1"), (None, "--membind=NODE")])
def test_several_numa_nodes_name_that_of_a_gpu(node: int | None, command: str) -> None:
    environment = machine(gpu(), numa_nodes=2)
    devices = (environment.devices[0].model_copy(update={"numa_node": node}),)
    assert command in rules(environment.model_copy(update={"devices": devices}))["several-numa-nodes"].advice


def test_wsl_is_warned_of_its_cap() -> None:
    assert rules(machine(gpu(), virtualization="WSL2"))["wsl-caps-pinned-memory"].severity == "warning"
    assert "wsl-caps-pinned-memory" not in rules(machine(gpu(), virtualization="QEMU/KVM"))


def test_every_finding_has_numbers_and_says_what_to_do() -> None:
    environment = machine(
        gpu(width_now=8), transparent="never", memlock_headroom_bytes=0, virtualization="WSL2", numa_nodes=4,
        cuda_driver="12.0", cgroup_limit_bytes=GIB, cgroup_headroom_bytes=0,
    )  # fmt: skip
    findings = machine_findings(environment)
    assert len(findings) == 7
    assert all(finding.evidence and finding.advice for finding in findings)
