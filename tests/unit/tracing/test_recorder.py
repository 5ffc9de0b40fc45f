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
from pinscope.tracing.call_log import CUT
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
    [("", 0), ("sys.exit(3)", 3), ("os._exit(4)", 4), ("os.kill(os.getpid(), 9)", -9), ("ctypes.string_at(0)", -11),
     ("raise KeyError('x')", 1), ("os.kill(os.getpid(), 15)", -15), ("os.execv('/bin/true', ['true'])", 0)],
)  # fmt: skip
def test_whatever_ends_the_program_what_was_recorded_is_kept(
    end: str, exit_code: int, library: Path, tmp_path: Path
) -> None:
    seen = record(library, tmp_path, COPIES + end)
    assert seen.exit_code == exit_code
    assert seen.counts == {"MEMCPY": 100}
    assert len(seen.spool.calls()) == 100


@pytest.mark.parametrize("options", [(), ("-DCUPTI_13_1",)])
def test_records_of_a_cupti_that_is_newer_than_cupti_python_are_read(options: tuple[str, ...], tmp_path: Path) -> None:
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


def test_each_call_has_the_stack_it_came_from(library: Path, tmp_path: Path) -> None:
    program = (
        "def up():\n    copy(1, PAGEABLE, DEVICE)\ndef down():\n    copy(1, DEVICE, PAGEABLE)\nup(); down(); up()\n"
    )
    seen = record(library, tmp_path, program)
    stacks = seen.spool.stacks()
    innermost = [stacks[pair["stack"] - 1][0][1:] for pair in seen.spool.calls()]
    assert innermost == [(FIRST_LINE + 1, "up"), (FIRST_LINE + 3, "down"), (FIRST_LINE + 1, "up")]
    assert all(stack[1][1:] == (FIRST_LINE + 4, "<module>") for stack in stacks)


def test_without_stacks_copies_and_calls_are_recorded_all_the_same(library: Path, tmp_path: Path) -> None:
    seen = record(library, tmp_path, COPIES, Scope(stacks=False, children=False))
    assert seen.counts["MEMCPY"] == 100
    assert seen.spool.calls()["stack"].tolist() == [0] * 100
    assert seen.spool.stacks() == []


def test_a_call_lasts_from_its_beginning_to_its_return(library: Path, tmp_path: Path) -> None:
    program = "begun = time.time_ns(); wait(20_000_000); print(time.time_ns() - begun)"
    seen = record(library, tmp_path, program)
    (waits,) = seen.spool.calls()
    assert 20_000_000 <= waits["end"] - waits["start"] < int(seen.stdout)


def test_what_a_forked_child_does_is_its_own(library: Path, tmp_path: Path) -> None:
    program = f"{COPIES}child = os.fork()\nif not child:\n    {COPIES}    sys.exit(8)\n"
    seen = record(library, tmp_path, program + "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n" + COPIES)
    assert seen.stdout == "8\n"
    assert seen.counts["MEMCPY"] == 200


def test_a_forked_child_that_fills_a_buffer_takes_nothing_from_its_parent(library: Path, tmp_path: Path) -> None:
    child = "child = os.fork()\nif not child:\n    copies(20_000)\n    os._exit(0)\nos.waitpid(child, 0)\n"
    seen = record(library, tmp_path, f"{COPIES}{child}{COPIES}")
    assert (seen.spool.fault, seen.counts["MEMCPY"]) == (None, 200)
