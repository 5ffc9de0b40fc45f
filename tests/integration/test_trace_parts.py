"""``with pinscope.trace(NAME):`` in a program that python runs, and in one that ``pinscope trace`` runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pinscope.records.run import Run
from pinscope.store.bundle import read_bundle
from pinscope.store.store import Store
from pinscope.store.tables import Row
from tests.data.fake_cupti import PRELUDE
from tests.integration.traces import Document, built_library, given_cupti, program, traced  # noqa: F401 - fixtures

PARTS = """\
import pinscope
def copies(count): [copy(1 << 20, PAGEABLE, DEVICE) for _ in range(count)]; kernel(1000)
copies(1)
"""


pytestmark = pytest.mark.usefixtures("_cupti")


def run(folder: Path, text: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """The program, as python runs it."""
    (folder / "program.py").write_text(PRELUDE + PARTS + text)
    return subprocess.run(
        [sys.executable, str(folder / "program.py")], capture_output=True, text=True, check=False,
        env={**os.environ, **changes}, cwd=folder,
    )  # fmt: skip


def kept() -> list[tuple[Run, list[Row]]]:
    """All traces that were made here, the first one first."""
    with Store() as store:
        runs = [run for run in store.runs(experiment="trace") if not run.recording]
        return [(each, list(store.observations(each.id))) for each in reversed(runs)]


def sites(rows: list[Row]) -> list[tuple[int, str | None]]:
    return sorted((row["count"], row.get("ranges")) for row in rows if row["kind"] == "site")


def test_parts_are_recorded_each_by_itself_with_those_inside_as_ranges(tmp_path: Path) -> None:
    text = """
with pinscope.trace("training", output="training.pinscope"):
    copies(2)
    with pinscope.trace("inner"): copies(3)
    other = threading.Thread(target=copies, args=(4,)); other.start(); other.join()
copies(5)
@pinscope.trace("decorated", stacks=False)
def decorated(): copies(6); return "its result"
print(decorated())
copies(7)
with pinscope.trace("fails"): raise KeyError("of the program")
"""
    done = run(tmp_path, text)
    assert (done.returncode, done.stdout) == (1, "its result\n")
    assert done.stderr.index("pinscope: part training: program.py:") < done.stderr.index("pinscope: part decorated:")
    assert done.stderr.endswith("KeyError: 'of the program'\n")
    assert "part.py" not in done.stderr
    first, second, third = kept()
    assert [each.params["part"] for each, _ in (first, second, third)] == ["training", "decorated", "fails"]
    assert {each.status for each, _ in (first, second, third)} == {"done"}
    assert sites(first[1]) == [(9, "training, inner")]
    assert [count for count, _ in sites(second[1])] == [6]
    assert sites(third[1]) == []
    program_row = first[1][0]
    assert program_row["copies"] == 9
    assert "exit_code" not in {name for name, value in program_row.items() if value is not None}
    ((bundled, _),) = read_bundle(tmp_path / "training.pinscope")
    assert bundled.id == first[0].id


def test_a_copy_that_goes_on_when_its_part_ends_accuses_no_line(tmp_path: Path) -> None:
    held = "other = threading.Thread(target=copy, args=(9 * 800_000_000, PAGEABLE, DEVICE))\n"
    part = "with pinscope.trace('part'): copies(2); other.start(); time.sleep(0.2)\nother.join()"
    assert run(tmp_path, held + part).returncode == 0
    assert sites(kept()[0][1]) == [(2, "part")]


def test_parts_of_a_program_whose_threads_copy_all_the_time_accuse_no_line(tmp_path: Path) -> None:
    text = """
sys.setswitchinterval(1e-5)
def loop():
    while threading.main_thread().is_alive(): copy(64, PAGEABLE, DEVICE)
for _ in range(3): threading.Thread(target=loop, daemon=True).start()
for _ in range(3):
    with pinscope.trace("part"): time.sleep(0.05)
os._exit(0)
"""
    assert run(tmp_path, text).returncode == 0
    named = [[bool(row["file"]) for row in rows if row["kind"] == "site"] for _, rows in kept()]
    assert named == [[True]] * 3


def test_parts_leave_no_memory_behind(tmp_path: Path) -> None:
    text = """
for _ in range(3):
    with pinscope.trace("part"): copies(10)
    print(sum("pinscope-trace" in line for line in open("/proc/self/maps")))
"""
    assert run(tmp_path, text).stdout == "0\n" * 3


def test_a_program_that_is_killed_in_its_part_keeps_what_was_recorded(tmp_path: Path) -> None:
    done = run(tmp_path, "with pinscope.trace('killed'):\n    copies(8); time.sleep(0.5); os.kill(os.getpid(), 9)")
    assert done.returncode == -9  # and the keeper, which has the same stderr, has ended
    ((recorded, rows),) = kept()
    assert recorded.status == "done"
    assert sites(rows) == [(8, "killed")]


def test_a_file_that_is_there_and_a_part_without_a_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "there.pinscope").write_text("")
    done = run(tmp_path, "with pinscope.trace('part', output='there.pinscope'): print('runs')\npinscope.trace('')")
    assert done.stdout == "runs\n"
    assert "there.pinscope is there already" in done.stderr
    assert done.stderr.splitlines()[-1].endswith("a part needs a name, such as pinscope.trace('training')")
    assert (tmp_path / "there.pinscope").read_text() == ""


TRACED = """
copies(2)
with pinscope.trace("first"): copies(3)
copies(4)
for _ in range(2):
    with pinscope.trace("second"): copies(5)
child = os.fork()
if not child:
    with pinscope.trace("of a child"): os._exit(0)
os.waitpid(child, 0)
"""


def test_under_a_trace_parts_are_ranges_or_all_that_is_recorded(tmp_path: Path) -> None:
    path = program(tmp_path, PARTS + TRACED)
    whole: Document = traced(tmp_path, path)[1]
    assert sites(whole["observations"]) == [(20, "second, first")]
    assert "recorded_seconds" not in whole["observations"][0]
    parts: Document = traced(tmp_path, "--only-parts", path)[1]
    assert sites(parts["observations"]) == [(13, "second, first")]
    assert parts["observations"][0]["kernels"] == 3
    assert 0 < parts["observations"][0]["recorded_seconds"] < parts["observations"][0]["seconds"]
    assert parts["run"]["params"]["only_parts"] is True


def test_pinscope_is_as_light_to_import_as_before() -> None:
    loaded = "import sys, pinscope; print(sorted(name for name in sys.modules if name.startswith('pinscope')))"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert done.stdout == "['pinscope']\n"


ALONE = "import shutil\nfrom pinscope.tracing import part\nalone = part._ALONE\n"
BREAKS = {
    "the process that keeps it is killed, and its files are gone":
        "alone._keeper.kill(); alone._keeper.wait(); shutil.rmtree(alone._spool.path)",
    "its files are gone": "gone = alone._spool.path + '.gone'; os.rename(alone._spool.path, gone); shutil.rmtree(gone)",
    "the recorder cannot end": "alone._recorder._write = os.stat",
    "the recorder fails in the part": "alone._recorder.leave_part = os.stat",
}  # fmt: skip


@pytest.mark.parametrize("what", BREAKS)
def test_whatever_fails_in_a_part_the_exception_of_its_block_stays(what: str, tmp_path: Path) -> None:
    block = f"    copies(1); {BREAKS[what]}\n    raise KeyError('mine')\n"
    caught = "except KeyError as error: print('as ever', error.__context__)\n"
    done = run(tmp_path, f"{ALONE}try:\n  with pinscope.trace('part'):\n{block}{caught}print('end')")
    assert (done.returncode, done.stdout) == (0, "as ever None\nend\n"), done.stderr
    assert "Traceback" not in done.stderr
    assert "pinscope: " in done.stderr


CANNOT_BEGIN = {
    "no store": "os.environ['PINSCOPE_DATABASE'] = 'sqlite:////proc/nowhere/x.db'",
    "no process for it": "part.command = lambda *_: ['nowhere/python']",
    "no recorder": "part.start_recording = os.readlink",
    "another profiler is attached": "os.environ['FAKE_CUPTI_REFUSES'] = '39'",
    "there is no NVIDIA driver here": "os.environ['FAKE_CUPTI'] = ''",
}


@pytest.mark.parametrize("what", CANNOT_BEGIN)
def test_where_a_part_cannot_begin_one_line_says_so_and_the_block_runs(what: str, tmp_path: Path) -> None:
    text = f"{ALONE}{CANNOT_BEGIN[what]}\nwith pinscope.trace('part'): print('runs')\nprint(alone._open)"
    done = run(tmp_path, text)
    assert (done.returncode, done.stdout) == (0, "runs\n0\n"), done.stderr
    assert done.stderr.startswith("pinscope: the part 'part' is not recorded: ")
    assert what.startswith("no ") or what in done.stderr
    assert done.stderr.count("\n") == 1
    assert kept() == []


INTERRUPTED = """
class Late(OSError): pass
def handler(*_): raise {error}
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, {seconds})
try:
    with pinscope.trace("first"): print("begins")
except (KeyboardInterrupt, Late) as error: print(type(error).__name__)
with pinscope.trace("second"): copies(2)
"""


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "Late"])
def test_ctrl_c_while_a_part_begins_ends_what_has_begun_and_the_next_part_is_recorded(
    error: str, tmp_path: Path
) -> None:
    done = run(tmp_path, INTERRUPTED.format(error=error, seconds=0.2))
    assert (done.returncode, done.stdout) == (0, f"{error}\n"), done.stderr
    assert [each.params["part"] for each, _ in kept()] == ["second"]
    assert sites(kept()[0][1]) == [(2, "second")]


@pytest.mark.parametrize("step", ["_hook", "_subscribe", "_report", "_is_wanted", "_note_switch"])
def test_wherever_ctrl_c_comes_as_a_recording_begins_cupti_is_let_go(step: str, tmp_path: Path) -> None:
    text = f"""
from pinscope.tracing import recorder
owner = recorder if {step!r} == "_hook" else recorder.Recorder
as_ever = owner.{step}
def interrupted(*arguments):
    owner.{step} = as_ever
    as_ever(*arguments)
    raise KeyboardInterrupt
owner.{step} = interrupted
try:
    with pinscope.trace("first"): print("begins")
except KeyboardInterrupt: print("interrupted", cuda.fake_asked())
with pinscope.trace("second"): copies(2)
"""
    done = run(tmp_path, text)
    assert (done.returncode, done.stdout) == (0, "interrupted 0\n"), done.stderr
    second, rows = kept()[-1]
    assert (second.params["part"], second.status, sites(rows)) == ("second", "done", [(2, "second")])
    assert {each.status for each, _ in kept()[:-1]} <= {"interrupted"}  # its keeper may have begun to store it


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_program_that_ends_while_a_part_begins_leaves_nothing(number: int, tmp_path: Path) -> None:
    """A process that kept the part would keep its stderr open."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    text = f"threading.Timer(0.2, os.kill, (os.getpid(), {number})).start()\nwith pinscope.trace('part'): pass"
    done = run(tmp_path, text, TMPDIR=str(temporary))
    assert done.returncode == -number
    assert "begins" not in done.stdout
    assert kept() == []
    assert list(temporary.iterdir()) == []


def test_a_part_on_a_full_disk_ends_and_keeps_what_was_recorded(tmp_path: Path) -> None:
    full = """
import resource
with pinscope.trace("part"):
    copies(3); time.sleep(0.5)
    resource.prlimit(part._ALONE._keeper.pid, resource.RLIMIT_FSIZE, (1 << 21, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    for _ in range(40): cuda.fake_copies(5000)
print("goes on", flush=True)
"""
    done = run(tmp_path, ALONE + full)
    assert (done.returncode, done.stdout) == (0, "goes on\n"), done.stderr
    assert "Traceback" not in done.stderr
    ((recorded, rows),) = kept()
    assert recorded.status == "done"
    assert rows[0]["copies"] >= 3


def test_of_a_long_name_the_beginning_is_kept_and_printed(tmp_path: Path) -> None:
    done = run(tmp_path, "with pinscope.trace('long' + 5_000_000 * 'x'): copies(1)")
    assert (done.returncode, len(done.stderr) < 5000) == (0, True)
    assert [each.params["part"] for each, _ in kept()] == ["long" + 196 * "x"]
