"""Processes are told apart, also when one has ended or its pid is used again."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinscope.errors import NotPossible
from pinscope.probes.proc import Answer, Proc
from pinscope.probes.process import (
    MOST_COMMAND_CHARACTERS,
    LiveCallers,
    ProcessStatus,
    boot_time,
    command_line,
    container,
    covered_bytes,
    current_process,
    group_of,
    is_alive,
    parse_maps,
    process_of,
    start_ticks,
    start_time,
)
from tests.data.like_cuda import map_like_cuda, room_of, unmap
from tests.data.synthetic_host import BOOTED, SyntheticHost, context, maps_text, named, ordinary, zero
from tests.data.waiting import until

if TYPE_CHECKING:
    from tests.unit.probes.conftest import Plant

WAITS = "import sys; print('ready', flush=True); sys.stdin.read()"


@contextmanager
def child(program: str = WAITS) -> Iterator[subprocess.Popen[str]]:
    """A Python child that says ready and then waits until its input closes."""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process


def test_a_child_is_alive_until_it_ends() -> None:
    with child() as started:
        process = process_of(started.pid)
        assert process is not None
        assert is_alive(process)
        assert process.started >= current_process().started
    assert not is_alive(process)
    assert process_of(started.pid) is None


def test_a_zombie_is_not_alive() -> None:
    with child() as started:
        process = process_of(started.pid)
        assert process is not None
        started.kill()
        until(lambda: ") Z" in Path(f"/proc/{started.pid}/stat").read_text())
        assert not is_alive(process)
        assert process_of(started.pid) is None


def test_a_later_process_with_the_same_pid_is_another_one() -> None:
    process = current_process()
    assert not is_alive(process.model_copy(update={"started": process.started - 1}))


def test_a_process_of_another_boot_is_not_alive() -> None:
    assert not is_alive(current_process().model_copy(update={"boot_id": "another"}))


@pytest.mark.parametrize("pid", [0, -1, 2**31])
def test_an_impossible_pid_is_no_process(pid: int) -> None:
    assert process_of(pid) is None


def test_without_proc_this_process_cannot_be_named(plant: Plant) -> None:
    with pytest.raises(NotPossible, match="PinScope needs Linux"):
        current_process(plant({}))


@given(content=st.binary(max_size=300))
def test_no_content_of_the_file_makes_it_raise(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp() / "stat"
    (folder / "proc" / "7").mkdir(parents=True, exist_ok=True)
    (folder / "proc" / "7" / "stat").write_bytes(content)
    assert process_of(7, Proc.below(folder)) is None


def test_fields_are_counted_from_the_end_of_the_name(plant: Plant) -> None:
    fields = ["S", *(str(number) for number in range(4, 22)), "4711", "23"]
    proc = plant({
        "/proc/7/stat": f"7 (x) {' '.join(fields)}\n",
        "/proc/sys/kernel/random/boot_id": "boot\n",
    })  # fmt: skip
    process = process_of(7, proc)
    assert process is not None
    assert (process.started, process.boot_id) == (4711.0, "boot")


ID = "0123456789ab" + "c" * 52


def test_the_container_is_named_by_its_control_group() -> None:
    for group, expected in [
        (f"/system.slice/docker-{ID}.scope", "docker 0123456789ab"),
        (f"/docker/{ID}", "docker 0123456789ab"),
        (f"/machine.slice/libpod-{ID}.scope/container", "podman 0123456789ab"),
        (f"/kubepods.slice/kubepods-pod1.slice/cri-containerd-{ID}.scope", "containerd 0123456789ab"),
        (f"/kubepods.slice/kubepods-burstable.slice/crio-{ID}.scope", "cri-o 0123456789ab"),
        (f"/kubepods/burstable/pod9a/{ID}", "kubernetes 0123456789ab"),
        ("/lxc.payload.builder/init.scope", "lxc builder"),
        ("/lxc/builder", "lxc builder"),
        ("/machine.slice/systemd-nspawn@web.service/payload", "nspawn web"),
        ("/user.slice/user-1000.slice/session-2.scope", None),
        ("/", None),
        ("/../../docker", None),
    ]:
        assert container(group) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0::/a/b\n", "/a/b"),
        ("9:name=systemd:/\n4:memory:/process\n0::/\n", "/process"),
        ("4:cpu,memory:/m\n0::/unified\n", "/unified"),
        ("3:cpu:/only\n", None),
        ("nonsense", None),
        ("0::/\n", "/"),
    ],
)
def test_the_group_is_that_which_accounts_memory(tmp_path: Path, text: str, expected: str | None) -> None:
    host = SyntheticHost(tmp_path)
    pid = host.process(group=text)
    assert group_of(pid, host.proc).value == expected


def test_a_command_line_is_words_without_secrets_and_not_endless(tmp_path: Path) -> None:
    host = SyntheticHost(tmp_path)
    pid = host.process("python")
    assert command_line(pid, host.proc).value == "python train.py"
    host.write(f"proc/{pid}/cmdline", "python\0train.py\0--hf-token\0abc\0--api-key=abc\0--tokenizer\0t5\0")
    assert command_line(pid, host.proc).value == "python train.py --hf-token *** --api-key=*** --tokenizer t5"
    host.write(f"proc/{pid}/cmdline", "x\0" * 10_000)
    assert len(command_line(pid, host.proc).value or "") == MOST_COMMAND_CHARACTERS
    host.write(f"proc/{pid}/cmdline", "")
    assert "is empty" in (command_line(pid, host.proc).reason or "")


def test_a_start_needs_the_boot_and_a_process(tmp_path: Path) -> None:
    host = SyntheticHost(tmp_path)
    pid = host.process(started=250)
    booted = boot_time(host.proc)
    assert booted.value == BOOTED
    begun = datetime.fromtimestamp(BOOTED + 250 / os.sysconf("SC_CLK_TCK"), UTC)
    ticks = start_ticks(pid, host.proc)
    assert start_time(pid, ticks, booted).value == begun
    assert start_time(pid, ticks, Answer.missing("no boot")).reason == "no boot"
    assert "is not there" in (start_time(1, start_ticks(1, Proc.below(tmp_path / "x")), booted).reason or "")
    huge = host.process(started=10**19)
    assert start_time(huge, start_ticks(huge, host.proc), booted).reason == f"/proc/{huge}/stat gives no time"


NOBODY = 2**22 + 1


def test_a_process_is_known_again_by_its_start_and_whatever_it_calls_itself() -> None:
    callers = LiveCallers()
    one = callers.of(os.getpid())
    assert one is not None
    assert one == callers.of(os.getpid())
    assert 0 < one.started <= time.clock_gettime(time.CLOCK_BOOTTIME)
    assert one == type(one)(one.pid, one.started, "another name")
    assert one != type(one)(one.pid, one.started + 1, one.name)
    assert callers.of(NOBODY) is None


def test_a_thread_leads_to_its_process() -> None:
    callers = LiveCallers()
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        assert thread.native_id is not None
        assert thread.native_id != os.getpid()
        assert callers.owner(thread.native_id) == os.getpid()
    finally:
        done.set()
        thread.join()
    assert callers.owner(NOBODY) is None


H200_STATUS = Path(__file__).parents[2] / "data" / "proc" / "h200-idle" / "proc" / "self" / "status"
MIB = 2**20


def status_of(text: str) -> ProcessStatus:
    return ProcessStatus("/proc/7/status", Answer(text))


def test_the_status_of_a_real_process_is_read() -> None:
    status = status_of(H200_STATUS.read_text())
    assert status.has_memory
    assert status.text("Name").value == "python"
    assert (status.number("PPid").value, status.number("Uid").value) == (396, 0)
    assert (status.amount("VmLck").value, status.amount("VmPin").value, status.amount("RssShmem").value) == (0, 0, 0)
    assert (
        status.amount("VmRSS").value == 69120 * 1024 == status.amount("RssAnon").value + status.amount("RssFile").value
    )  # type: ignore[operator]
    assert status.amount("HugetlbPages").value == 0
    assert "309112" in status.size
    assert "243576" in status.size


def test_the_quick_questions_of_a_snapshot_agree_with_the_amounts() -> None:
    text = H200_STATUS.read_text()
    status = status_of(text)
    assert not status.has_locked
    assert not status.may_share
    for key in ("VmLck", "VmPin", "RssShmem"):
        changed = text.replace(f"{key}:\t       0 kB", f"{key}:\t12345678 kB")
        assert status_of(changed).has_locked is (key != "RssShmem")
        assert status_of(changed).may_share is (key == "RssShmem")


def test_a_process_name_cannot_fake_a_line() -> None:
    # The kernel writes a line end in a name as backslash and n.
    status = status_of("Name:\ta\\nVmLck:\t  99 kB\nVmSize:\t  10 kB\nVmLck:\t   4 kB\n")
    assert status.amount("VmLck").value == 4096
    assert status.text("Name").value == "a\\nVmLck:\t  99 kB"


def test_an_amount_that_makes_no_sense_is_none() -> None:
    for line in ["VmLck:", "VmLck: kB", "VmLck: -4 kB", "VmLck: 4 MB", "VmLck: ٤ kB", "VmLckX: 4 kB"]:
        assert status_of(f"Name:\tx\n{line}\n").amount("VmLck").value is None


def test_cuda_host_memory_is_found_among_other_mappings() -> None:
    text = maps_text(
        [
            named(2 * MIB, "/dev/nvidiactl"),
            zero(2 * MIB, inode=77),
            named(4096, "", "---p", 0),
            zero(512 * MIB, inode=78),
            named(64 * MIB, "/dev/shm/torch_1 (deleted)"),
            named(MIB, "/tmp/my /dev/zero (deleted)"),
            named(MIB, "/dev/zero", "rw-p"),
            named(8 * MIB, "/dev/nvidia-uvm"),
            named(8 * MIB, "/dev/nvidia-uvm-tools"),
        ]
    )
    maps = parse_maps(text)
    sizes = {key: covered_bytes(extents) for key, extents in maps.shared_zero.items()}
    assert sizes == {("00:01", 77): 2 * MIB, ("00:01", 78): 512 * MIB}
    assert maps.managed_bytes == 8 * MIB


def test_a_private_copy_of_such_memory_is_not_shared() -> None:
    assert parse_maps(maps_text([zero(MIB, inode=5, permissions="rw-p")])).shared_zero == {}


def test_one_piece_in_several_mappings_counts_once() -> None:
    # mprotect splits a mapping; and the same memory may be mapped a second time.
    lines = "".join(
        f"{0x7F0000000000 + place * MIB:012x}-{0x7F0000000000 + (place + 1) * MIB:012x} {access} {offset * MIB:08x} "
        "00:01 9      /dev/zero (deleted)\n"
        for place, offset, access in [(0, 0, "rw-s"), (1, 1, "r--s"), (2, 2, "rw-s"), (3, 3, "rw-s"), (9, 1, "rw-s")]
    )
    (extents,) = parse_maps(lines).shared_zero.values()
    assert len(extents) == 5
    assert covered_bytes(extents) == 4 * MIB


def test_ordinary_shared_memory_is_told_by_where_it_lies() -> None:
    line = "{:012x}-{:012x} rw-s 00000000 00:01 9      /dev/zero (deleted)\n"
    rest = "{:012x}-{:012x} {} 00000000 00:00 0 \n"
    base, size = 0x7F0000000000, 3 * MIB + 4096
    reserved = line.format(base, base + size) + rest.format(base + size, base + 32 * MIB, "---p")
    assert list(parse_maps(reserved).sizes.values()) == [size]
    for text in (
        line.format(base + 4096, base + 4 * MIB),  # begins anywhere
        line.format(base, base + size),  # nothing is reserved behind it
        line.format(base, base + size) + rest.format(base + size, base + 32 * MIB, "rw-p"),
        line.format(base, base + size) + rest.format(base + size, base + size + 4096, "---p"),  # a guard page
    ):
        assert parse_maps(text).sizes == {}
    assert list(parse_maps(line.format(base, base + 4 * MIB)).sizes.values()) == [4 * MIB]  # ends where the range does


def test_a_context_shows_its_gpu_its_driver_memory_and_the_piece_that_lies_anywhere() -> None:
    maps = parse_maps(maps_text([*context(gpu=3), ordinary(2 * MIB, 7), named(65536, "/dev/nvidia1", "-w-s")]))
    assert maps.gpus == {3}
    assert sum(maps.driver_sizes) == 56 * MIB + 8 * MIB + 6_205_440 + 20 * 4096
    assert len(maps.sizes) == 4  # one more would be a second context's
    assert parse_maps(maps_text([ordinary(2 * MIB, 7)])).sizes == {}


def test_this_kernel_names_shared_anonymous_memory_so() -> None:
    before = parse_maps(Path("/proc/self/maps").read_text()).shared_zero
    place = map_like_cuda(3 * MIB)
    after = parse_maps(Path("/proc/self/maps").read_text()).shared_zero
    unmap(place, room_of(3 * MIB))
    with mmap.mmap(-1, 3 * MIB + 4096):
        assert parse_maps(Path("/proc/self/maps").read_text()).shared_zero.keys() == before.keys()
    new = {key: extents for key, extents in after.items() if key not in before}
    assert [covered_bytes(extents) for extents in new.values()] == [3 * MIB]
    assert os.sysconf("SC_PAGE_SIZE") <= 3 * MIB


EXTENTS = st.lists(st.tuples(st.integers(0, 300), st.integers(1, 60)).map(lambda pair: (pair[0], pair[0] + pair[1])))


@given(extents=EXTENTS)
def test_covered_bytes_are_those_in_at_least_one_extent(extents: list[tuple[int, int]]) -> None:
    assert covered_bytes(extents) == len({byte for start, end in extents for byte in range(start, end)})


MALFORMED = st.one_of(
    st.text(max_size=200),
    st.lists(
        st.sampled_from(
            ["7f00-7f10 rw-s 0 00:01 5 /dev/zero (deleted)", "/dev/zero (deleted)", " /dev/nvidia-uvm", "\n", "\0",
             "7f10-7f00 rw-s 00000000 00:01 5   /dev/zero (deleted)\n", "zz-7f rw-s 0 00:01 5 /dev/nvidia-uvm\n",
             "VmLck:\t", "VmSize:", " kB\n", "9" * 30, "7f00-7f10 rw-s 0 00:01 " + "9" * 30 + " /dev/zero (deleted)"]
        ),
        max_size=12,
    ).map("".join),
)  # fmt: skip


@given(text=MALFORMED)
def test_no_text_makes_the_parsers_raise(text: str) -> None:
    maps = parse_maps(text)
    assert maps.managed_bytes >= 0
    assert all(end > start for extents in maps.shared_zero.values() for start, end in extents)
    status = status_of(text)
    for key in ("Name", "VmLck", "PPid"):
        assert (status.amount(key).value or 0) >= 0
        assert (status.number(key).value or 0) >= 0
    assert isinstance(status.size, str)
    assert {type(status.has_memory), type(status.has_locked), type(status.may_share)} == {bool}
