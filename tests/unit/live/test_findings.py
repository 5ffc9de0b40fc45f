"""Findings over a snapshot: each rule fires on the host it is about, with its numbers, and is silent on a good one."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from pinscope.analysis.rules import ROUNDING_ADVICE
from pinscope.live.findings import snapshot_findings
from pinscope.records.figure import at_most
from pinscope.records.run import Finding
from pinscope.records.snapshot import GpuProcess, GpuUse, LeftFile, MigInstance, Snapshot, Unreadable
from tests.data.link_limits import pcie_limits
from tests.data.synthetic_snapshot import GIB, MIB, TAKEN_AT, device, holder, host, link, snapshot

HIDDEN = (Unreadable(what="Open files", reason="they belong to other users", hides_holders=True),)
GPU_BYTES = 150_754_820_096


def found(seen: Snapshot) -> dict[str, Finding]:
    findings = snapshot_findings(seen)
    assert len({one.rule for one in findings}) == len(findings)
    return {one.rule: one for one in findings}


def values(finding: Finding) -> dict[str, Any]:
    return {one.name: one.value for one in finding.evidence}


MIG = MigInstance(uuid="MIG-1", gpu_instance=1, memory_total_bytes=GIB, memory_used_bytes=0, copy_engines=1, missing={})


def test_what_is_or_may_be_well_is_no_finding() -> None:
    for seen in [
        snapshot(),
        snapshot(holders=(holder(parent_pid=1),)),
        snapshot(holders=(holder(locked_bytes=GIB),)),
        snapshot(host=host(driver_memory_bytes=200 * GIB)),  # a file system's cache, compressed swap, a balloon
        snapshot(devices=(device(unattributed_bytes=4 * GIB, mig=(MIG,)),)),
        snapshot(devices=(device(link=link(kind="nvlink-c2c", generation_now=None, width_now=None)),)),
    ]:
        assert snapshot_findings(seen) == ()


def test_nothing_known_is_nothing_found() -> None:
    bare = host(pinned_bytes=None, explained_bytes=None, other_pinned_bytes=None)
    unknown = holder(host_alloc_bytes=None, rounding_bytes=None, locked_bytes=None, parent_pid=None, cuda=None)
    dark = device(unattributed_bytes=None, page_table_bytes=None, memory_total_bytes=None, link=None, busy_share=None)
    assert snapshot_findings(snapshot(host=bare, holders=(unknown,), devices=(dark,))) == ()


def test_the_pinned_share_of_ram_is_judged_by_what_is_left_too() -> None:
    for pinned, available, severity in [
        (128, 300, "note"),
        (200, 200, "note"),
        (201, 200, "warning"),
        (410, 60, "critical"),
        (200, 20, "critical"),
    ]:
        totals = host(pinned_bytes=pinned * GIB, available_bytes=available * GIB)
        finding = found(snapshot(host=totals))["pinned-share-of-ram"]
        assert finding.severity == severity
        assert values(finding)["Share of it"] == pinned / 512
        assert values(finding)["Held by python (pid 4711)"] == 16 * GIB


def test_where_the_kernel_counts_no_pins_what_the_holders_explain_is_judged() -> None:
    totals = host(pinned_bytes=None, explained_bytes=300 * GIB, other_pinned_bytes=None)
    assert values(found(snapshot(host=totals))["pinned-share-of-ram"])["Pinned"] == 300 * GIB


def test_driver_memory_is_a_finding_of_its_own_with_its_own_share() -> None:
    for held, available, severity in [
        (60, 300, "note"),
        (300, 100, "warning"),
        (60, 20, "note"),
        (130, 20, "critical"),
    ]:
        totals = host(driver_memory_bytes=(held + 5) * GIB, available_bytes=available * GIB)
        seen = snapshot(host=totals, holders=(holder(driver_memory_bytes=held * GIB),))
        assert [(one.rule, one.severity) for one in snapshot_findings(seen)] == [("driver-memory", severity)]


@pytest.mark.parametrize(("left", "severity"), [(2 * GIB, "warning"), (GIB // 2, "critical")])
def test_a_holder_that_fills_its_control_group_is_found(left: int, severity: str) -> None:
    one = holder(cgroup="/docker/abc", cgroup_limit_bytes=24 * GIB, cgroup_headroom_bytes=left)
    finding = found(snapshot(holders=(one,)))["holder-near-cgroup-limit"]
    assert finding.severity == severity
    assert values(finding) == {
        "Pinned or locked by it, at least": 16 * GIB, "Limit of the control group": 24 * GIB,
        "Left in the control group": left, "Control group": "/docker/abc",
    }  # fmt: skip


@pytest.mark.parametrize("changes", [{"cgroup_headroom_bytes": 12 * GIB}, {"host_alloc_bytes": GIB}])
def test_a_control_group_with_room_or_filled_by_others_is_no_finding(changes: dict[str, int]) -> None:
    one = holder(**({"cgroup_limit_bytes": 24 * GIB, "cgroup_headroom_bytes": GIB} | changes))
    assert snapshot_findings(snapshot(holders=(one,))) == ()


def test_holders_that_fill_one_control_group_together_are_one_finding() -> None:
    inside = {"cgroup": "/docker/abc", "cgroup_limit_bytes": 100 * GIB, "cgroup_headroom_bytes": 2 * GIB}
    ranks = [holder(pid, host_alloc_bytes=24 * GIB, container="docker 0123456789ab", **inside) for pid in range(1, 5)]
    apart = [
        holder(8, host_alloc_bytes=24 * GIB, container="docker ba9876543210", **(inside | {"cgroup": "/docker/def"})),
        holder(9, host_alloc_bytes=24 * GIB, **(inside | {"cgroup": None})),
        holder(10, host_alloc_bytes=24 * GIB, **(inside | {"cgroup": None})),
        holder(11, host_alloc_bytes=24 * GIB, **(inside | {"cgroup_limit_bytes": 400 * GIB})),
    ]
    finding = found(snapshot(holders=(*ranks, *apart)))["holder-near-cgroup-limit"]
    assert finding.title == ("4 holders in docker 0123456789ab are 2 GiB below the limit of their control group")
    assert values(finding)["Pinned or locked by them, at least"] == 96 * GIB
    assert values(finding)["Held by python (pid 4)"] == 24 * GIB


def test_more_pins_than_memory_in_use_are_pins_of_the_same_memory() -> None:
    totals = host(pinned_bytes=128 * GIB, explained_bytes=0, other_pinned_bytes=128 * GIB, available_bytes=470 * GIB)
    finding = found(snapshot(host=totals))["memory-pinned-more-than-once"]
    assert (finding.severity, values(finding)["Memory in use"]) == ("note", 42 * GIB)
    assert "At least 86 GiB" in finding.title
    assert "2 MiB a GiB" in finding.detail
    assert "CUDA IPC" in finding.advice


@pytest.mark.parametrize(("tables", "severity"), [(GPU_BYTES // 50, "warning"), (GPU_BYTES // 5, "critical")])
def test_page_tables_that_take_a_share_of_a_gpu_are_found(tables: int, severity: str) -> None:
    gpu = device(page_table_bytes=tables, unattributed_bytes=tables)
    finding = found(snapshot(devices=(gpu,)))["page-tables-of-gpu"]
    assert finding.severity == severity
    assert values(finding)["Page tables, cudaHostAlloc memory alone"] == tables
    assert values(finding)["Processes with a context"] == 1
    assert values(finding)["Share of it"] == tables / GPU_BYTES


def test_unattributed_gpu_memory_is_what_neither_processes_nor_page_tables_explain() -> None:
    gpu = device(unattributed_bytes=4 * GIB + 7 * MIB, page_table_bytes=GIB)
    finding = found(snapshot(devices=(gpu,)))["unattributed-gpu-memory"]
    assert finding.severity == "warning"
    assert "3 GiB are used" in finding.title


def test_page_tables_of_registered_memory_explain_too() -> None:
    """64 GiB that nobody explains may have 128 MiB of page tables on this GPU."""
    totals = host(pinned_bytes=80 * GIB, other_pinned_bytes=64 * GIB)
    gpu = device(unattributed_bytes=(32 + 7 + 128 + 511) * MIB)
    assert "unattributed-gpu-memory" not in found(snapshot(host=totals, devices=(gpu,)))
    assert "unattributed-gpu-memory" in found(snapshot(devices=(gpu,)))


def test_where_processes_are_hidden_unattributed_memory_is_only_a_note() -> None:
    gpu = device(unattributed_bytes=4 * GIB)
    finding = found(snapshot(devices=(gpu,), unreadable=HIDDEN))["unattributed-gpu-memory"]
    assert finding.severity == "note"
    assert finding.advice.startswith("Run as root")
    unknown = host(other_pinned_bytes=None, missing={"other_pinned_bytes": "needs Linux 5.7"})
    finding = found(snapshot(host=unknown, devices=(gpu,)))["unattributed-gpu-memory"]
    (tables,) = (each for each in finding.evidence if each.name.startswith("Page tables, all other"))
    assert (finding.severity, tables.reason) == ("note", "needs Linux 5.7")


def test_rounding_waste_is_summed_and_named_by_holder() -> None:
    holders = (holder(1, rounding_bytes=GIB), holder(2, rounding_bytes=8 * GIB, name="serve"))
    finding = found(snapshot(holders=holders))["rounding-waste"]
    assert finding.severity == "note"
    assert finding.title.startswith("Up to 9 GiB")
    assert list(values(finding).items()) == [
        ("At most, in serve (pid 2)", 8 * GIB), ("At most, in python (pid 1)", GIB),
    ]  # fmt: skip
    assert finding.advice == ROUNDING_ADVICE


def test_a_little_rounding_matters_on_a_small_host_only() -> None:
    holders = (holder(rounding_bytes=512 * MIB),)
    assert snapshot_findings(snapshot(holders=holders)) == ()
    small = host(total_bytes=16 * GIB, available_bytes=12 * GIB, pinned_bytes=GIB, explained_bytes=GIB)
    assert set(found(snapshot(host=small, holders=holders))) == {"rounding-waste"}


def test_a_busy_gpu_below_its_generation_is_found_and_an_idle_one_is_not() -> None:
    slow = link(generation_now=1)
    finding = found(snapshot(devices=(device(link=slow),)))["link-below-best"]
    assert finding.severity == "warning"
    assert "generation 1, its best is 5" in finding.title
    assert f"{pcie_limits(1, 16)[1] / 1e9:.2f} GB/s" in finding.detail
    assert snapshot_findings(snapshot(devices=(device(link=slow, busy_share=0.0, rx_share=0.0),))) == ()
    assert found(snapshot(devices=(device(link=slow, busy_share=None, rx_share=0.3),)))


def test_too_few_lanes_are_found_on_an_idle_gpu_too() -> None:
    gpu = device(link=link(width_now=8), busy_share=0.0, rx_share=0.0)
    finding = found(snapshot(devices=(gpu,)))["link-below-best"]
    assert "8 of 16 PCIe lanes" in finding.title
    assert values(finding)["Lanes now"] == 8


def everything_bad() -> Snapshot:
    return snapshot(
        host=host(
            pinned_bytes=300 * GIB, other_pinned_bytes=16 * GIB, available_bytes=10 * GIB, driver_memory_bytes=3 * GIB
        ),
        holders=(
            holder(1, parent_pid=1, rounding_bytes=8 * GIB, driver_memory_bytes=2 * GIB, rss_bytes=40 * GIB,
                   cgroup_limit_bytes=17 * GIB,
                   cgroup_headroom_bytes=0, gpus=(GpuUse(index=0, memory_bytes=0, page_table_bytes=32 * MIB),)),
        ),
        devices=(device(link=link(width_now=4), page_table_bytes=20 * GIB, unattributed_bytes=30 * GIB,
                        processes=(GpuProcess(pid=1, memory_bytes=GIB),)),),
    )  # fmt: skip


def test_every_finding_has_numbers_one_action_and_short_words() -> None:
    findings = snapshot_findings(everything_bad())
    assert len(findings) == 7
    for finding in findings:
        assert finding.evidence, finding.rule
        assert finding.advice, finding.rule
        assert len(finding.title.split()) <= 20, finding.rule
        assert finding.detail.endswith("."), finding.rule
        assert all(one.value is not None or one.reason for one in finding.evidence), finding.rule


def test_memory_of_files_that_nobody_has_is_named_with_the_command_that_frees_it() -> None:
    written = datetime(2026, 11, 26, 9, 30, tzinfo=UTC)
    sizes = {"/dev/shm/kv": 12 * GIB, "/dev/shm/other": 2 * GIB}
    files = tuple(LeftFile(path=path, bytes=size, modified_at=written) for path, size in sizes.items())
    finding = found(snapshot(left_files=files[:1]))["memory-left-behind"]
    assert finding.title == "12 GiB of memory lie in /dev/shm/kv; no process has it open"
    assert finding.severity == "note"
    assert finding.advice.endswith(" rm /dev/shm/kv")
    assert values(finding) == {"/dev/shm/kv": 12 * GIB, "Last written": "2026-11-26 09:30 UTC"}
    both = found(snapshot(left_files=files, host=host(total_bytes=256 * GIB)))["memory-left-behind"]
    assert both.title.startswith("14 GiB of memory lie in /dev/shm/kv and 1 more files")
    assert both.severity == "warning"


def test_page_tables_of_a_mig_instance_are_judged_by_its_own_memory() -> None:
    parts = tuple(
        MIG.model_copy(update={"gpu_instance": number, "memory_total_bytes": size})
        for number, size in ((1, 10 * GIB), (2, 70 * GIB))
    )
    both = (GpuProcess(pid=1, memory_bytes=GIB, gpu_instance=1), GpuProcess(pid=2, memory_bytes=GIB, gpu_instance=2))
    uses = (GpuUse(index=0, memory_bytes=GIB, page_table_bytes=512 * MIB),)
    gpu = device(mig=parts, processes=both, page_table_bytes=GIB, memory_total_bytes=80 * GIB)
    findings = snapshot_findings(snapshot(holders=(holder(1, gpus=uses), holder(2, gpus=uses)), devices=(gpu,)))
    assert [(one.rule, one.severity) for one in findings] == [("page-tables-of-gpu", "warning")]
    assert "MIG instance 1" in findings[0].title
    assert values(findings[0])["Share of it"] == 512 * MIB / (10 * GIB)


def test_what_an_allocator_may_keep_stands_with_its_rounding_where_the_process_does_not_say_it() -> None:
    rounded = {"rounding_bytes": 8 * GIB, "allocators": ("PyTorch",)}
    may = {"kept_bytes": 16 * GIB, "estimates": {"kept_bytes": at_most("only it knows")}}
    assert (
        "at most 16 GiB: torch._C._host_emptyCache() gives it back."
        in found(snapshot(holders=(holder(**rounded, **may),)))["rounding-waste"].detail
    )
    said = {"kept_bytes": 0, "kept_by": {"PyTorch": 0}}
    assert "emptyCache" not in found(snapshot(holders=(holder(**rounded, **said),)))["rounding-waste"].detail


def test_the_same_memory_is_told_once() -> None:
    """Registered memory by its share of the host, which names who may have it; kept memory as kept, not as rounding."""
    totals = host(pinned_bytes=300 * GIB, explained_bytes=0, other_pinned_bytes=300 * GIB)
    one = holder(host_alloc_bytes=0, allocations=(), rss_bytes=310 * GIB, gpus=())
    user = device(processes=(GpuProcess(pid=4711, memory_bytes=GIB),))
    findings = found(snapshot(host=totals, holders=(one,), devices=(user,)))
    assert set(findings) == {"pinned-share-of-ram"}
    assert values(findings["pinned-share-of-ram"])["At most, by python (pid 4711)"] == 300 * GIB
    keeping = holder(rounding_bytes=8 * GIB, kept_bytes=16 * GIB, kept_by={"PyTorch": 16 * GIB}, said_at=TAKEN_AT)
    assert set(found(snapshot(holders=(keeping,)))) == {"kept-by-allocators"}
