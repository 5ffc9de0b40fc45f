"""The recorder inside a program, under a stand-in for CUPTI: what it keeps, and that the program does not notice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pinscope.runner.traced_program import make_spool
from pinscope.tracing import descendants
from pinscope.tracing.descendants import NOT_STARTED
from pinscope.tracing.mapped_file import CUT
from pinscope.tracing.spool import Scope, Spool
from pinscope.tracing.spool_folder import SpoolFolder
from tests.data.fake_cupti import FIRST_LINE, PRELUDE, SMALL_TORCH, built, variables

SETUP = Path(__file__).parents[3] / "pinscope" / "tracing" / "recorder_setup.py"


ALL = Scope(children=False)


@dataclass(frozen=True)
class Recorded:
    exit_code: int
    stdout: str
    stderr: str
    spool: Spool
    counts: Counter[str]
    """Records by kind."""


@cache
def asked_for_setup(library: Path, **changes: str) -> dict[str, Any]:
    """What the recorder is told of this CUPTI: the same for all programs."""
    environment = variables(library, **changes)
    answer = subprocess.run([sys.executable, SETUP, "1"], env=environment, capture_output=True, check=True)
    setup: dict[str, Any] = json.loads(answer.stdout)
    return setup


def record(library: Path, folder: Path, program: str, scope: Scope = ALL, **changes: str) -> Recorded:
    """Run a program with the recorder in it."""
    environment, setup = variables(library, **changes), asked_for_setup(library, **changes)
    spool = folder / "spool"
    spool.mkdir(0o700)
    make_spool(spool, setup, scope, time.time_ns())
    (folder / "program.py").write_text(PRELUDE + program)
    handed_over = descendants.variables(SpoolFolder.of(spool.stat(), str(spool)).handover, setup["library"])
    path = f"{handed_over['PYTHONPATH'].partition(os.pathsep)[0]}{os.pathsep}{environment['PYTHONPATH']}"
    done = subprocess.run(
        [sys.executable, folder / "program.py"], env={**environment, **handed_over, "PYTHONPATH": path},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    read, counts = Spool(spool), Counter[str]()
    for buffer in read.take(ended=True):
        counts.update({kind: len(records) for kind, records in buffer.items()})
    return Recorded(done.returncode, done.stdout, done.stderr, read, counts)


def until_switched_off(folder: Path) -> str:
    """Code of a program: calls ``step`` until the recording was switched off, and a hundred times more."""
    return f"""
def is_on():
    try: return "false" not in open({str(folder / "spool" / "switched")!r}).read()
    except FileNotFoundError: return True
deadline = time.time() + 60
while is_on() and time.time() < deadline: step()
for _ in range(100): step()
"""


COPIES = "for _ in range(100): copy(1 << 20, PAGEABLE, DEVICE)\n"


@pytest.mark.parametrize(
    ("end", "exit_code"),
    [("", 0), ("os._exit(4)", 4), ("os.kill(os.getpid(), 9)", -9), ("ctypes.string_at(0)", -11),
     ("os.execv('/bin/true', ['true'])", 0)],
)  # fmt: skip
def test_whatever_ends_the_program_what_was_recorded_is_kept(
    end: str, exit_code: int, library: Path, tmp_path: Path
) -> None:
    seen = record(library, tmp_path, COPIES + end)
    assert seen.exit_code == exit_code
    assert seen.counts == {"MEMCPY": 100}
    assert len(seen.spool.calls()) == 100


@pytest.mark.parametrize("options", [(), ("-DCUPTI_13_1",), ("-DCUPTI_12_4",)])
def test_records_of_every_version_of_cupti_are_read(options: tuple[str, ...], tmp_path: Path) -> None:
    program = "for _ in range(100): copy(64, PAGEABLE, DEVICE); kernel(10); pinned(1, 64, 64)"
    seen = record(built(tmp_path, *options), tmp_path, program)
    assert seen.counts == {"MEMCPY": 100, "CONCURRENT_KERNEL": 100, "MEMORY2": 100}
    assert seen.spool.unreadable_bytes == 0


def test_more_records_than_a_buffer_holds(library: Path, tmp_path: Path) -> None:
    seen = record(library, tmp_path, "for _ in range(150_000): copy(64, PAGEABLE, DEVICE)\nos._exit(0)")
    assert seen.counts == {"MEMCPY": 150_000}
    assert len(seen.spool.calls()) == 150_000
    assert seen.spool.unreadable_bytes == 0


def test_a_program_s_memory_does_not_grow_with_its_copies(library: Path, tmp_path: Path) -> None:
    """Memory of its own: pages of mapped files are the kernel's to write back and to take."""
    program = """
def own():
    lines = open("/proc/self/smaps_rollup").read().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("Anonymous", "Swap:"))) >> 10
def mapped(): return sum("spool" in line for line in open("/proc/self/maps"))
copies(140_000)
before = own()
copies(360_000)
print(own() - before, mapped())
"""
    seen = record(library, tmp_path, program)
    assert seen.counts["MEMCPY"] == 500_000
    grown, pieces = map(int, seen.stdout.split())
    assert grown <= 1  # MiB
    assert pieces <= 3  # an activity buffer, and the pieces of the calls' log that are not full


def test_each_call_has_the_stack_it_came_from_and_lasts_from_its_beginning_to_its_return(
    library: Path, tmp_path: Path
) -> None:
    program = (
        "def up():\n    copy(1, PAGEABLE, DEVICE)\ndef down():\n    copy(1, DEVICE, PAGEABLE)\nup(); down(); up()\n"
        "begun = time.time_ns(); wait(20_000_000); print(time.time_ns() - begun)"
    )
    seen = record(library, tmp_path, program)
    *copies, waits = seen.spool.calls()
    stacks = [seen.spool.stacks()[call["stack"] - 1] for call in copies]
    assert [stack[0][1:] for stack in stacks] == [
        (FIRST_LINE + 1, "up"), (FIRST_LINE + 3, "down"), (FIRST_LINE + 1, "up"),
    ]  # fmt: skip
    assert all(stack[1][1:] == (FIRST_LINE + 4, "<module>") for stack in stacks)
    assert 20_000_000 <= waits["end"] - waits["start"] < int(seen.stdout)


MOST_INSTRUCTIONS = {
    "there.copy_(here)": 400,
    "there.to('cpu', non_blocking=True)": 490,
    "there.cpu()": 330,
    "copy(64, 1, 3)": 220,
    "there.cuda()": 65,
}


def test_a_small_copy_takes_few_instructions_of_python(library: Path, tmp_path: Path) -> None:
    """Of ours, with its line; the median, as now and then a copy is the one after which more is to be done."""
    program = """
import statistics, torch
here, there, taken = torch.Tensor(), torch.there, 0
def count(frame, event, argument):
    global taken
    frame.f_trace_opcodes, frame.f_trace_lines = True, False
    taken += event == "opcode" and "/pinscope/tracing/" in frame.f_code.co_filename
    return count
"""
    for call in MOST_INSTRUCTIONS:
        program += f"""
def work():
    for _ in range(110): before.append(taken); {call}
before = []
sys.settrace(count); work(); sys.settrace(None)
print(int(statistics.median(map(int.__sub__, before[1:], before))))
"""
    (tmp_path / "torch.py").write_text(SMALL_TORCH)
    seen = record(library, tmp_path, program)
    assert (seen.stderr, seen.spool.said("fault")) == ("", None)
    for (call, most), taken in zip(MOST_INSTRUCTIONS.items(), seen.stdout.split(), strict=True):
        assert most / 2 < int(taken) <= most, call


def test_without_stacks_copies_and_calls_are_recorded_all_the_same(library: Path, tmp_path: Path) -> None:
    seen = record(library, tmp_path, COPIES, Scope(stacks=False, children=False))
    assert seen.counts["MEMCPY"] == 100
    assert seen.spool.calls()["stack"].tolist() == [0] * 100
    assert seen.spool.stacks() == []


def failed(seen: Recorded) -> list[tuple[str, int, int, int, int]]:
    """Function, error, line, whether it is that of the main thread instead, and address of each failed call."""
    names, stacks = seen.spool.failed_functions(), seen.spool.stacks()
    return [
        (names[call["function"]], call["error"], stacks[call["stack"] - 1][0][1], call["elsewhere"], call["address"])
        for call in seen.spool.failed()
    ]


@pytest.mark.parametrize("end", ["", "os.kill(os.getpid(), 9)"], ids=["in order", "killed"])
def test_a_call_that_returns_an_error_is_kept_with_its_line_and_one_that_does_not_is_not(
    end: str, library: Path, tmp_path: Path
) -> None:
    program = f"""
call(152, b"cudaHostRegister_v4000", 500, b"cuMemHostRegister_v2", 712, 1 << 40, 4096)
call(152, b"cudaHostRegister_v4000", 500, b"cuMemHostRegister_v2", 0, 1 << 41, 4096)
call(138, b"cudaEventQuery_v3020", 0, b"", 700, 0, 0)
call(165, b"cudaDeviceSynchronize_v3020", 0, b"", 600, 0, 0)
call(0, b"", 277, b"cuMemcpyHtoDAsync_v2", 1, 0, 0)
{end}"""
    seen = record(library, tmp_path, program)
    assert failed(seen) == [
        ("cuMemHostRegister_v2", 712, FIRST_LINE + 1, 0, 1 << 40),
        ("cudaHostRegister_v4000", 712, FIRST_LINE + 1, 0, 1 << 40),
        ("cuMemcpyHtoDAsync_v2", 1, FIRST_LINE + 5, 0, 0),
    ]
    first, second, _ = seen.spool.failed()["correlation_id"]
    assert first == second
    assert len(seen.spool.calls()) == 3  # followed calls are noted as well


def test_calls_that_fail_alike_again_and_again_are_kept_in_groups_and_none_is_lost(
    library: Path, tmp_path: Path
) -> None:
    program = """
for _ in range(1000): call(152, b"cudaHostRegister_v4000", 500, b"cuMemHostRegister_v2", 712, 1 << 40, 4096)
"""
    kept = record(library, tmp_path, program).spool.failed()
    assert len(kept) == 2 * (64 + 1000 // 64)
    (driver, runtime) = (kept[kept["function"] >> 16 == domain] for domain in (1, 2))
    assert driver["count"].sum() == runtime["count"].sum() == 1000
    assert driver["correlation_id"].tolist() == runtime["correlation_id"].tolist()


def test_a_call_of_a_thread_without_python_has_the_line_where_the_main_thread_stands(
    library: Path, tmp_path: Path
) -> None:
    program = """
stop = threading.Event()
others = [threading.Thread(target=stop.wait) for _ in range(3)]
for other in others: other.start()
cuda.fake_launch_elsewhere(9)
stop.set()
"""
    seen = record(library, tmp_path, program)
    assert failed(seen) == [
        ("cuLaunchKernel", 9, FIRST_LINE + 4, 1, 0), ("cudaLaunchKernel_v7000", 9, FIRST_LINE + 4, 1, 0),
    ]  # fmt: skip


def test_errors_outside_of_what_is_recorded_are_not_kept(library: Path, tmp_path: Path) -> None:
    program = """
import pinscope
register(712, 1, 4096)
with pinscope.trace("part"): register(712, 2, 4096)
register(712, 3, 4096)
"""
    seen = record(library, tmp_path, program, Scope(only_parts=True, children=False))
    assert [address for *_, address in failed(seen)] == [2]


def test_the_errors_of_a_forked_child_are_its_own(library: Path, tmp_path: Path) -> None:
    program = """
register(712, 1, 4096)
child = os.fork()
if not child: register(3, 2, 4096); os._exit(0)
os.waitpid(child, 0)
register(712, 3, 4096)
"""
    assert [address for *_, address in failed(record(library, tmp_path, program))] == [1, 3]


def test_what_a_forked_child_does_is_its_own_though_it_fills_a_buffer(library: Path, tmp_path: Path) -> None:
    program = f"""
{COPIES}
go_on, goes_on = os.pipe()
child = os.fork()
if not child: os.read(go_on, 1); push(b"of the child"); copies(20_000); sys.exit(8)
push(b"of the parent"); copy(1, PAGEABLE, DEVICE); pop()
os.write(goes_on, b"1")
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
{COPIES}"""
    seen = record(library, tmp_path, program)
    assert (seen.stdout, seen.spool.said("fault"), seen.counts["MEMCPY"]) == ("8\n", None, 201)
    assert (seen.spool.ranges(), seen.spool.calls()["range"].sum()) == (["of the parent"], 1)


def test_a_signal_that_all_threads_of_the_program_block_waits_for_it(library: Path, tmp_path: Path) -> None:
    program = """
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
os.kill(os.getpid(), signal.SIGTERM)
print(signal.sigtimedwait({signal.SIGTERM}, 2).si_signo)
"""
    seen = record(library, tmp_path, program)
    assert (seen.exit_code, seen.stdout) == (0, "15\n")


def test_a_program_may_close_all_files_and_open_others(library: Path, tmp_path: Path) -> None:
    program = "os.closerange(3, 200)\nmine = open('/dev/null', 'w')\n" + COPIES
    seen = record(library, tmp_path, program + "print(len(os.listdir('/proc/self/fd')))")
    assert seen.counts["MEMCPY"] == 100
    assert seen.stdout == "5\n"  # three standard streams, its own file, and the folder that is listed


def test_what_a_handler_of_a_signal_raises_reaches_the_program(library: Path, tmp_path: Path) -> None:
    program = """
class Late(Exception): pass
def handler(*_): raise Late("mine")
signal.signal(signal.SIGALRM, handler)
caught = 0
for _ in range(50):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.005)
        deadline = time.time() + 5
        while time.time() < deadline: copy(64, PAGEABLE, DEVICE)
    except Late as error:
        assert str(error) == "mine"
        caught += 1
print(caught)
"""
    seen = record(library, tmp_path, program)
    assert (seen.stdout, seen.stderr, seen.spool.said("fault")) == ("50\n", "", None)


HELD = "copy(9 * 300_000_000, PAGEABLE, DEVICE)"
CTRL_C = "threading.Timer(0.1, os.kill, (os.getpid(), 2)).start()\n"
ALARM = """
class Timeout(Exception): pass
def expire(): raise Timeout("mine")
signal.signal(signal.SIGALRM, lambda *_: expire())
signal.setitimer(signal.ITIMER_REAL, 0.1)
"""


@pytest.mark.parametrize(
    "program",
    [
        f"{CTRL_C}try: {HELD}\nexcept KeyboardInterrupt: print('saved')\nsum(range(100_000)); time.sleep(0.1)",
        f"{CTRL_C}list(map(lambda size: copy(size, PAGEABLE, DEVICE), [9 * 100_000_000] * 4))",
        f"{ALARM}try: {{}}['x']\nexcept KeyError: {HELD}",
        ALARM.replace('Timeout("mine")', "SystemExit(7)") + HELD,
        f"import functools, operator\ncall = functools.partial({HELD.replace('(', ', ', 1)}\n"
        "list(map(operator.call, [ctypes.pythonapi.PyErr_SetInterrupt, call]))",
    ],
    ids=["caught", "in a loop of C", "alarm in a handler", "exit", "ctrl-C right before"],
)
def test_what_a_signal_raises_during_a_call_comes_where_it_comes_without_a_trace(
    program: str, library: Path, tmp_path: Path
) -> None:
    """With the same traceback, and never later; the call itself is not recorded."""
    seen = record(library, tmp_path, program)
    plain = subprocess.run(
        [sys.executable, tmp_path / "program.py"], env=variables(library), capture_output=True, text=True, check=False
    )
    assert (seen.exit_code, seen.stdout, seen.stderr) == (plain.returncode, plain.stdout, plain.stderr)
    assert seen.spool.said("fault") is None


def test_a_fault_while_a_signal_is_minded_stays_there(library: Path, tmp_path: Path) -> None:
    program = (
        "import functools, operator\ncopy(1, PAGEABLE, DEVICE)\n"
        "sys.modules['pinscope.tracing.recorder']._RECORDINGS[-1]._log.note = None\n"
        "call = functools.partial(copy, 1, PAGEABLE, DEVICE)\n"
        "try: list(map(operator.call, [ctypes.pythonapi.PyErr_SetInterrupt, call]))\n"
        "except KeyboardInterrupt as error: print(type(error.__context__))\n"
    )
    seen = record(library, tmp_path, program)
    assert (seen.exit_code, seen.stdout, seen.stderr) == (0, "<class 'NoneType'>\n", "")
    assert len(seen.spool.calls()) == 1


NOTHING_ASKED = """
deadline = time.time() + 20
while cuda.fake_asked() and time.time() < deadline: time.sleep(0.01)
print(cuda.fake_asked())
"""


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        ("import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))", "OSError: "),
        ("sys.modules['pinscope.tracing.stacks'].INSTALLED = None", "TypeError: 'NoneType' object is not iterable"),
    ],
)
def test_a_fault_of_ours_ends_the_recording_and_not_the_program_and_cupti_is_asked_for_nothing_more(
    fault: str, named: str, library: Path, tmp_path: Path
) -> None:
    seen = record(library, tmp_path, f"{fault}\n{COPIES}{NOTHING_ASKED}")
    assert (seen.exit_code, seen.stdout, seen.stderr) == (0, "0\n", "")
    assert (seen.spool.said("fault") or "").startswith(named)


def test_os_exit_ends_the_program_whatever_fails_in_ours(library: Path, tmp_path: Path) -> None:
    broken = "sys.modules['pinscope.tracing.recorder']._RECORDINGS[-1].finish = lambda: 1 / 0\n"
    end = "try: os._exit(4)\nexcept Exception: print('the program goes on')\n"
    seen = record(library, tmp_path, broken + end)
    assert (seen.exit_code, seen.stdout, seen.stderr) == (4, "", "")


def test_calls_near_the_recursion_limit_have_no_line_and_no_others(library: Path, tmp_path: Path) -> None:
    program = """
sys.setrecursionlimit(200)
sources = [compile("copy(*arguments)", f"/own{depth}.py", "exec") for depth in range(300)]
arguments = 1, PAGEABLE, DEVICE
def deeper(depth): exec(sources[depth]); deeper(depth + 1)
try: deeper(0)
except (RecursionError, ctypes.ArgumentError): print("at the limit")
sys.setrecursionlimit(1000)
for _ in range(100): copy(*arguments)
"""
    seen = record(library, tmp_path, program)
    assert (seen.stdout, seen.stderr, seen.spool.said("fault")) == ("at the limit\n", "", None)
    stacks = seen.spool.calls()["stack"]
    lost = seen.counts["MEMCPY"] - len(stacks)
    assert 0 <= lost <= 3
    assert 1 <= lost + (stacks == 0).sum() < 20


def test_a_call_that_began_while_recorded_is_followed_to_its_end(library: Path, tmp_path: Path) -> None:
    program = f"""
import pinscope
def held(): copy(9 * 800_000_000, PAGEABLE, DEVICE)
thread = threading.Thread(target=held)
with pinscope.trace("part"): thread.start(); time.sleep(0.2)
copy(1, PAGEABLE, DEVICE)
thread.join()
{NOTHING_ASKED}
"""
    seen = record(library, tmp_path, program, Scope(children=False, only_parts=True))
    assert (seen.stdout, seen.counts["MEMCPY"]) == ("0\n", 1)
    (call,) = seen.spool.calls()
    assert call["end"] - call["start"] > 700_000_000
    assert seen.spool.stacks()[call["stack"] - 1][0][2] == "held"


def test_a_call_that_began_before_the_recording_is_marked_as_cut(library: Path, tmp_path: Path) -> None:
    program = """
import pinscope
part = pinscope.trace("part")  # which is imported now: a busy machine takes long
thread = threading.Thread(target=copy, args=(9 * 500_000_000, PAGEABLE, DEVICE)); thread.start()
time.sleep(0.1)
with part: thread.join(); copy(1, PAGEABLE, DEVICE)
"""
    seen = record(library, tmp_path, program, Scope(children=False, only_parts=True))
    assert [call["function"] == CUT for call in seen.spool.calls()] == [True, False]


def test_a_recording_ends_when_its_spool_is_gone(library: Path, tmp_path: Path) -> None:
    config = str(tmp_path / "spool" / "config.json")
    gone, back = f"os.rename({config!r}, {config + '.kept'!r})\n", f"os.rename({config + '.kept'!r}, {config!r})\n"
    seen = record(library, tmp_path, f"wait(0)\n{gone}{NOTHING_ASKED}{COPIES}{back}")
    assert (seen.stdout, seen.counts["MEMCPY"]) == ("0\n", 0)


def test_the_recording_of_waits_alone_ends_when_it_is_told_to(library: Path, tmp_path: Path) -> None:
    """CUPTI asks for no buffer then."""
    spool = tmp_path / "spool"
    program = f"""
wait(0)
open({str(spool / "stop")!r}, "w").close()
def step(): time.sleep(0.001)
{until_switched_off(tmp_path)}
wait(0)
"""
    assert len(record(library, tmp_path, program).spool.calls()) == 1


def test_the_recording_ends_when_it_is_told_to_and_the_program_goes_on(library: Path, tmp_path: Path) -> None:
    stop = f"open({str(tmp_path / 'spool' / 'stop')!r}, 'w').close()\n"
    seen = record(library, tmp_path, "copy(1, 1, 3)\n" + stop + "for _ in range(30_000): copy(1, 1, 3)\nprint('end')")
    assert seen.stdout == "end\n"
    assert 1 <= seen.counts["MEMCPY"] < 12_000


@pytest.mark.parametrize(
    ("name", "value", "code"), [("FAKE_CUPTI_REFUSES", "39", 39), ("FAKE_CUPTI_FUNCTIONS", "0", 1)]
)
def test_a_recorder_that_is_refused_does_not_start_the_program(
    name: str, value: str, code: int, library: Path, tmp_path: Path
) -> None:
    """CUPTI refuses, or the driver lets no function be followed."""
    seen = record(library, tmp_path, "print('started')", **{name: value})
    assert (seen.exit_code, seen.stdout) == (NOT_STARTED, "")
    assert (seen.spool.document("refused.json") or {})["code"] == code


def test_functions_that_the_driver_lacks_are_not_followed_and_others_are(library: Path, tmp_path: Path) -> None:
    """CUPTI knows one more than the driver."""
    seen = record(library, tmp_path, "copy(1, 1, 3); pinned(1, 64, 64)", FAKE_CUPTI_FUNCTIONS="200")
    assert seen.spool.calls()["function"].tolist() == [131]
    assert seen.counts["MEMCPY"] == 1


def test_each_call_has_the_innermost_range_of_its_thread(library: Path, tmp_path: Path) -> None:
    program = """
push(b"outer"); copy(1, 1, 3); push(b"inner"); copy(1, 1, 3); pop(); copy(1, 1, 3); pop(); copy(1, 1, 3)
push_in(7, b"registered"); push(b"of another domain"); pop_in(7); copy(1, 1, 3); pop(); copy(1, 1, 3)
def run(*arguments):
    thread = threading.Thread(*arguments); thread.start(); thread.join()
push(b"main's")
for _ in range(20):
    run(None, push, None, (b"never popped",))
    run(None, copy, None, (1, 1, 3))
"""
    seen = record(library, tmp_path, program)
    names = ["", *seen.spool.ranges()]
    assert [names[call["range"]] for call in seen.spool.calls()] == [
        "outer", "inner", "outer", "", "of another domain", *[""] * 21,
    ]  # fmt: skip


def test_a_program_may_make_up_any_number_of_range_names(library: Path, tmp_path: Path) -> None:
    program = "for step in range(10_100):\n    push(b'step %d' % step); copy(1, 1, 3); pop()\n"
    seen = record(library, tmp_path, program)
    assert len(seen.spool.ranges()) == 10_001
    assert seen.spool.ranges()[-1] == "other ranges"
    assert int((seen.spool.calls()["range"] == 10_001).sum()) == 100


def test_only_the_time_that_was_asked_for_is_recorded_and_the_program_runs_on(library: Path, tmp_path: Path) -> None:
    """The recording begins and ends at these moments or later: a busy machine is late."""
    program = f"""
def step(): copy(64, PAGEABLE, DEVICE); time.sleep(0.001)
{until_switched_off(tmp_path)}
print("end")
"""
    seen = record(library, tmp_path, program, Scope(start_after=0.2, for_seconds=1.0, children=False))
    assert seen.stdout == "end\n"
    on, off = map(json.loads, (tmp_path / "spool" / "switched").read_text().splitlines())
    config = seen.spool.document("config.json") or {}
    assert config["until_ns"] - config["from_ns"] == 1_000_000_000
    assert config["from_ns"] <= on["ns"]
    assert config["until_ns"] <= off["ns"]
    calls = seen.spool.calls()
    assert config["from_ns"] <= calls["start"].min()
    assert calls["start"].max() <= off["ns"]
    assert 0 <= len(calls) - seen.counts["MEMCPY"] <= 2  # at each switch a call may be under way
