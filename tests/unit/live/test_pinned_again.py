"""Pins that are easily told wrong: of memory that is pinned twice, by others than CUDA, or by nobody seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinscope.cli.live_view import View, whole
from pinscope.live.findings import snapshot_findings, snapshot_verdict
from pinscope.live.source import snapshot
from pinscope.monitoring.server import HOST
from pinscope.probes.gpu import process_on_gpu
from pinscope.records.snapshot import Snapshot
from pinscope.report.snapshot_facts import share_text
from tests.data.snapshot_checks import holder_of
from tests.data.synthetic_gpu import busy_h200, figures
from tests.data.synthetic_host import CUDA_FILES, SyntheticHost, aligned, context, zero
from tests.data.synthetic_snapshot import holder
from tests.data.synthetic_snapshot import snapshot as made

MIB, GIB, TIB = 2**20, 2**30, 2**40


def a_host(folder: Path, pinned: int | None, used: int, total: int = TIB, **meminfo: int) -> SyntheticHost:
    """So much is pinned and in use of so much; more lines of /proc/meminfo by name."""
    made = SyntheticHost(folder, pinned_bytes=pinned)
    lines = {"MemTotal": total, "MemFree": total - used, "MemAvailable": total - used, "Mlocked": 0} | meminfo
    made.write("proc/meminfo", "".join(f"{name}: {size // 1024} kB\n" for name, size in lines.items()))
    return made


def look(host: SyntheticHost, *users: int) -> Snapshot:
    """A snapshot, with these processes on a GPU."""
    return snapshot(host.proc, figures(host.proc, [busy_h200(40 * MIB, *(process_on_gpu(pid, MIB) for pid in users))]))


def rules(seen: Snapshot) -> list[str]:
    return [one.rule for one in snapshot_findings(seen)]


def pinned_line(seen: Snapshot) -> str:
    return next(line.text for line in whole(View(seen)) if line.text.startswith("Pinned"))


def ranks(folder: Path, used: int = 140 * GIB) -> Snapshot:
    """8 ranks that registered the same 128 GiB of shared memory, on a host of 1 TiB."""
    host = a_host(folder, 8 * (128 * GIB + 8 * MIB), used, Shmem=128 * GIB, Mapped=130 * GIB)
    shared = {"RssShmem": 128 * GIB, "VmRSS": 129 * GIB}
    pids = [host.cuda_process([*context(inode=1000 * rank)], **shared) for rank in range(1, 9)]
    return look(host, *pids)


@pytest.mark.parametrize("used", [140 * GIB, 940 * GIB])
def test_of_ranks_that_share_memory_no_more_is_pinned_than_is_in_use_and_one_finding_says_so(
    tmp_path: Path, used: int
) -> None:
    seen = ranks(tmp_path, used)
    assert (seen.host.pinned_bytes, seen.host.pins_bytes) == (used, TIB + 64 * MIB)
    assert seen.host.bounds["pinned_bytes"] == seen.host.bounds["other_pinned_bytes"] == "at_most"
    assert rules(seen) == ["memory-pinned-more-than-once"]


def test_verdict_terminal_page_and_metrics_of_ranks_that_share_memory_say_the_same_bound(tmp_path: Path) -> None:
    seen = ranks(tmp_path)
    assert snapshot_verdict(seen).startswith("On this host at most 140 GiB (13.7 % of its memory) is pinned, ")
    assert "≤140 GiB (13.7 %)" in pinned_line(seen)
    assert share_text(seen.host, "pinned_bytes") == "13.7 % of memory"
    assert "TiB" not in pinned_line(seen)
    (metric,) = (figure for figure in HOST if figure.metric == "pinscope_host_pinned_bytes")
    assert getattr(seen.host, metric.field) == 140 * GIB


def test_pinned_files_count_as_available_and_are_not_called_pinned_twice(tmp_path: Path) -> None:
    """Weights that are mapped from a file and registered read-only."""
    cached = {"Active(file)": 100 * GIB, "Inactive(file)": 300 * GIB, "Mapped": 200 * GIB}
    host = a_host(tmp_path, 200 * GIB, 30 * GIB, **cached)
    seen = look(host, host.cuda_process([*context()], RssFile=201 * GIB, VmRSS=202 * GIB))
    assert (seen.host.pinned_bytes, "pinned_bytes" in seen.host.estimates) == (200 * GIB, False)
    assert "memory-pinned-more-than-once" not in rules(seen)


def test_cudas_memory_that_rdma_pins_again_counts_once(tmp_path: Path) -> None:
    host = a_host(tmp_path, 30 * GIB + 8 * MIB, 40 * GIB)
    pid = host.cuda_process([*context(), zero(15 * GIB, 1)], VmPin=15 * GIB, VmRSS=18 * GIB)
    seen = look(host, pid)
    assert snapshot_verdict(seen).startswith(
        f"python (pid {pid}) has 15 GiB pinned; pinned on the whole host: at most 30.0 GiB"
    )
    assert seen.host.bounds["explained_bytes"] == "at_most"
    assert rules(seen) == []
    near = holder(vm_pin_bytes=16 * GIB, cgroup_limit_bytes=60 * GIB, cgroup_headroom_bytes=GIB)
    assert rules(made(holders=(near,))) == []  # 16 of 60 GiB, not 32


def test_who_pins_its_memory_several_times_for_rdma_has_no_more_pinned_than_it_has(tmp_path: Path) -> None:
    host = a_host(tmp_path, 40 * GIB, 60 * GIB)
    pid = host.process("storage", VmPin=40 * GIB, VmRSS=11 * GIB)
    seen = look(host)
    assert (holder_of(seen, pid).vm_pin_bytes, holder_of(seen, pid).bounds["vm_pin_bytes"]) == (11 * GIB, "at_most")
    assert snapshot_verdict(seen).startswith(
        f"storage (pid {pid}) has at most 11 GiB pinned; pinned on the whole host: at most"
    )


@pytest.mark.parametrize("file", ["/dev/vfio/12", "/dev/iommu"])
def test_a_virtual_machine_with_a_device_passed_through_pins_and_does_not_only_lock(tmp_path: Path, file: str) -> None:
    host = a_host(tmp_path, 64 * GIB, 80 * GIB)
    guest = host.process("qemu", files=["/dev/kvm", file], VmLck=64 * GIB, RssAnon=64 * GIB, VmRSS=65 * GIB)
    database = host.process("db", VmLck=8 * GIB, RssAnon=9 * GIB, VmRSS=9 * GIB)
    seen = look(host)
    assert (holder_of(seen, guest).locked_bytes, holder_of(seen, guest).vm_pin_bytes) == (0, 64 * GIB)
    assert (holder_of(seen, database).locked_bytes, holder_of(seen, database).vm_pin_bytes) == (8 * GIB, 0)
    assert (seen.host.explained_bytes, seen.host.other_pinned_bytes) == (64 * GIB, 0)
    text = "\n".join(line.text for line in whole(View(seen)))
    above, below = text.split("Locked (VmLck), which is not pinned for CUDA:")
    assert (str(guest) in above, str(guest) in below, str(database) in below) == (True, False, True)
    assert "mlock" not in below
    assert snapshot_verdict(seen).startswith(f"qemu (pid {guest}) has 64 GiB pinned;")


def test_a_guest_whose_memory_is_locked_and_pinned_has_it_once(tmp_path: Path) -> None:
    """With mem-lock=on, or in huge pages with two devices, VmLck is twice its memory."""
    host = a_host(tmp_path, 64 * GIB, 80 * GIB)
    pid = host.process("qemu", files=["/dev/vfio/12"], VmLck=128 * GIB, VmRSS=GIB, HugetlbPages=64 * GIB)
    assert holder_of(look(host), pid).vm_pin_bytes == 65 * GIB
    assert holder_of(look(host), pid).bounds["vm_pin_bytes"] == "at_most"


def registered(
    folder: Path, size: int = 8 * GIB, resident: int = 10 * GIB, **meminfo: int
) -> tuple[SyntheticHost, int]:
    """One CUDA process, and so much pinned that leaves no mark."""
    host = a_host(folder, size + 8 * MIB, 20 * GIB, **meminfo)
    return host, host.cuda_process([*context()], RssAnon=resident - GIB, VmRSS=resident)


def test_the_only_cuda_process_is_named_as_the_candidate_for_pins_that_nobody_explains(tmp_path: Path) -> None:
    host, pid = registered(tmp_path, Mlocked=8 * GIB)
    host.process("db", VmLck=8 * GIB, RssAnon=9 * GIB, VmRSS=9 * GIB)
    host.process("rdma", VmPin=0, VmRSS=GIB)
    exporter = host.process("exporter", files=CUDA_FILES, mappings=[], VmRSS=100 * MIB)  # asks NVML, has no context
    seen = look(host, pid)
    (finding,) = snapshot_findings(seen)
    assert finding.title == (
        f"8 GiB is pinned that no holder explains; python (pid {pid}) is the only CUDA process seen"
    )
    assert "at most" in finding.detail
    assert f"perhaps by python (pid {pid}), the only CUDA process" in snapshot_verdict(seen)
    assert str(exporter) not in finding.title


def test_the_candidates_forked_workers_are_no_candidates(tmp_path: Path) -> None:
    host = a_host(tmp_path, 9 * GIB + 8 * MIB, 20 * GIB)
    pieces = [*context(), zero(GIB, 1)]
    pid = host.cuda_process(pieces, started=100, RssAnon=9 * GIB, VmRSS=11 * GIB)
    host.cuda_process(pieces, parent=pid, started=101, RssAnon=9 * GIB, VmRSS=11 * GIB)
    for seen in (look(host, pid), snapshot(host.proc)):
        assert [one.title for one in snapshot_findings(seen)] == [
            f"8 GiB is pinned that no holder explains; python (pid {pid}) is the only CUDA process seen"
        ]


def test_of_several_cuda_processes_each_is_named_with_the_most_that_it_can_have(tmp_path: Path) -> None:
    host = a_host(tmp_path, 8 * GIB + 16 * MIB, 20 * GIB)  # 8 MiB are pinned for each context
    pid = host.cuda_process([*context()], RssAnon=9 * GIB, VmRSS=10 * GIB)
    small = host.cuda_process([*context(inode=5000)], RssAnon=2 * GIB, VmRSS=3 * GIB)
    seen = look(host, pid, small)
    (finding,) = snapshot_findings(seen)
    assert finding.title == "8 GiB is pinned that no holder explains; 2 CUDA processes may have it"
    assert {quantity.name: quantity.value for quantity in finding.evidence[1:]} == {
        f"At most, by python (pid {pid})": 8 * GIB,
        f"At most, by python (pid {small})": 3 * GIB,
    }
    assert f"perhaps by python (pid {pid}), one of 2 CUDA processes" in snapshot_verdict(seen)


def test_nobody_is_named_where_those_who_use_cuda_cannot_have_it_all_or_others_may(tmp_path: Path) -> None:
    small, only = registered(tmp_path / "small", resident=4 * GIB)
    container, inside = registered(tmp_path / "container")
    container.folder.joinpath("proc/self/ns/pid").unlink()
    container.link("proc/self/ns/pid", "pid:[4026532001]")
    few, little = registered(tmp_path / "few", size=40 * MIB)
    stranger, one = registered(tmp_path / "stranger")
    guest, beside = registered(tmp_path / "guest")
    guest.process("qemu", files=["/dev/vfio/1"], VmLck=8 * GIB, VmRSS=8 * GIB)
    seen = [
        look(small, only), look(container, inside), look(few, little),
        look(stranger, one, 99_999), look(guest, beside),
    ]  # fmt: skip
    assert [rules(each) for each in seen] == [[]] * len(seen)
    assert not any("CUDA process" in snapshot_verdict(each) for each in seen)


def test_a_container_with_a_meminfo_of_its_own_is_not_measured_with_the_hosts_pins(tmp_path: Path) -> None:
    host = a_host(tmp_path, 300 * GIB, 5 * GIB, total=16 * GIB)
    host.write("proc/self/mountinfo", "31 30 0:50 /proc/meminfo /proc/meminfo rw - fuse.lxcfs lxcfs rw\n")
    seen = look(host)
    assert seen.host.pinned_bytes is None
    assert "lxcfs" in seen.host.missing["pinned_bytes"]
    assert snapshot_verdict(seen) == "No process is seen to have pinned memory."


@pytest.mark.parametrize("others", [0, 8 * GIB])
def test_shared_memory_that_only_lies_as_pinned_memory_does_is_at_most_where_the_pins_may_be_other_memorys(
    tmp_path: Path, others: int
) -> None:
    """A server that registered 8 GiB and shares 6 with its workers; without the 8, those 6 are all that is pinned."""
    host = a_host(tmp_path, 7 * GIB + others + 16 * MIB, 40 * GIB)
    pid = host.cuda_process([*context(), aligned(6 * GIB, 1)], VmRSS=18 * GIB, RssAnon=11 * GIB)
    allocated = host.cuda_process([*context(inode=5000), zero(GIB, 2)], VmRSS=3 * GIB)
    seen = look(host, pid, allocated)
    assert holder_of(seen, pid).host_alloc_bytes == 6 * GIB
    assert holder_of(seen, pid).bounds.get("host_alloc_bytes") == ("at_most" if others else None)
    assert (holder_of(seen, allocated).host_alloc_bytes, holder_of(seen, allocated).bounds.get("host_alloc_bytes")) == (
        GIB,
        None,
    )


def nobody(folder: Path, pins: int, **changes: int) -> SyntheticHost:
    """So much is pinned, and nobody uses CUDA."""
    host = a_host(folder, pins, 20 * GIB, **changes)
    host.write("proc/sys/kernel/osrelease", "6.12.0-lost\n")
    host.process("init", pid=1)
    return host


ACCOUNTS = dict.fromkeys(("Buffers", "Cached", "SwapCached", "AnonPages", "Slab", "PageTables", "Percpu"), 0)


@pytest.mark.parametrize(("outside", "says"), [(20 * GIB, "may have stayed"), (GIB, "lost count")])
def test_pins_that_nobody_can_have_are_named_with_the_kernel_and_what_its_accounts_say(
    tmp_path: Path, outside: int, says: str
) -> None:
    seen = look(nobody(tmp_path, 8 * GIB, **ACCOUNTS | {"AnonPages": 20 * GIB - outside}))
    (finding,) = snapshot_findings(seen)
    assert (finding.rule, finding.severity) == ("pins-of-no-process", "note")
    assert finding.title.startswith("8 GiB ")
    assert {quantity.value for quantity in finding.evidence} == {8 * GIB, outside, "Linux 6.12.0-lost"}
    assert says in finding.detail
    assert not {"kill", "reset"} & set(finding.advice.lower().split())


@pytest.mark.parametrize("who", ["cuda", "rdma", "guest", "unseen guest", "on the GPU", "little"])
def test_pins_that_somebody_may_have_are_not_called_nobodys(tmp_path: Path, who: str) -> None:
    host = nobody(tmp_path, GIB // 2 if who == "little" else 8 * GIB, **ACCOUNTS)
    pids = [99_999] if who == "on the GPU" else []
    if who == "cuda":
        pids.append(host.cuda_process([*context()], VmRSS=4 * GIB))
    if who == "rdma":
        host.process("rdma", VmPin=4 * GIB, VmRSS=4 * GIB)
    if "guest" in who:  # without root its files cannot be seen: then only Mlocked tells it from mlock
        host.process("qemu", files=["/dev/vfio/1"] * (who == "guest"), VmLck=6 * GIB, VmRSS=7 * GIB)
    assert "pins-of-no-process" not in rules(look(host, *pids))


@pytest.mark.parametrize(("mlocked", "bound"), [(8 * GIB, None), (0, "at_most")])
def test_locked_memory_that_the_kernel_does_not_count_as_locked_is_at_most_and_may_be_pins(
    tmp_path: Path, mlocked: int, bound: str | None
) -> None:
    host, pid = registered(tmp_path, Mlocked=mlocked)
    locker = host.process("qemu", VmLck=8 * GIB, VmRSS=9 * GIB)
    seen = look(host, pid)
    assert holder_of(seen, locker).bounds.get("locked_bytes") == bound
    assert ("unexplained-pins" in rules(seen)) == (bound is None)


def test_ranks_that_may_share_what_they_registered_alarm_nobody_and_private_memory_does(tmp_path: Path) -> None:
    """8 × 64 GiB are pinned of 1 TiB, with 400 GiB available: the same 64 GiB, or 512."""
    findings = {}
    for name, shared in (("shared", 64 * GIB), ("private", GIB)):
        host = a_host(tmp_path / name, 512 * GIB, 624 * GIB, Shmem=shared)
        amounts = {"RssShmem": shared, "RssAnon": 64 * GIB, "VmRSS": 65 * GIB}
        pids = [host.cuda_process([*context(inode=1000 * rank)], **amounts) for rank in range(1, 9)]
        seen = look(host, *pids)
        (finding,) = (one for one in snapshot_findings(seen) if one.rule == "pinned-share-of-ram")
        findings[name] = (seen.host.pinned_least_bytes, finding.severity)
    assert findings == {"shared": (64 * GIB, "note"), "private": (505 * GIB, "warning")}
