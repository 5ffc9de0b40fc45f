"""Lines for the kernel, and lines from it: those of an H200 host, those with a process's id, and hostile ones."""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinscope.probes.copy_calls import COPY_CALLS, parse_ring, pid_and_call
from pinscope.probes.elf import MOST_TABLE_BYTES, function_offsets
from pinscope.probes.uprobes import ARCHITECTURES, CALLS, Entered, Executed, Lost, Returned, definitions, parse_trace

H200 = (Path(__file__).parents[2] / "data" / "trace" / "h200.txt").read_text()
ENTRY = "python3-569     [015] DBZff    36.193949: cuMemHostRegister_v2: (0x7fc42d6e0750) a=0x7fc1e010 b=0x1000 c=0x1\n"
BACK = "python3-569     [015] DBZff    36.2: cuMemHostRegister_v2_r: (0x7fc42c848073 <- 0x7fc42d6e0750) ret=712\n"


def test_the_trace_of_an_h200_gives_every_call_with_its_arguments_and_result() -> None:
    events = list(parse_trace(H200))
    entered = [event for event in events if isinstance(event, Entered)]
    returned = [event for event in events if isinstance(event, Returned)]
    assert len(entered) == len(returned) == len(H200.splitlines()) // 2
    registered = next(event for event in entered if event.thread == 557 and event.call == "cuMemHostRegister_v2")
    assert registered.arguments == (0x7F2007FFF000, 96 * 2**20 + 4096, 1)
    assert registered.process is None
    back = next(event for event in returned if event.thread == 557 and event.call == "cuMemHostRegister_v2")
    assert back.seconds - registered.seconds == pytest.approx(0.009014)
    assert {event.result for event in returned} == {0}
    allocations = {event.thread: event for event in entered if event.call == "cuMemHostAlloc"}
    assert {event.arguments[2] for event in allocations.values()} == {0, 2, 4}
    # The pointer that each caller gave still stood in a register when the call came back.
    for event in returned:
        if event.call == "cuMemHostAlloc":
            assert event.words["r13"] == allocations[event.thread].arguments[0]


def test_with_the_process_noted_a_thread_is_told_from_it() -> None:
    text = ENTRY.replace("569     [", "7609    (   7565) [")
    (event,) = parse_trace(text)
    assert isinstance(event, Entered)
    assert (event.thread, event.process) == (7609, 7565)
    (event,) = parse_trace(text.replace("(   7565)", "(-------)"))
    assert isinstance(event, Entered)
    assert (event.thread, event.process) == (7609, None)


def test_a_thread_may_call_itself_anything() -> None:
    for name in ["a b", "x-1 [000]", "-1 (1) [0] a", "\n-7 [000] ", "(9) [001]", "é\udcff"]:
        events = list(parse_trace(ENTRY.replace("python3", name)))
        assert [(event.thread, event.call) for event in events if isinstance(event, Entered)] == [
            (569, "cuMemHostRegister_v2")
        ]


FORGED = "x-1234    (   1234) [000] d....   100.4: "


@pytest.mark.parametrize(
    "event", [f"{FORGED}cuMemHostRegister_v2: (0x7f00) a=0x1000 b=0x40000000 c=0x0",
              f"{FORGED}cuMemHostRegister_v2_r: (0x7f01 <- 0x7f00) ret=0"],
)  # fmt: skip
def test_a_program_s_path_that_looks_like_an_event_is_none(event: str) -> None:
    for name in (f"{'exec':>16}", f"{'<...>':>16}", "-1 (1) [0] 1.0:"):
        line = f"{name}-77      (     77) [000] .....   100.500000: sched_process_exec: filename=/tmp/{event}"
        assert list(parse_trace(line + "\n")) == []
        assert list(parse_trace(f"{line} pid=77 old_pid=77\n")) == [Executed(77, 100.5)]


def test_a_thread_whose_name_the_kernel_has_forgotten_is_known_by_its_number() -> None:
    (event,) = parse_trace(ENTRY.replace("python3", f"{'<...>':>16}"))
    assert isinstance(event, Entered)
    assert event.thread == 569


def test_a_program_in_a_process_s_place_and_lost_events_are_told() -> None:
    text = (
        "  true-4007    (   4007) [000] ..... 25122.638896: sched_process_exec: filename=/a pid=1 old_pid=1 pid=4007 "
        "old_pid=4011\n"
        "CPU:2 [LOST 123 EVENTS]\nCPU:11 [LOST EVENTS]\n"
    )
    assert list(parse_trace(text)) == [Executed(4007, 25122.638896), Lost(123), Lost(1)]


def test_a_failed_call_gives_its_result() -> None:
    assert list(parse_trace(BACK)) == [Returned(569, None, 36.2, "cuMemHostRegister_v2", 712, {})]
    assert list(parse_trace(BACK.replace("712", "-1"))) == [Returned(569, None, 36.2, "cuMemHostRegister_v2", -1, {})]


def test_what_is_no_event_is_passed_over() -> None:
    for text in [
        "",
        "# tracer: nop",
        ENTRY.replace("cuMemHostRegister_v2", "cuMemAlloc"),
        ENTRY.replace("cuMemHostRegister_v2", "cuMemHostRegister_v2_r"),
        BACK.replace("cuMemHostRegister_v2_r", "cuMemHostRegister_v2"),
        ENTRY.replace(" c=0x1", ""),
        ENTRY.replace("b=0x1000", "b=(fault)"),
        BACK.replace("ret=712", ""),
        ENTRY[:60],
    ]:
        assert list(parse_trace(text)) == []


@given(st.text(), st.integers(0, len(H200)))
def test_no_text_breaks_the_parser(noise: str, place: int) -> None:
    for event in parse_trace(H200[:place] + noise + H200[place:]):
        assert isinstance(event, Entered | Returned | Executed | Lost)


def test_what_a_pointer_led_to_is_found_by_register_and_on_the_stack() -> None:
    words = {"sp": 0x1000, "bx": 0x7000, "at_bx": 1, "r12": 0x9000, "s0": 10, "s2": 12}
    event = Returned(1, 1, 0.0, "cuMemHostAlloc", 0, words)
    assert event.word_at(0x7000) == 1
    assert [event.word_at(0x1000 + offset) for offset in (0, 16)] == [10, 12]
    assert [event.word_at(pointer) for pointer in (0x9000, 0x1004, 0x1008, 0xFF8, 0)] == [None] * 5
    assert Returned(1, 1, 0.0, "cuMemHostAlloc", 0, {}).word_at(0x7000) is None


@pytest.mark.parametrize(("machine", "first"), [("x86_64", "%di"), ("aarch64", "%x0")])
def test_each_call_has_a_probe_on_its_entry_and_one_on_its_return(machine: str, first: str) -> None:
    offsets = {call: 0x1000 + number for number, call in enumerate(CALLS)}
    lines = list(definitions("ours", "/proc/1/fd/3", offsets, ARCHITECTURES[machine]))
    assert len(lines) == 2 * len(CALLS)
    assert f"p:ours/cuMemHostRegister_v2 /proc/1/fd/3:0x1004 a={first}:x64" in "\n".join(lines)
    assert "r:ours/cuMemHostRegister_v2_r /proc/1/fd/3:0x1004 ret=$retval:s32" in lines
    allocation = next(line for line in lines if line.startswith("r:ours/cuMemHostAlloc_r "))
    assert "sp=%sp:x64" in allocation
    assert "s15=$stack15:x64" in allocation
    # The kernel takes at most 128 arguments (MAX_TRACE_ARGS) and 63 letters for a name.
    assert allocation.count("=") < 128
    assert max(len(call) for call in CALLS) + len("_r") < 64


MACHINE = os.uname().machine
LIBRARY = Path(
    next(line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if re.search(r"/libc[.-]", line))
)
NAMES = ("malloc", "free", "getpid", "mlock", "nothing_of_that_name", "environ")


def offsets(path: Path, machine: str = MACHINE) -> dict[str, int] | str | None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        answer = function_offsets(descriptor, NAMES, machine)
    finally:
        os.close(descriptor)
    return answer.value if answer.reason is None else answer.reason


def test_offsets_are_those_at_which_the_running_library_has_its_functions() -> None:

    found = offsets(LIBRARY)
    assert isinstance(found, dict)
    assert set(found) == {"malloc", "free", "getpid", "mlock"}  # environ is no function
    libc = ctypes.CDLL(None)
    mappings = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if str(LIBRARY) in line]
    for name, offset in found.items():
        address = ctypes.cast(getattr(libc, name), ctypes.c_void_p).value
        assert address is not None
        (at,) = [
            address - int(start, 16) + int(fields[2], 16)
            for fields in mappings
            for start, end in [fields[0].split("-")]
            if int(start, 16) <= address < int(end, 16)
        ]
        assert offset == at


@pytest.mark.parametrize(("place", "value"), [(4, 1), (5, 2), (18, 3)])
def test_a_32_bit_library_is_told_from_a_damaged_one(tmp_path: Path, place: int, value: int) -> None:
    content = bytearray(LIBRARY.read_bytes()[:4096])
    content[place] = value
    path = tmp_path / "library"
    path.write_bytes(content)
    assert "made for another processor" in str(offsets(path))
    path.write_bytes(content[:19])
    assert "not a shared library" in str(offsets(path))


def test_a_folder_and_a_table_that_is_too_long_are_refused(tmp_path: Path) -> None:
    assert "cannot be read" in str(offsets(tmp_path))
    content = bytearray(LIBRARY.read_bytes()[:4096])
    content[40:48] = (64).to_bytes(8, "little")  # sections begin right after the header
    content[64:128] = (bytes(4) + (11).to_bytes(4, "little") + bytes(24) + (MOST_TABLE_BYTES + 24).to_bytes(8, "little")
                       + bytes(16) + (24).to_bytes(8, "little"))  # fmt: skip
    path = tmp_path / "long"
    path.write_bytes(content)
    assert "not a shared library" in str(offsets(path))


@given(cut=st.integers(0, 2000), place=st.integers(0, 2000), noise=st.binary(max_size=64))
def test_no_file_breaks_the_reader(
    tmp_path_factory: pytest.TempPathFactory, cut: int, place: int, noise: bytes
) -> None:
    content = LIBRARY.read_bytes()
    path = tmp_path_factory.mktemp("elf") / "library"
    for spoilt in (content[:cut], content[:place] + noise + content[place + len(noise) :]):
        path.write_bytes(spoilt)
        assert isinstance(offsets(path), dict | str)


# A ring of copy calls, as Linux 6.18 wrote it for the stand-in of the driver's library.
FIRST = "2800000003000000e873ba4019310000246b00000000000000000000007f0000000000aa00550000b80b000000000000"
SECOND = "28000000030000006e0edc4019310000246b00000b000000000000aa0055000000000000007f00007011010000000000"
GPU, HOST = 0x7F0000000000, 0x5500AA000000


def test_a_recorded_ring_gives_each_call_with_its_time_process_and_arguments() -> None:
    copies = parse_ring(bytes.fromhex(FIRST + SECOND))
    assert [(*pid_and_call(word), *arguments) for word, *arguments in copies.calls] == [
        (27428, "cuMemcpyHtoD_v2", GPU, HOST, 3000),
        (27428, "cuMemcpyDtoHAsync_v2_ptsz", HOST, GPU, 70000),
    ]
    assert copies.nanoseconds == [53984529904616, 53984532106862]


def test_a_call_that_is_being_written_and_those_behind_it_wait() -> None:
    busy = "28000080" + FIRST[8:]
    assert len(parse_ring(bytes.fromhex(SECOND + busy + SECOND)).calls) == 1
    assert parse_ring(b"").calls == []


def test_each_call_goes_one_way_and_pins_nothing() -> None:
    ways = {way: {call for call, goes in COPY_CALLS.items() if goes == way} for way in COPY_CALLS.values()}
    assert {"cuMemcpyHtoD_v2", "cuMemcpyHtoDAsync_v2", "cuMemcpyHtoDAsync_v2_ptsz"} <= ways["h2d"]
    assert {"cuMemcpyDtoH_v2", "cuMemcpyDtoH_v2_ptds"} <= ways["d2h"]
    assert {"cuMemcpy", "cuMemcpy_ptds", "cuMemcpyAsync", "cuMemcpyAsync_ptsz"} <= ways["by address"]
    assert {"cuMemcpy2D_v2", "cuMemcpyBatchAsync", "cuGraphLaunch_ptsz"} <= ways["uncounted"]
    assert not COPY_CALLS.keys() & CALLS.keys()
