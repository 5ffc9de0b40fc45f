"""Who holds pinned memory: on synthetic hosts, on captured ones, and on this one with real child processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pinscope.analysis.models import context_overhead_bytes
from pinscope.live.source import snapshot
from pinscope.probes.gpu import process_on_gpu
from pinscope.probes.proc import Answer, Proc
from tests.data.one_door import OneDoor
from tests.data.snapshot_checks import captured, holder_of, without_reason
from tests.data.synthetic_gpu import busy_h200, figures
from tests.data.synthetic_host import SyntheticHost, context, named, zero

MIB, GIB = 2**20, 2**30
ROOT = Path(__file__).parents[3]
CAPTURED = ROOT / "tests" / "data" / "proc"


def test_a_holder_is_right_to_the_page(host: SyntheticHost) -> None:
    pid = host.cuda_process([zero(2 * MIB, 1), zero(24 * GIB - 4096, 2), named(GIB, "/dev/nvidia-uvm")], started=250)
    found = snapshot(host.proc, figures(host.proc, [busy_h200(50 * MIB, process_on_gpu(pid, 520 * MIB))]))
    one = holder_of(found, pid)
    assert one.host_alloc_bytes == 24 * GIB - 4096 + 2 * MIB
    assert [(each.size_bytes, each.count) for each in one.allocations] == [(24 * GIB - 4096, 1), (2 * MIB, 1)]
    assert "host_alloc_bytes" not in one.estimates
    assert one.managed_bytes == GIB
    assert "address space" in one.estimates["managed_bytes"].text
    assert (one.cuda, one.user, one.command) == (True, "root", "python train.py")
    assert [(use.index, use.memory_bytes, use.page_table_bytes) for use in one.gpus] == [(0, 520 * MIB, 50 * MIB)]
    assert found.host.explained_bytes == one.host_alloc_bytes
    assert found.host.other_pinned_bytes == 25 * GIB - one.host_alloc_bytes
    assert "other_pinned_bytes" in found.host.estimates
    (device,) = found.devices
    assert device.unattributed_bytes == device.page_table_bytes == 50 * MIB
    assert device.context_overhead_bytes == context_overhead_bytes(1)
    assert "H200" in device.estimates["context_overhead_bytes"].text
    assert without_reason(found) == []


def test_each_gpu_with_a_context_pays(host: SyntheticHost) -> None:
    pid = host.cuda_process([zero(8 * GIB, 1)])
    other = host.cuda_process([zero(GIB, 2)])
    gpus = [
        busy_h200(16 * MIB, process_on_gpu(pid, MIB)),
        busy_h200(18 * MIB, process_on_gpu(pid, MIB), process_on_gpu(other, MIB)),
    ]
    found = snapshot(host.proc, figures(host.proc, gpus))
    assert [device.page_table_bytes for device in found.devices] == [16 * MIB, 18 * MIB]
    assert [use.index for use in holder_of(found, pid).gpus] == [0, 1]


def test_pins_that_the_kernel_accounts_are_explained_too(host: SyntheticHost) -> None:
    pid = host.process("storage", VmPin=GIB, VmLck=2 * GIB, HugetlbPages=MIB)
    found = snapshot(host.proc)
    one = holder_of(found, pid)
    assert (one.vm_pin_bytes, one.locked_bytes, one.hugetlb_bytes, one.host_alloc_bytes) == (GIB, 2 * GIB, MIB, 0)
    assert (one.cuda, one.gpus) == (False, ())
    assert found.host.explained_bytes == GIB


def test_mappings_that_cannot_all_be_pinned_are_estimates(host: SyntheticHost) -> None:
    part = host.cuda_process([zero(8 * GIB, 1)], RssShmem=GIB)
    monitor = host.process("monitor", files=["/dev/nvidiactl"], mappings=[zero(64 * MIB, 2)])
    found = snapshot(host.proc)
    assert "resident" in holder_of(found, part).estimates["host_alloc_bytes"].text
    assert "ordinary shared memory" in holder_of(found, monitor).estimates["host_alloc_bytes"].text
    assert found.host.estimates["explained_bytes"].text.startswith("at most")


def test_mappings_that_come_to_more_than_is_pinned_are_estimates_and_never_explain_more(tmp_path: Path) -> None:
    host = SyntheticHost(tmp_path, pinned_bytes=3 * GIB)
    pids = [host.cuda_process([*context(inode=1000 * each), zero(2 * GIB, each)]) for each in (1, 2)]
    found = snapshot(host.proc, figures(host.proc, [busy_h200(8 * MIB, *(process_on_gpu(pid, MIB) for pid in pids))]))
    for pid in pids:
        one = holder_of(found, pid)
        assert one.host_alloc_bytes == 2 * GIB
        assert one.estimates["host_alloc_bytes"].text.startswith(
            "at most: the holders' mappings add up to more than is pinned"
        )
        assert one.gpus[0].estimates["page_table_bytes"].kind == "about"  # registered memory is not known
    assert found.devices[0].estimates["page_table_bytes"].kind == "about"
    assert found.host.explained_bytes == found.host.pinned_bytes
    assert found.host.estimates["explained_bytes"].text.startswith("at most")
    assert found.host.other_pinned_bytes is None
    assert "more than is pinned" in found.host.missing["other_pinned_bytes"]


def test_driver_memory_is_what_a_context_does_not_map_by_itself(host: SyntheticHost) -> None:
    pid = host.cuda_process([*context(), named(GIB, "/dev/nvidiactl"), named(2 * MIB, "/dev/nvidiactl")])
    strange = host.cuda_process([named(2 * MIB, "/dev/nvidia0"), named(40 * MIB, "/dev/nvidiactl")])
    display = host.process("Xorg", files=["/dev/nvidiactl"], mappings=[named(40 * MIB, "/dev/nvidiactl")])
    gpu = busy_h200(8 * MIB, process_on_gpu(pid, MIB), process_on_gpu(strange, MIB))
    found = snapshot(host.proc, figures(host.proc, [gpu]))
    one = holder_of(found, pid)
    assert one.driver_memory_bytes == GIB + 2 * MIB
    assert "driver_memory_bytes" not in one.estimates
    assert [use.page_table_bytes for use in one.gpus] == [4 * MIB]
    assert "driver memory" in one.gpus[0].estimates["page_table_bytes"].text
    assert holder_of(found, strange).driver_memory_bytes == 40 * MIB
    assert holder_of(found, strange).estimates["driver_memory_bytes"].text.startswith("at most")
    assert display not in {each.pid for each in found.holders}
    assert found.holders[0] == one


def test_a_forked_child_has_none_of_its_parents_driver_memory_and_an_orphan_all_of_it(tmp_path: Path) -> None:
    mappings = [*context(), zero(GIB, 1), named(GIB, "/dev/nvidiactl")]
    for alive in (True, False):
        host = SyntheticHost(tmp_path / str(alive), pinned_bytes=GIB + 8 * MIB)
        parent = host.cuda_process(mappings, started=100) if alive else 999
        child = host.cuda_process(mappings, parent=parent if alive else 1, started=101, RssShmem=0)
        found = snapshot(host.proc, figures(host.proc, [busy_h200(8 * MIB, process_on_gpu(parent, MIB))]))
        one = holder_of(found, child)
        held = 0 if alive else GIB
        assert (one.host_alloc_bytes, one.driver_memory_bytes, one.inherited_bytes) == (held, held, GIB - held)
        assert [use.page_table_bytes for use in one.gpus] == ([] if alive else [6 * MIB])
        assert "host_alloc_bytes" not in one.estimates
        assert found.devices[0].page_table_bytes == 6 * MIB
        assert not any(gap.hides_holders for gap in found.unreadable)


def test_the_hosts_init_process_is_a_holder_only_if_much_of_what_it_locked_is_there(tmp_path: Path) -> None:
    for resident, shown in ((8 * MIB, False), (80 * MIB, True)):
        host = SyntheticHost(tmp_path / str(resident))
        host.process("systemd", pid=1, parent=0, VmLck=90 * MIB, VmRSS=resident)
        other = host.process("agent", VmLck=MIB, VmRSS=4 * MIB)
        pids = {one.pid for one in snapshot(host.proc).holders}
        assert pids == {other, *([1] if shown else [])}
    assert holder_of(snapshot(host.proc), 1).estimates["locked_bytes"].text.startswith("at most")


def test_a_kernel_without_counters_still_shows_holders(tmp_path: Path) -> None:
    host = SyntheticHost(tmp_path, pinned_bytes=None)
    pid = host.cuda_process([zero(GIB, 1)])
    found = snapshot(host.proc)
    assert holder_of(found, pid).host_alloc_bytes == found.host.explained_bytes == GIB
    assert found.host.other_pinned_bytes is None
    assert "Linux 5.7" in next(gap.advice or "" for gap in found.unreadable if "whole host" in gap.what)
    assert without_reason(found) == []


class AsAnotherUser(OneDoor):
    """/proc as a user without rights over these processes sees it."""

    def read(self, path: str) -> Answer[str]:
        return Answer.missing(f"{path} may not be read by this user") if path.endswith("maps") else super().read(path)

    def links(self, folder: str) -> Answer[dict[str, str]]:
        return Answer.missing(f"{folder} may not be read by this user")


def test_another_users_holder_is_named_and_its_figures_are_missing_with_the_way_to_get_them(
    host: SyntheticHost,
) -> None:
    pid = host.cuda_process([zero(GIB, 1)], user=4_000_000_123, VmLck=MIB)
    hidden = host.cuda_process([zero(GIB, 2)], VmLck=MIB)
    proc = AsAnotherUser(host.folder)
    found = snapshot(proc, figures(host.proc, [busy_h200(2 * MIB, process_on_gpu(pid, MIB))]))
    one = holder_of(found, pid)
    assert (one.user, one.cuda, one.host_alloc_bytes) == ("4000000123", True, None)
    assert "may not be read" in one.missing["host_alloc_bytes"]
    assert one.gpus[0].page_table_bytes is None
    other = holder_of(found, hidden)
    assert (other.locked_bytes, other.host_alloc_bytes, other.cuda) == (MIB, None, None)
    assert found.host.estimates["explained_bytes"].text.startswith("at least")
    assert found.devices[0].estimates["page_table_bytes"].text.endswith("1 of its processes could not be looked at")
    (gap,) = found.unreadable
    assert gap.what.startswith("Open files and mappings of 2 of")
    assert "root" in (gap.advice or "")
    assert without_reason(found) == []


def test_in_a_container_with_its_own_pids_the_snapshot_says_what_it_cannot_see(tmp_path: Path) -> None:
    host = SyntheticHost(tmp_path, pinned_bytes=25 * GIB, pid_namespace=4026532198)
    pid = host.cuda_process([zero(GIB, 1)])
    found = snapshot(host.proc, figures(host.proc, [busy_h200(2 * MIB, process_on_gpu(777_777, MIB))]))
    assert [gap.what.split(" (")[0] for gap in found.unreadable] == [
        "Processes outside this container",
        "Processes that the driver lists and /proc does not show",
    ]
    assert "another pid namespace" in holder_of(found, pid).missing["gpus"]
    assert found.devices[0].bounds["unattributed_bytes"] == "at_most"
    assert found.host.estimates["explained_bytes"].text.startswith("at least")


def test_a_captured_host_gives_each_figure_or_its_reason() -> None:
    for name in sorted(path.name for path in CAPTURED.iterdir()):
        found = captured(CAPTURED / name)
        assert without_reason(found) == []
        if not Proc.below(CAPTURED / name).pids().value:  # a copy of the host's files alone
            assert found.host.missing["explained_bytes"] == "/proc shows no process"


def test_a_capture_of_this_host_holds_its_holders_and_none_of_their_secrets(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LOCKS, str(MIB), "a secret word"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "done\n", "this user may lock no memory"
        capture = [sys.executable, str(ROOT / "scripts" / "capture-proc"), str(tmp_path / "captured")]
        subprocess.run(capture, check=True, capture_output=True, timeout=60)
        real = holder_of(snapshot(), child.pid)
        child.communicate("\n\n")
    copy = holder_of(captured(tmp_path / "captured"), child.pid)
    assert (copy.locked_bytes, copy.rss_bytes, copy.user) == (MIB, real.rss_bytes, real.user)
    assert copy.command == "python"
    texts = b"".join(path.read_bytes() for path in (tmp_path / "captured").rglob("*") if path.is_file())
    assert b"secret word" not in texts


CHILD = f"""
import mmap, os, sys
sys.path.insert(0, {str(ROOT)!r})
from tests.data.like_cuda import map_like_cuda
map_like_cuda(int(sys.argv[1]))
reserved = mmap.mmap(-1, 2**30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # as CUDA does
workers = []
for _ in range(int(sys.argv[2])):
    worker = os.fork()
    if not worker:
        sys.stdin.read()
        os._exit(0)
    workers.append(worker)
print(*workers, flush=True)
sys.stdin.read()
for worker in workers:
    os.waitpid(worker, 0)
"""


@contextmanager
def sharing_child(size: int, workers: int) -> Iterator[tuple[int, list[int]]]:
    """A process with shared anonymous memory, and its forked children: (pid, theirs)."""
    command = [sys.executable, "-c", CHILD, str(size), str(workers)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        yield child.pid, [int(word) for word in child.stdout.readline().split()]


class WithDeviceFiles(Proc):
    """This machine, with the difference that these processes have CUDA's device files open, and that much is pinned."""

    def __init__(self, *pids: int, pinned_bytes: int = GIB) -> None:
        super().__init__()
        self._folders, self._pinned_pages = {f"/proc/{pid}/fd" for pid in pids}, pinned_bytes // 4096

    def read(self, path: str) -> Answer[str]:
        if path == "/proc/vmstat":
            return Answer(f"nr_foll_pin_acquired {self._pinned_pages}\nnr_foll_pin_released 0\n")
        return super().read(path)

    def links(self, folder: str) -> Answer[dict[str, str]]:
        found = super().links(folder)
        return Answer({**(found.value or {}), "uvm": "/dev/nvidia-uvm"}) if folder in self._folders else found


def test_real_processes_share_real_memory_that_counts_once_and_goes_with_them() -> None:
    size = 48 * MIB + 4096
    with sharing_child(size, workers=2) as (pid, workers):
        proc = WithDeviceFiles(pid, *workers)
        found = snapshot(proc)
        assert holder_of(found, pid).host_alloc_bytes == size
        assert holder_of(found, pid).inherited_by == tuple(sorted(workers))
        assert "host_alloc_bytes" not in holder_of(found, pid).estimates
        assert [holder_of(found, one).inherited_bytes for one in workers] == [size, size]
        assert found.host.explained_bytes is not None
        assert found.host.explained_bytes >= size
        without = snapshot()
        assert {pid, *workers}.isdisjoint(one.pid for one in without.holders)
    assert {pid, *workers}.isdisjoint(one.pid for one in snapshot(proc).holders)


LOCKS = """
import ctypes, mmap, sys
size = int(sys.argv[1])
memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
call = ctypes.CDLL(None, use_errno=True)
for step in (call.mlock, call.munlock):
    if step(ctypes.c_void_p(address), ctypes.c_size_t(size)):
        sys.exit(ctypes.get_errno())
    print("done", flush=True)
    sys.stdin.readline()
"""


PINS = """
import ctypes, mmap, os, sys
size = int(sys.argv[1])
memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory[:] = bytes(size)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
call = ctypes.CDLL(None, use_errno=True).syscall
ring = call(425, 4, (ctypes.c_char * 120)())  # io_uring_setup
if ring < 0 or call(427, ring, 0, (ctypes.c_size_t * 2)(address, size), 1):  # io_uring_register, buffers
    print(os.strerror(ctypes.get_errno()), flush=True)
    sys.exit()
print("done", flush=True)
sys.stdin.read()
"""


def test_pages_that_a_real_process_pins_are_in_the_total_and_explained() -> None:
    # The kernel pins io_uring's buffers as it does CUDA's: the one way to pin real pages without a GPU.
    size = 64 * MIB
    before = snapshot().host
    if before.pinned_bytes is None:
        pytest.skip(f"this kernel does not count: {before.missing['pinned_bytes']}")
    command = [sys.executable, "-c", PINS, str(size)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        answer = child.stdout.readline().strip()
        if answer != "done":
            pytest.skip(f"io_uring may not be used here: {answer}")
        after = snapshot()
        assert holder_of(after, child.pid).vm_pin_bytes == size
        assert after.host.pinned_bytes is not None
        assert abs(after.host.pinned_bytes - before.pinned_bytes - size) <= MIB
        assert after.host.explained_bytes is not None
        assert before.explained_bytes is not None
        assert after.host.explained_bytes - before.explained_bytes == size


def test_a_holder_is_told_with_what_its_own_control_group_leaves(host: SyntheticHost) -> None:
    host.write("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n")
    host.write("sys/fs/cgroup/job/memory.max", f"{32 * GIB}\n")
    host.write("sys/fs/cgroup/job/memory.current", f"{30 * GIB}\n")
    limited = host.cuda_process([zero(24 * GIB, 1)], group="0::/job\n")
    free = host.cuda_process([zero(GIB, 2)], group="0::/other\n")
    found = snapshot(host.proc)
    one = holder_of(found, limited)
    assert (one.cgroup_limit_bytes, one.cgroup_headroom_bytes) == (32 * GIB, 2 * GIB)
    assert "no control group limits" in holder_of(found, free).missing["cgroup_limit_bytes"]
