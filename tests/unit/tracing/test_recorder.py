"""The recorder inside a program, under a stand-in for CUPTI: what it keeps, and that the program does not notice."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from pinscope.runner.traced_program import make_spool
from pinscope.tracing.scope import Scope
from pinscope.tracing.spool import Spool
from pinscope.tracing.start import NOT_STARTED
from tests.data.fake_cupti import FIRST_LINE, PRELUDE, built, variables

TRACING = Path(__file__).parents[3] / "pinscope" / "tracing"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("cupti"))


ALL = Scope(children=False)


@dataclass(frozen=True)
class Recorded:
    exit_code: int
    stdout: str
    stderr: str
    spool: Spool
    counts: Counter[str]
    """Records by kind."""


def record(library: Path, folder: Path, program: str, scope: Scope = ALL, **changes: str) -> Recorded:
    """Run a program with the recorder in it."""
    environment = variables(library, **changes)
    setup = subprocess.run(
        [sys.executable, TRACING / "recorder_setup.py"], env=environment, capture_output=True, check=True
    )
    spool = folder / "spool"
    spool.mkdir()
    make_spool(spool, json.loads(setup.stdout), scope, time.time_ns())
    (folder / "program.py").write_text(PRELUDE + program)
    done = subprocess.run(
        [sys.executable, TRACING / "start.py", spool, folder / "program.py"],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    read, counts = Spool(spool), Counter[str]()
    for buffer in read.take(ended=True):
        counts.update({kind: len(records) for kind, records in buffer.items()})
    return Recorded(done.returncode, done.stdout, done.stderr, read, counts)


COPIES = "for _ in range(100): copy(1 << 20, PAGEABLE, DEVICE)\n"


@pytest.mark.parametrize(
    ("end", "exit_code"),
    [("", 0), ("sys.exit(3)", 3), ("os._exit(4)", 4), ("os.kill(os.getpid(), 9)", -9), ("ctypes.string_at(0)", -11),
     ("raise KeyError('x')", 1), ("os.kill(os.getpid(), 15)", -15), ("os.execv('/bin/true', ['true'])", 0)],
)  # fmt: skip
def test_whatever_ends_the_program_what_was_recorded_is_kept(
    end: str, exit_code: int, library: Path, tmp_path: Path
) -> None:
    seen = record(library, tmp_path, COPIES + end)
    assert seen.exit_code == exit_code
    assert seen.counts == {"MEMCPY": 100, "RUNTIME": 100}
    assert len(seen.spool.calls()) == 100


def test_more_records_than_a_buffer_holds(library: Path, tmp_path: Path) -> None:
    seen = record(library, tmp_path, "for _ in range(150_000): copy(64, PAGEABLE, DEVICE)\nos._exit(0)")
    assert seen.counts == {"MEMCPY": 150_000, "RUNTIME": 150_000}
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


def test_each_call_has_the_stack_it_came_from(library: Path, tmp_path: Path) -> None:
    program = (
        "def up():\n    copy(1, PAGEABLE, DEVICE)\ndef down():\n    copy(1, DEVICE, PAGEABLE)\nup(); down(); up()\n"
    )
    seen = record(library, tmp_path, program)
    stacks = seen.spool.stacks()
    innermost = [stacks[pair["stack"] - 1][0][1:] for pair in seen.spool.calls()]
    assert innermost == [(FIRST_LINE + 1, "up"), (FIRST_LINE + 3, "down"), (FIRST_LINE + 1, "up")]
    assert all(stack[1][1:] == (FIRST_LINE + 4, "<module>") for stack in stacks)


def test_the_driver_s_function_inside_the_runtime_s_is_the_same_call(library: Path, tmp_path: Path) -> None:
    assert len(record(library, tmp_path, "copy(1, PAGEABLE, DEVICE)").spool.calls()) == 1


def test_without_stacks_copies_are_recorded_all_the_same(library: Path, tmp_path: Path) -> None:
    seen = record(library, tmp_path, COPIES, Scope(stacks=False, children=False))
    assert seen.counts["MEMCPY"] == 100
    assert not len(seen.spool.calls())


def test_what_a_forked_child_does_is_its_own(library: Path, tmp_path: Path) -> None:
    program = f"{COPIES}child = os.fork()\nif not child:\n    {COPIES}    sys.exit(8)\n"
    seen = record(library, tmp_path, program + "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n" + COPIES)
    assert seen.stdout == "8\n"
    assert seen.counts["MEMCPY"] == 200


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
    assert (seen.stdout, seen.stderr, seen.spool.fault) == ("50\n", "", None)


def test_ctrl_c_during_copies_ends_the_program_as_ever(library: Path, tmp_path: Path) -> None:
    program = "threading.Timer(0.3, os.kill, (os.getpid(), 2)).start()\nwhile True: copy(64, PAGEABLE, DEVICE)\n"
    seen = record(library, tmp_path, program)
    assert seen.exit_code == -2
    assert seen.stderr.endswith("KeyboardInterrupt\n")
    assert "recorder.py" not in seen.stderr


def test_a_fault_of_the_recorder_ends_the_recording_and_not_the_program(library: Path, tmp_path: Path) -> None:
    full = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n" + COPIES + "print('goes on')"
    limited = record(library, tmp_path, full)
    assert limited.exit_code == 0
    assert limited.stdout == "goes on\n"
    assert limited.stderr == ""
    assert "OSError" in (limited.spool.fault or "")


def test_the_recording_ends_when_it_is_told_to_and_the_program_goes_on(library: Path, tmp_path: Path) -> None:
    stop = f"open({str(tmp_path / 'spool' / 'stop')!r}, 'w').close()\n"
    seen = record(library, tmp_path, "copy(1, 1, 3)\n" + stop + "for _ in range(30_000): copy(1, 1, 3)\nprint('end')")
    assert seen.stdout == "end\n"
    assert 1 <= seen.counts["MEMCPY"] < 10_000


def test_a_recorder_that_is_refused_does_not_start_the_program(library: Path, tmp_path: Path) -> None:
    seen = record(library, tmp_path, "print('started')", FAKE_CUPTI_REFUSES="39")
    assert (seen.exit_code, seen.stdout) == (NOT_STARTED, "")
    assert (seen.spool.document("refused.json") or {})["code"] == 39


def test_the_program_s_environment_and_modules_are_its_own(library: Path, tmp_path: Path) -> None:
    program = "print(sorted(os.environ), [name for name in ('numpy', 'cupti') if name in sys.modules])"
    seen = record(library, tmp_path, program)
    plain = subprocess.run(
        [sys.executable, tmp_path / "program.py"], env=variables(library), capture_output=True, text=True, check=True
    )
    assert seen.stdout == plain.stdout


def test_each_call_has_the_innermost_range_of_its_thread(library: Path, tmp_path: Path) -> None:
    program = """
push(b"outer"); copy(1, 1, 3); push(b"inner"); copy(1, 1, 3); pop(); copy(1, 1, 3); pop(); copy(1, 1, 3)
push_in(7, b"registered"); push(b"of another domain"); pop_in(7); copy(1, 1, 3); pop(); copy(1, 1, 3)
push(b"main's"); other = threading.Thread(target=copy, args=(1, 1, 3)); other.start(); other.join()
"""
    seen = record(library, tmp_path, program)
    names = ["", *seen.spool.ranges()]
    assert [names[call["range"]] for call in seen.spool.calls()] == [
        "outer", "inner", "outer", "", "of another domain", "", ""
    ]  # fmt: skip


def test_a_program_may_make_up_any_number_of_range_names(library: Path, tmp_path: Path) -> None:
    program = "for step in range(10_100):\n    push(b'step %d' % step); copy(1, 1, 3); pop()\n"
    seen = record(library, tmp_path, program)
    assert len(seen.spool.ranges()) == 10_001
    assert seen.spool.ranges()[-1] == "other ranges"
    assert int((seen.spool.calls()["range"] == 10_001).sum()) == 100


def test_only_the_time_that_was_asked_for_is_recorded_and_the_program_runs_on(library: Path, tmp_path: Path) -> None:
    program = "begun = time.time()\nwhile time.time() < begun + 1.2: copy(64, PAGEABLE, DEVICE); time.sleep(0.001)\n"
    program += "print('end')"
    seen = record(library, tmp_path, program, Scope(start_after=0.5, for_seconds=0.3, children=False))
    assert seen.stdout == "end\n"
    begun, ended = (seen.spool.document(f"{name}.json") or {} for name in ("started", "ended"))
    recorded = seen.spool.recorded_ns(begun["ns"], ended["ns"]) / 1e9
    assert 0.2 < recorded < 0.5  # a busy machine is late on either side
    assert 20 < seen.counts["MEMCPY"] < 700
    assert seen.counts["MEMCPY"] == len(seen.spool.calls())
