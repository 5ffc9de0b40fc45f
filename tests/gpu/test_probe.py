"""The probe on a real driver: registered bytes belong to the right process, to the byte, and go away again.

Needs root and tracefs: mount -t tracefs tracefs /sys/kernel/tracing
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pinscope.errors import Cancelled, NotPossible
from pinscope.live.registered import registered_by
from pinscope.live.source import snapshot
from pinscope.live.tracker import Tracker
from pinscope.probes.devices import read_gpus
from pinscope.probes.driver_library import installed_libraries
from pinscope.probes.gpu import Nvml
from pinscope.records.registration import PidRegistrations, Piece
from pinscope.records.snapshot import Holder, Snapshot
from tests.data.fake_driver import left_by
from tests.gpu.holding import compile_holder, holding, pytorch

MIB, GIB = 2**20, 2**30
SIZE = GIB + 3 * 4096
WRITE_COMBINED = 0x04
SOURCE = Path(__file__).parent / "programs" / "driver_memory.c"

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


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_holder(tmp_path_factory.mktemp("holder"))


def told(tracker: Tracker, pid: int) -> PidRegistrations:
    return tracker.registered().by_pid.get(pid, PidRegistrations(pid=pid, name="", from_start=True))


def of_size(found: PidRegistrations, size: int) -> list[Piece]:
    return [piece for piece in found.pieces if piece.bytes == size]


def look(tracker: Tracker) -> Snapshot:
    registrations = tracker.registered()
    with Nvml() as nvml:
        return snapshot(gpus=read_gpus(nvml), registrations=registrations)


def shown(found: Snapshot, pid: int) -> Holder:
    return next(one for one in found.holders if one.pid == pid)


def pinned(found: Snapshot) -> int:
    assert found.host.pinned_bytes is not None
    return found.host.pinned_bytes


def test_registered_memory_belongs_to_its_process_and_explains_the_host_s_total(
    tracker: Tracker, program: Path
) -> None:
    before = look(tracker)
    with holding([program, "register", str(SIZE)]) as one, holding([program, "register", str(2 * SIZE)]) as other:
        ready = look(tracker)
        one.go_on("held")
        other.go_on("held")
        after = look(tracker)
        for child, size in ((one, SIZE), (other, 2 * SIZE)):
            account = told(tracker, child.pid)
            (piece,) = of_size(account, size)
            assert (piece.kind, account.from_start) == ("register", True)
            assert 0 < piece.seconds < 10
            assert shown(after, child.pid).registered_bytes == account.registered_bytes == size
            assert "registered_bytes" not in shown(after, child.pid).estimates
        grown = pinned(after) - pinned(ready)
        assert abs(grown - 3 * SIZE) <= MIB + 3 * SIZE // 1000
        assert after.host.explained_bytes is not None
        assert ready.host.explained_bytes is not None
        assert abs(after.host.explained_bytes - ready.host.explained_bytes - grown) <= MIB + grown // 1000
        tables = [sum(use.page_table_bytes or 0 for use in shown(after, child.pid).gpus) for child in (one, other)]
        bare = [sum(use.page_table_bytes or 0 for use in shown(ready, child.pid).gpus) for child in (one, other)]
        assert tables[1] - bare[1] >= tables[0] - bare[0] > 0
        one.go_on("released")
        assert told(tracker, one.pid).registered_bytes == 0
        assert told(tracker, other.pid).registered_bytes == 2 * SIZE
    assert not {one.pid, other.pid} & set(tracker.registered().by_pid)
    assert abs(pinned(look(tracker)) - pinned(before)) <= MIB + 3 * SIZE // 1000


def test_the_same_shared_memory_registered_by_two_counts_for_each(tracker: Tracker, program: Path) -> None:
    name = f"/pinscope-{uuid.uuid4().hex[:8]}"
    command = [program, "shm", str(SIZE), name]
    try:
        with holding(command) as one, holding(command) as other:
            ready = look(tracker)
            one.go_on("held")
            other.go_on("held")
            after = look(tracker)
            assert [told(tracker, child.pid).registered_bytes for child in (one, other)] == [SIZE, SIZE]
            assert after.host.explained_bytes is not None
            assert ready.host.explained_bytes is not None
            assert after.host.explained_bytes - ready.host.explained_bytes == 2 * -(-SIZE // 4096) * 4096
            assert abs(pinned(after) - pinned(ready) - 2 * SIZE) <= MIB + 2 * SIZE // 1000
            one.go_on("released")
            other.go_on("released")
            assert [told(tracker, child.pid).registered_bytes for child in (one, other)] == [0, 0]
    finally:
        Path(f"/dev/shm{name}").unlink(missing_ok=True)


@pytest.mark.parametrize(("kind", "expected"), [("alloc", "alloc"), ("mapped", "alloc"), ("write_combined", None)])
def test_allocated_memory_has_its_address_and_goes(
    tracker: Tracker, program: Path, kind: str, expected: str | None
) -> None:
    with holding([program, kind, str(SIZE)]) as child:
        child.go_on("held")
        (piece,) = of_size(told(tracker, child.pid), SIZE)
        assert piece.kind == (expected or "write_combined")
        assert bool(piece.flags & WRITE_COMBINED) == (kind == "write_combined")
        maps = Path(f"/proc/{child.pid}/maps").read_text()
        assert f"\n{piece.address:x}-" in maps
        child.go_on("released")
        after = told(tracker, child.pid)
        assert of_size(after, SIZE) == []


@pytest.fixture(scope="module")
def driver_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that takes memory by calls of the driver that the runtime has not."""
    compiler, nvcc = shutil.which("cc"), shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    toolkit = Path(nvcc).resolve().parents[1]
    if compiler is None or not (toolkit / "include/cuda.h").exists():
        pytest.skip("needs a C compiler and the CUDA toolkit's headers")
    program = tmp_path_factory.mktemp("driver") / "driver_memory"
    library = installed_libraries()[0]
    command = [compiler, "-O1", "-o", program, SOURCE, f"-I{toolkit}/include", library, f"-Wl,-rpath,{library.parent}"]
    subprocess.run(command, check=True)
    return program


def mapped_by_driver(pid: int) -> int:
    """Bytes that a process has mapped of the driver's device file."""
    lines = [line.split() for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if "/dev/nvidiactl" in line]
    ranges = [line[0].split("-") for line in lines if line[1].startswith("rw")]
    return sum(int(end, 16) - int(start, 16) for start, end in ranges)


def test_memory_of_the_drivers_own_calls_is_known_to_the_byte_whether_the_cpu_maps_it_or_not(
    tracker: Tracker, driver_program: Path
) -> None:
    size = GIB + 2 * MIB
    with holding([driver_program, str(size)]) as child:
        bare = mapped_by_driver(child.pid)
        expected = {
            "created": (size, 0), "mapped": (size, size), "retained": (size, size), "unmapped": (size, 0),
            "released": (0, 0), "elsewhere": (0, 0),
        }  # fmt: skip
        for step, (held, mapped) in expected.items():
            child.go_on(step)
            account = tracker.registered().by_pid[child.pid]
            assert (step, account.driver_memory_bytes, account.unread_handles) == (step, held, False)
            assert mapped_by_driver(child.pid) - bare == mapped
            assert [(piece.kind, piece.bytes) for piece in account.pieces] == [("create", size)] * bool(held)
            found = registered_by(child.pid, True, None, tracker.registered())
            assert (found.driver_memory.value, found.driver_estimate) == (held, None)
            assert shown(look(tracker), child.pid).driver_memory_bytes == held


def test_of_a_host_pool_what_is_allocated_is_a_lower_bound_of_what_it_holds(
    tracker: Tracker, driver_program: Path
) -> None:
    size = GIB + 2 * MIB
    with holding([driver_program, str(size)]) as child:
        bare = mapped_by_driver(child.pid)
        for step in ("created", "mapped", "retained", "unmapped", "released", "elsewhere", "pool"):
            child.go_on(step)
        assert tracker.registered().by_pid[child.pid].host_pools == 1  # its calls are followed from now on
        for step, held in (("taken", size + 5000), ("given", 5000), ("end", 0)):
            child.go_on(step)
            found = registered_by(child.pid, True, None, tracker.registered())
            assert (step, found.driver_memory.value) == (step, held)
            assert found.driver_estimate is not None
            assert found.driver_estimate.kind == "at_least"
            assert held <= mapped_by_driver(child.pid) - bare <= held + 64 * MIB  # it takes 32 MiB at a time


def test_programs_are_not_slowed_down_on_calls_that_are_not_needed(tracker: Tracker) -> None:
    def frees() -> int:
        lines = (line.split() for line in Path("/sys/kernel/tracing/uprobe_profile").read_text().splitlines())
        return sum(int(hits) for _, event, hits, *_ in lines if event.startswith("cuMemFreeAsync"))

    for _ in range(3):  # the program with a pool has ended
        tracker.registered()
        time.sleep(0.2)
    before = frees()
    code = (
        "import cupy\n"
        "cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)\n"
        "for number in range(3000): cupy.cuda.alloc(4096)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert frees() == before


def test_a_forked_child_holds_nothing(tracker: Tracker, program: Path) -> None:
    with holding([program, "fork", str(SIZE)]) as child:
        child.go_on("held")
        found = tracker.registered().by_pid
        assert [pid for pid, one in found.items() if of_size(one, SIZE)] == [child.pid]
        child.go_on("released")


def test_pytorch_s_pinned_tensors_are_seen_with_what_the_allocator_rounded_them_to(tracker: Tracker) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed")
    size = 20 * MIB + 1
    with holding(pytorch(size, size)) as child:
        before = told(tracker, child.pid)
        child.go_on("held")
        after = told(tracker, child.pid)
        new = [piece for piece in after.pieces if piece not in before.pieces]
        assert len(new) == 2
        assert all(piece.bytes >= size and piece.address is not None for piece in new)
        child.go_on("released")
        left = told(tracker, child.pid).pieces
        assert not [piece for piece in new if piece in left]


def test_a_context_that_is_reset_takes_its_registrations_along_and_that_is_said(tracker: Tracker) -> None:
    with holding([sys.executable, "-c", RESET, str(SIZE)]) as child:
        ready = look(tracker)
        child.go_on("held")
        held = look(tracker)
        assert shown(held, child.pid).registered_bytes == SIZE
        assert "registered_bytes" not in shown(held, child.pid).estimates
        child.go_on("reset")
        after = look(tracker)
        assert pinned(after) - pinned(ready) < SIZE // 2  # the driver did release it
        assert shown(after, child.pid).registered_bytes in (0, SIZE)
        if shown(after, child.pid).registered_bytes:
            assert shown(after, child.pid).estimates["registered_bytes"].text.startswith("at most")


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
    assert {"cuMemCreate", "cuMemRelease", "cuMemMap", "cuMemUnmap", "cuMemPoolCreate"} <= set(libraries[0].calls)
