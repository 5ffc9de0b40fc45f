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
from pinscope.store.documents import StoredRow
from pinscope.store.store import Store
from tests.data.fake_cupti import FIRST_LINE, PRELUDE
from tests.integration.traces import Document, program, traced

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


def kept() -> list[tuple[Run, list[StoredRow]]]:
    """All traces that were made here, the first one first."""
    with Store() as store:
        return [(run, list(store.observations(run.id))) for run in reversed(store.runs(recordings=False))]


def sites(rows: list[StoredRow]) -> list[tuple[int, str | None]]:
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
print(sum("pinscope-trace" in line for line in open("/proc/self/maps")))
with pinscope.trace("fails"): raise KeyError("of the program")
"""
    done = run(tmp_path, text)
    assert (done.returncode, done.stdout) == (1, "its result\n0\n")
    training, decorated = "pinscope: part training: Pin what program.py:", "pinscope: part decorated:"
    assert done.stderr.index(training) < done.stderr.index(decorated)
    assert done.stderr.endswith("KeyError: 'of the program'\n")
    assert "part.py" not in done.stderr
    first, second, third = kept()
    assert [(run.params["part"], run.status) for run, _ in kept()] == [
        ("training", "done"), ("decorated", "done"), ("fails", "done"),
    ]  # fmt: skip
    assert sites(first[1]) == [(9, "training, inner")]
    assert [count for count, _ in sites(second[1])] == [6]
    assert sites(third[1]) == []
    program_row = first[1][0]
    assert program_row["copies"] == 9
    assert "exit_code" not in {name for name, value in program_row.items() if value is not None}
    ((bundled, _),) = read_bundle(tmp_path / "training.pinscope")
    assert bundled.id == first[0].id


def test_a_part_accuses_no_line_of_copies_that_threads_make_at_its_end(tmp_path: Path) -> None:
    text = """
sys.setswitchinterval(1e-5)
def loop():
    while threading.main_thread().is_alive(): copy(64, PAGEABLE, DEVICE)
for _ in range(2): threading.Thread(target=loop, daemon=True).start()
other = threading.Thread(target=copy, args=(9 * 800_000_000, PAGEABLE, DEVICE))
with pinscope.trace("part"): copies(2); other.start(); time.sleep(0.2)
other.join()
with pinscope.trace("again"): time.sleep(0.05)
os._exit(0)
"""
    assert run(tmp_path, text).returncode == 0
    (_, first), (_, second) = kept()
    assert {row["file"] for row in (*first, *second) if row["kind"] == "site"} == {str(tmp_path / "program.py")}
    assert [row["bytes"] for row in first if row["kind"] == "site" and row["line"] == FIRST_LINE + 1] == [2 << 20]
    assert max(row["bytes"] // row["count"] for row in first if row["kind"] == "site") == 1 << 20


def test_a_program_that_is_killed_in_its_part_keeps_what_was_recorded(tmp_path: Path) -> None:
    text = "with pinscope.trace('killed' + 5_000_000 * 'x'):\n    copies(8); time.sleep(0.4); os.kill(os.getpid(), 9)"
    done = run(tmp_path, text)
    assert (done.returncode, len(done.stderr) < 5000) == (-9, True)  # and the keeper, which has its stderr, has ended
    ((recorded, rows),) = kept()
    assert (recorded.status, recorded.params["part"]) == ("done", "killed" + 194 * "x")
    assert [row["count"] for row in rows if row["kind"] == "site"] == [8]


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


ALONE = "import shutil\nfrom pinscope.tracing import part\nalone = part._ALONE\n"


def test_whatever_fails_in_a_part_the_exception_of_its_block_stays(tmp_path: Path) -> None:
    text = f"""{ALONE}
def keeper_is_killed():
    alone._keeper.kill(); alone._keeper.wait(); shutil.rmtree(alone._spool.path)
def recorder_cannot_end(): alone._recorder._write = os.stat
def recorder_fails(): alone._recorder.leave_part = os.stat
for fail in (keeper_is_killed, recorder_cannot_end, recorder_fails):
    try:
        with pinscope.trace(fail.__name__):
            copies(1); fail()
            raise KeyError("mine")
    except KeyError as error: print(error.__context__)
"""
    done = run(tmp_path, text)
    assert (done.returncode, done.stdout) == (0, "None\n" * 3), done.stderr
    assert "Traceback" not in done.stderr
    assert all(f"pinscope: the part {name!r} " in done.stderr for name in ("keeper_is_killed", "recorder_fails"))


CANNOT_BEGIN = {
    "no store": "os.environ['PINSCOPE_DATABASE'] = 'sqlite:////proc/nowhere/x.db'",
    "no process for it": "part.command = lambda *_: ['nowhere/python']",
    "no recorder": "part.start_recording = os.readlink",
    "there is no NVIDIA driver here": "os.environ['LD_LIBRARY_PATH'] = ''",
}


def test_where_a_part_cannot_begin_one_line_says_so_and_the_block_runs(tmp_path: Path) -> None:
    text = f"""{ALONE}
as_ever = part.command, part.start_recording, dict(os.environ)
for what, change in {CANNOT_BEGIN!r}.items():
    exec(change)
    with pinscope.trace(what): print("runs", flush=True)
    part.command, part.start_recording, environment = as_ever
    os.environ.update(environment)
    assert not alone._open
    sys.stderr.flush()
"""
    done = run(tmp_path, text)
    assert (done.returncode, done.stdout) == (0, "runs\n" * len(CANNOT_BEGIN)), done.stderr
    lines = done.stderr.splitlines()
    for line, what in zip(lines, CANNOT_BEGIN, strict=True):
        begin, _, why = line.partition(" is not recorded: ")
        assert begin == f"pinscope: the part {what!r}"
        assert what.startswith("no ") or what in why
    assert kept() == []


INTERRUPTED = """
from pinscope.tracing import recorder
class Late(OSError): pass
def interrupted(owner, step, error):
    as_ever = getattr(owner, step)
    def interrupt(*arguments):
        setattr(owner, step, as_ever)
        as_ever(*arguments)
        raise error
    setattr(owner, step, interrupt)
def handler(*_): raise Late
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.2)
for step in (None, "_hook", "_report", "_note_switch"):
    if step: interrupted(recorder if step == "_hook" else recorder.Recorder, step, KeyboardInterrupt)
    try:
        with pinscope.trace("first"): print("begins")
    except (KeyboardInterrupt, Late) as error: print(type(error).__name__, cuda.fake_asked())
with pinscope.trace("second"): copies(2)
"""


def test_wherever_ctrl_c_comes_as_a_part_begins_it_ends_and_the_next_part_is_recorded(tmp_path: Path) -> None:
    done = run(tmp_path, INTERRUPTED)
    assert (done.returncode, done.stdout) == (0, "Late 0\n" + "KeyboardInterrupt 0\n" * 3), done.stderr
    second, rows = kept()[-1]
    assert (second.params["part"], second.status, sites(rows)) == ("second", "done", [(2, "second")])
    assert {run.status for run, _ in kept()[:-1]} <= {"interrupted"}  # its keeper may have begun to store it


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_program_that_ends_while_a_part_begins_leaves_nothing(number: int, tmp_path: Path) -> None:
    """A process that kept the part would keep its stderr open."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    text = f"""
import signal
signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), {number}))
signal.setitimer(signal.ITIMER_REAL, 0.03)  # no thread, which a busy machine may start too late
with pinscope.trace('part'): pass
"""
    done = run(tmp_path, text, TMPDIR=str(temporary))
    assert done.returncode == -number
    assert "begins" not in done.stdout
    assert kept() == []
    assert list(temporary.iterdir()) == []


def test_a_part_on_a_full_disk_ends_and_keeps_what_was_recorded(tmp_path: Path) -> None:
    full = """
import resource
with pinscope.trace("part"):
    copies(3); time.sleep(0.4)
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
