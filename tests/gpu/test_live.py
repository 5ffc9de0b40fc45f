"""A snapshot on a real GPU host, with the probe and without, against programs whose pinned memory is known.

The probe needs root and tracefs: mount -t tracefs tracefs /sys/kernel/tracing
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pinscope.errors import Cancelled, NotPossible
from pinscope.live.findings import possible_owners, snapshot_findings
from pinscope.live.source import snapshot
from pinscope.live.tracker import Tracker
from pinscope.probes.gpu import Nvml, read_gpus
from pinscope.records.registration import PidRegistrations, Piece
from pinscope.records.snapshot import DeviceFigures, Holder, Snapshot
from tests.data.fake_driver import left_by
from tests.gpu.holding import compile_program, holding, pytorch
from tests.gpu.machine import GIB, MIB

SIZE = 3 * GIB + 3 * 4096
SLACK = MIB + SIZE // 1000
"""What the host's total may be off by."""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_program("holder", tmp_path_factory.mktemp("holder"))


def look(tracker: Tracker | None = None) -> Snapshot:
    registrations = tracker.registered() if tracker else None
    with Nvml() as nvml:
        return snapshot(gpus=read_gpus(nvml), registrations=registrations)


def holder(taken: Snapshot, pid: int) -> Holder:
    return next(one for one in taken.holders if one.pid == pid)


def figure(record: Any, name: str) -> int:
    """A figure that must be there."""
    value = getattr(record, name)
    assert isinstance(value, int), record.missing.get(name)
    return value


def grown(before: Any, after: Any, name: str) -> int:
    return figure(after, name) - figure(before, name)


def three_looks(command: Sequence[str | Path]) -> tuple[int, Snapshot, Snapshot, Snapshot]:
    """The pid of a program, and snapshots before it held its memory, meanwhile, and after it gave it back."""
    with holding(command) as running:
        before = look()
        running.go_on("held")
        held = look()
        running.go_on("released")
        return running.pid, before, held, look()


@pytest.mark.parametrize("kind", ["alloc", "mapped", "fork"])
def test_cuda_host_memory_of_a_c_program_is_right_to_the_page_and_a_fork_adds_nothing(program: Path, kind: str) -> None:
    pid, before, held, after = three_looks([program, kind, str(SIZE)])
    one = holder(held, pid)
    assert holder(before, pid).host_alloc_bytes == 0
    assert one.host_alloc_bytes == SIZE
    assert one.context_pinned_bytes == 8 * MIB
    assert any(each.size_bytes == SIZE for each in one.allocations)
    assert not {"host_alloc_bytes", "driver_memory_bytes"} & one.estimates.keys()
    assert one.driver_memory_bytes == 0
    assert abs(grown(before.host, held.host, "driver_memory_bytes")) <= SLACK
    assert grown(before.host, held.host, "explained_bytes") == SIZE
    assert abs(grown(before.host, held.host, "pinned_bytes") - SIZE) <= SLACK
    assert len(one.inherited_by) == (kind == "fork")
    assert grown(before.host, after.host, "explained_bytes") == 0
    assert abs(grown(before.host, after.host, "pinned_bytes")) <= SLACK


def test_registered_memory_of_a_c_program_is_in_the_rest(program: Path) -> None:
    pid, before, held, after = three_looks([program, "register", str(SIZE)])
    assert grown(holder(before, pid), holder(held, pid), "host_alloc_bytes") == 0
    assert abs(grown(before.host, held.host, "other_pinned_bytes") - SIZE) <= SLACK
    assert abs(grown(before.host, after.host, "other_pinned_bytes")) <= SLACK


def test_who_registered_memory_before_the_look_is_named_with_at_most_all_of_it(program: Path) -> None:
    pid, _, held, after = three_looks([program, "register", str(SIZE)])
    owners = {owner.pid: most for owner, most in possible_owners(held)}
    assert SIZE <= owners[pid] <= figure(held.host, "other_pinned_bytes")
    assert "unexplained-pins" in [finding.rule for finding in snapshot_findings(held)]
    assert all(most < SIZE for _, most in possible_owners(after))


REPORTS = """
import sys, cupy, numpy, pinscope, torch
from cupy.cuda import runtime
def say(word):
    print(word, flush=True)
    sys.stdin.readline()
def pin(size):
    return torch.empty(size, dtype=torch.uint8, pin_memory=True), cupy.cuda.alloc_pinned_memory(size // 2)
torch.ones(1, device="cuda")
say("ready")
used, free = pin(64 << 20), pin(256 << 20)
del free
memory = numpy.ones(int(sys.argv[1]), numpy.uint8)
runtime.hostRegister(memory.ctypes.data, memory.nbytes, 0)
array = pinscope.pinned_empty("64MiB")
print(pinscope.report_host_memory(registered=memory.nbytes), file=sys.stderr, flush=True)
say("held")
torch._C._host_emptyCache()
cupy.get_default_pinned_memory_pool().free_all_blocks()
with array:
    pass
pinscope.report_host_memory(registered=memory.nbytes)
say("emptied")
"""


def test_what_a_program_says_of_its_memory_is_exact_and_explains_the_pins() -> None:
    pytest.importorskip("torch")
    size = GIB + 8192
    with holding([sys.executable, "-c", REPORTS, str(size)]) as running:
        before = look()
        running.go_on("held")
        held = look()
        running.go_on("emptied")
        emptied = look()
    one, after = holder(held, running.pid), holder(emptied, running.pid)
    assert holder(before, running.pid).said_at is None
    assert one.allocators == ("PyTorch", "CuPy")
    if "PyTorch" in one.kept_by:  # from 2.13 on
        assert one.kept_by == {"PyTorch": 256 * MIB, "CuPy": 128 * MIB}
    else:  # it holds 320
        assert one.kept_by == {"CuPy": 128 * MIB}
        assert (one.kept_bytes, one.bounds["kept_bytes"]) == ((64 + 256 + 128) * MIB, "at_most")
    assert one.registered_bytes == size + 64 * MIB
    assert "registered_bytes" not in one.estimates
    assert grown(before.host, held.host, "other_pinned_bytes") <= SLACK
    assert abs(grown(before.host, held.host, "explained_bytes") - (64 + 32 + 256 + 128 + 64) * MIB - size) <= MIB
    assert running.pid not in [owner.pid for owner, _ in possible_owners(held)]
    assert (after.kept_by["CuPy"], after.registered_bytes) == (0, size)
    assert grown(one, after, "host_alloc_bytes") == -(256 + 128) * MIB


@pytest.mark.parametrize("size", [2 * GIB, 2 * GIB + 3 * 4096, 48 * MIB])
def test_ordinary_shared_memory_of_a_cuda_program_is_not_taken_for_pinned(program: Path, size: int) -> None:
    pid, before, held, _ = three_looks([program, "ordinary", str(size)])
    one = holder(held, pid)
    assert abs(grown(before.host, held.host, "pinned_bytes")) <= MIB
    assert figure(held.host, "explained_bytes") <= figure(held.host, "pinned_bytes") + 4 * MIB
    if size > figure(held.host, "pinned_bytes") + 4 * MIB:
        assert one.host_alloc_bytes == 0
    else:  # others here pin as much: it may be pinned, and is marked so
        assert one.host_alloc_bytes in (0, size)
        assert one.host_alloc_bytes == 0 or one.estimates["host_alloc_bytes"].kind == "at_most"
    assert one.context_pinned_bytes == 8 * MIB
    assert [use.page_table_bytes for use in one.gpus] == [2 * MIB]


@pytest.mark.parametrize("kind", ["write_combined", "created", "pool"])
def test_driver_memory_of_a_c_program_shows_to_the_page_and_on_the_host_to_one_percent(
    program: Path, kind: str
) -> None:
    size = 2 * GIB + 3 * 4096
    pid, before, held, after = three_looks([program, kind, str(size)])
    one = holder(held, pid)
    mapped = {"write_combined": size, "created": 2050 * MIB, "pool": 2082 * MIB}[kind]
    on_host = grown(before.host, held.host, "driver_memory_bytes")
    sys.stderr.write(f"{kind}: {one.driver_memory_bytes} bytes mapped, {on_host} on the host\n")
    assert holder(before, pid).driver_memory_bytes == 0
    assert one.driver_memory_bytes == mapped
    assert "driver_memory_bytes" not in one.estimates
    assert one.host_alloc_bytes == 0
    assert abs(on_host - mapped) <= mapped // 100
    assert abs(grown(before.host, held.host, "pinned_bytes")) <= MIB
    (use,) = one.gpus
    assert use.page_table_bytes == 6 * MIB  # 8 bytes a page of it and of what the driver pinned for the context
    assert "driver memory" in use.estimates["page_table_bytes"].text
    assert figure(holder(after, pid), "driver_memory_bytes") == (2 * MIB if kind == "pool" else 0)
    assert abs(grown(before.host, after.host, "driver_memory_bytes")) <= mapped // 100


def test_a_child_that_outlives_its_parent_shows_with_its_memory_its_gpu_and_its_page_tables(program: Path) -> None:
    size = 2 * GIB + 3 * 4096
    with holding([program, "orphan", str(size)]) as running:
        running.go_on("held")
        whole = look()
        (child,) = holder(whole, running.pid).inherited_by
        assert holder(whole, child).gpus == ()
        os.kill(running.pid, signal.SIGKILL)
        running.process.wait(30)
        time.sleep(0.2)
        left = look()
    one = holder(left, child)
    assert all(each.pid != running.pid for each in left.holders)
    assert one.host_alloc_bytes == size
    assert one.context_pinned_bytes == 8 * MIB
    assert abs(grown(whole.host, left.host, "pinned_bytes")) <= MIB
    assert grown(whole.host, left.host, "explained_bytes") == 0
    assert [(use.index, use.page_table_bytes) for use in one.gpus] == [(0, 6 * MIB)]
    assert "ended" in one.gpus[0].missing["memory_bytes"]
    assert device(left).page_table_bytes == device(whole).page_table_bytes


def test_tensors_that_pytorch_pinned_are_right_to_the_page_with_a_hint_at_its_rounding() -> None:
    pytest.importorskip("torch", reason="the extra torch is not installed")
    pid, before, held, after = three_looks(pytorch(20 * MIB + 1, 20 * MIB + 1, 200 * MIB))
    one = holder(held, pid)
    rounded = 2 * 32 * MIB + 256 * MIB
    assert grown(holder(before, pid), one, "host_alloc_bytes") == rounded
    assert {each.size_bytes: each.count for each in one.allocations if each.power_of_two} == {
        32 * MIB: 2, 256 * MIB: 1
    }  # fmt: skip
    assert figure(one, "rounding_bytes") == rounded // 2
    assert abs(grown(before.host, held.host, "pinned_bytes") - rounded) <= MIB + rounded // 1000
    assert grown(before.host, after.host, "explained_bytes") == 0


def test_whatever_a_known_program_adds_to_the_memory_of_no_process_is_explained_to_4_mib(program: Path) -> None:
    before = device(look())  # this very process has a context, and a past
    with holding([program, "alloc", str(24 * GIB)]) as running:
        running.go_on("held")
        held = device(look())
    assert {each.pid for each in held.processes} - {each.pid for each in before.processes} == {running.pid}
    explained = grown(before, held, "page_table_bytes") + grown(before, held, "context_overhead_bytes")
    assert explained >= 50 * MIB
    assert abs(grown(before, held, "unattributed_bytes") - explained) <= 4 * MIB


def device(found: Snapshot) -> DeviceFigures:
    return found.devices[0]


def test_every_figure_of_a_device_is_read_or_says_why_not() -> None:
    for one in look().devices:
        told = {name for name, value in one.model_dump().items() if value is not None}
        assert {"memory_used_bytes", "memory_reserved_bytes", "bar1_used_bytes", "processes_bytes"} <= told
        assert {"rx_bytes_per_second", "tx_share", "busy_share", "sm_clock_hertz", "temperature_celsius"} <= told
        assert set(type(one).model_fields) - told <= one.missing.keys()


PROBED_SIZE = GIB + 3 * 4096
WRITE_COMBINED = 0x04
RESET = """
import ctypes, sys, numpy
from cupy.cuda import runtime
runtime.free(0)
memory = numpy.ones(int(sys.argv[1]), numpy.uint8)
def say(word):
    print(word, flush=True)
    sys.stdin.readline()
say("ready")
runtime.hostRegister(memory.ctypes.data, memory.nbytes, 0)
say("held")
assert ctypes.CDLL("libcuda.so.1").cuDevicePrimaryCtxReset_v2(0) == 0  # what cudaDeviceReset calls
say("reset")
"""


@pytest.fixture(scope="module")
def tracker() -> Iterator[Tracker]:
    with ExitStack() as stack:
        try:
            running_tracker = stack.enter_context(Tracker())
        except NotPossible as error:
            pytest.skip(f"no probe here: {error}")
        time.sleep(0.05)
        yield running_tracker
    assert left_by(os.getpid(), tracefs()) == set()


def tracefs() -> Path:
    return Path(next(line.split()[1] for line in Path("/proc/mounts").read_text().splitlines() if " tracefs " in line))


def registrations_of(tracker: Tracker, pid: int) -> PidRegistrations:
    return tracker.registered().by_pid.get(pid, PidRegistrations(pid=pid, name="", from_start=True))


def of_size(found: PidRegistrations, size: int) -> list[Piece]:
    return [piece for piece in found.pieces if piece.bytes == size]


def test_registered_memory_belongs_to_its_process_and_explains_the_host_s_total(
    tracker: Tracker, program: Path
) -> None:
    before = look(tracker)
    with (
        holding([program, "register", str(PROBED_SIZE)]) as one,
        holding([program, "register", str(2 * PROBED_SIZE)]) as other,
    ):
        ready = look(tracker)
        one.go_on("held")
        other.go_on("held")
        after = look(tracker)
        for child, size in ((one, PROBED_SIZE), (other, 2 * PROBED_SIZE)):
            account = registrations_of(tracker, child.pid)
            (piece,) = of_size(account, size)
            assert (piece.kind, account.from_start) == ("register", True)
            assert 0 < piece.seconds < 10
            assert holder(after, child.pid).registered_bytes == account.registered_bytes == size
            assert "registered_bytes" not in holder(after, child.pid).estimates
        total = grown(ready.host, after.host, "pinned_bytes")
        assert abs(total - 3 * PROBED_SIZE) <= MIB + 3 * PROBED_SIZE // 1000
        assert abs(grown(ready.host, after.host, "explained_bytes") - total) <= MIB + total // 1000
        tables = [sum(use.page_table_bytes or 0 for use in holder(after, child.pid).gpus) for child in (one, other)]
        bare = [sum(use.page_table_bytes or 0 for use in holder(ready, child.pid).gpus) for child in (one, other)]
        assert tables[1] - bare[1] >= tables[0] - bare[0] > 0
        one.go_on("released")
        assert registrations_of(tracker, one.pid).registered_bytes == 0
        assert registrations_of(tracker, other.pid).registered_bytes == 2 * PROBED_SIZE
    assert not {one.pid, other.pid} & set(tracker.registered().by_pid)
    assert abs(grown(before.host, look(tracker).host, "pinned_bytes")) <= MIB + 3 * PROBED_SIZE // 1000


def test_the_same_shared_memory_registered_by_two_counts_for_each(tracker: Tracker, program: Path) -> None:
    name = f"/pinscope-{uuid.uuid4().hex[:8]}"
    command = [program, "shm", str(PROBED_SIZE), name]
    try:
        with holding(command) as one, holding(command) as other:
            ready = look(tracker)
            one.go_on("held")
            other.go_on("held")
            after = look(tracker)
            both = [registrations_of(tracker, child.pid).registered_bytes for child in (one, other)]
            assert both == [PROBED_SIZE, PROBED_SIZE]
            assert grown(ready.host, after.host, "explained_bytes") == 2 * -(-PROBED_SIZE // 4096) * 4096
            assert abs(grown(ready.host, after.host, "pinned_bytes") - 2 * PROBED_SIZE) <= MIB + 2 * PROBED_SIZE // 1000
            one.go_on("released")
            other.go_on("released")
            assert [registrations_of(tracker, child.pid).registered_bytes for child in (one, other)] == [0, 0]
    finally:
        Path(f"/dev/shm{name}").unlink(missing_ok=True)


@pytest.mark.parametrize(("kind", "expected"), [("alloc", "alloc"), ("mapped", "alloc"), ("write_combined", None)])
def test_allocated_memory_has_its_address_and_goes(
    tracker: Tracker, program: Path, kind: str, expected: str | None
) -> None:
    with holding([program, kind, str(PROBED_SIZE)]) as child:
        child.go_on("held")
        (piece,) = of_size(registrations_of(tracker, child.pid), PROBED_SIZE)
        assert piece.kind == (expected or "write_combined")
        assert bool(piece.flags & WRITE_COMBINED) == (kind == "write_combined")
        maps = Path(f"/proc/{child.pid}/maps").read_text()
        assert f"\n{piece.address:x}-" in maps
        child.go_on("released")
        after = registrations_of(tracker, child.pid)
        assert of_size(after, PROBED_SIZE) == []


def test_a_forked_child_holds_nothing(tracker: Tracker, program: Path) -> None:
    with holding([program, "fork", str(PROBED_SIZE)]) as child:
        child.go_on("held")
        found = tracker.registered().by_pid
        assert [pid for pid, one in found.items() if of_size(one, PROBED_SIZE)] == [child.pid]
        child.go_on("released")


def test_pytorch_s_pinned_tensors_are_seen_with_what_the_allocator_rounded_them_to(tracker: Tracker) -> None:
    pytest.importorskip("torch")
    size = 20 * MIB + 1
    with holding(pytorch(size, size)) as child:
        before = registrations_of(tracker, child.pid)
        child.go_on("held")
        after = registrations_of(tracker, child.pid)
        new = [piece for piece in after.pieces if piece not in before.pieces]
        assert len(new) == 2
        assert all(piece.bytes >= size for piece in new)
        child.go_on("released")
        left = registrations_of(tracker, child.pid).pieces
        assert not [piece for piece in new if piece in left]


def test_a_context_that_is_reset_takes_its_registrations_along_and_that_is_said(tracker: Tracker) -> None:
    with holding([sys.executable, "-c", RESET, str(PROBED_SIZE)]) as child:
        ready = look(tracker)
        child.go_on("held")
        held = look(tracker)
        assert holder(held, child.pid).registered_bytes == PROBED_SIZE
        assert "registered_bytes" not in holder(held, child.pid).estimates
        child.go_on("reset")
        after = look(tracker)
        assert grown(ready.host, after.host, "pinned_bytes") < PROBED_SIZE // 2  # the driver did release it
        assert holder(after, child.pid).registered_bytes in (0, PROBED_SIZE)
        if holder(after, child.pid).registered_bytes:
            assert holder(after, child.pid).estimates["registered_bytes"].text.startswith("at most")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP])
def test_no_signal_that_asks_a_command_to_end_leaves_a_probe_in_the_kernel(
    number: int, tracker: Tracker, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "pinscope", "record", "--probe", "--for", "60s"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=tmp_path) as recording:
        deadline = time.monotonic() + 30
        while not left_by(recording.pid, tracefs()) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert left_by(recording.pid, tracefs()) != set()
        recording.send_signal(number)
        assert recording.wait(30) in {0, Cancelled.exit_code}
    assert left_by(recording.pid, tracefs()) == set()


def test_the_installed_library_is_followed_in_all_its_calls(tracker: Tracker) -> None:
    libraries = tracker.registered().libraries
    assert libraries
    assert all(library.reason is None for library in libraries)
    assert {"cuMemHostAlloc", "cuMemFreeHost", "cuMemHostRegister_v2", "cuMemHostUnregister"} <= set(libraries[0].calls)
