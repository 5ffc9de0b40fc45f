"""``pinscope trace`` of programs that start processes: each that copies stands in the result, none notices it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from pinscope.cli.main import main
from tests.data.fake_cupti import PRELUDE
from tests.data.waiting import until
from tests.integration.traces import attached, rows, traced

COPIES = PRELUDE + "for _ in range(int(sys.argv[1])): copy(1 << 20, PAGEABLE, DEVICE); kernel(1000)\n"
CHILDREN = """\
import multiprocessing, os, runpy, subprocess, sys
HERE = os.path.dirname(os.path.abspath(__file__))
def copies(count):
    sys.argv[1:] = [str(count)]
    runpy.run_path(os.path.join(HERE, "copies.py"))
if __name__ == "__main__":
    start = [sys.executable, os.path.join(HERE, "copies.py")]
    subprocess.run([sys.executable, "-c", "import importlib.util, runpy; importlib.util.find_spec('ctypes'); "
                    f"runpy.run_path({start[1]!r})", "3"], check=True)
    subprocess.run([*start, "4"], check=True, env={**os.environ, "RANK": "1", "LOCAL_RANK": "0"})
    os.environ["PYTHONPATH"] = os.environ["PYTHONPATH"] + os.pathsep + HERE
    with subprocess.Popen(["/bin/sh", "-c", " ".join(["exec", *start, "5"])]): pass
    spawned = multiprocessing.get_context("spawn").Process(target=copies, args=(6,))
    spawned.start(); spawned.join()
    child = os.fork()
    if not child:
        os.execve(sys.executable, [*start, "7"], dict(os.environ))
    os.waitpid(child, 0)
    subprocess.run([sys.executable, "-c", "print('copies nothing')"], check=True)
    subprocess.run([sys.executable, "-I", *start[1:], "8"], check=True, env={"FAKE_CUPTI": os.environ["FAKE_CUPTI"]})
    copies(2)
"""


pytestmark = pytest.mark.usefixtures("_cupti")


def test_each_process_that_copies_stands_in_the_result_with_its_rank(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "copies.py").write_text(COPIES)
    (tmp_path / "program.py").write_text(CHILDREN)
    code, document = traced(tmp_path, tmp_path / "program.py")
    assert (code, document["run"]["notes"]) == (0, [])
    processes = {row["process"]: row for row in rows(document, "process")}
    assert sorted(row["copies"] for row in processes.values()) == [2, 3, 4, 5, 6, 7]
    assert [row["rank"] for row in processes.values() if row["copies"] == 4] == [1]
    assert all(row["seconds"] > 0 for row in processes.values())
    sites = rows(document, "site")
    assert sorted((row["count"], row["process"]) for row in sites) == sorted(
        (row["copies"], process) for process, row in processes.items()
    )
    assert len({row["number"] for row in sites}) == len(sites)
    (whole,) = rows(document, "program")
    assert (whole["copies"], whole["kernels"]) == (27, 27)
    assert "rank 1" in capfd.readouterr().err
    assert document["run"]["verdict"].startswith("Pin what ")
    (accused,) = (finding for finding in document["run"]["findings"] if finding["rule"] == "pageable-copies")
    assert accused["detail"].endswith("5 more processes copy there likewise.")
    copies = attached(document, "copies")
    assert {(row["process"], row["site"]) for row in copies} == {(row["process"], row["number"]) for row in sites}
    assert all(row["at_ns"] > 0 for row in copies)


AGAIN = """
import subprocess
copies(3)
if len(sys.argv) == 1: subprocess.run([*sys.orig_argv, "again"], check=True)
copies(len(sys.argv))
"""


@pytest.mark.parametrize(("options", "copies"), [((), [4, 5]), (("--this-process-only",), [])])
def test_a_program_that_runs_its_own_command_again_is_a_child_of_its_own(
    options: tuple[str, ...], copies: list[int], tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(PRELUDE + AGAIN)
    code, document = traced(tmp_path, *options, tmp_path / "program.py")
    assert (code, document["run"]["notes"]) == (0, [])
    assert sorted(row["copies"] for row in rows(document, "process")) == copies
    assert [row["copies"] for row in rows(document, "program")] == [sum(copies) or 4]


UNRECORDED = """\
import ctypes, os, subprocess, sys
os.environ["FAKE_CUPTI_REFUSES"] = "39"
subprocess.run([sys.executable, "-c", "import ctypes"], check=True)
"""


def test_a_process_that_could_not_be_recorded_is_said_and_fails_a_check(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "program.py").write_text(UNRECORDED)
    assert main(["trace", "--fail-on", "pageable", str(tmp_path / "program.py")]) == 1
    err = capfd.readouterr().err
    missing = "1 child was refused by CUPTI: end the other profiler"
    assert f"pinscope: {missing}. No copy was recorded." in err
    assert err.splitlines()[-1] == f"pinscope: --fail-on: not recorded: {missing}"


OUTLIVED = """\
import os, subprocess, sys, time
HERE = os.path.dirname(os.path.abspath(__file__))
for name in ("early", "early", "late"):
    with open(os.path.join(HERE, "err"), "a") as err:
        subprocess.Popen([sys.executable, os.path.join(HERE, name + ".py"), HERE], stderr=err, start_new_session=True)
while len([name for name in os.listdir(HERE) if name.endswith(".there")]) < 3: time.sleep(0.01)
time.sleep(0.3)
sys.exit(3)
"""
EARLY = """\
mark = os.path.join(sys.argv[1], str(os.getpid()))
while not os.path.exists(os.path.join(sys.argv[1], "go")):
    copies(2000)
    open(mark + ".there", "w").close()
os.rename(mark + ".there", mark + ".done")
"""
LATE = """\
import os, sys, time
mark = os.path.join(sys.argv[1], "late")
open(mark + ".there", "w").close()
while not os.path.exists(os.path.join(sys.argv[1], "go")): time.sleep(0.01)
"""


def test_processes_that_copy_on_after_the_program_s_end_break_nothing_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "program.py").write_text(OUTLIVED)
    (tmp_path / "early.py").write_text(PRELUDE + EARLY)
    (tmp_path / "late.py").write_text(f"{LATE}{PRELUDE}copies(2000)\nos.rename(mark + '.there', mark + '.done')")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    try:
        code, document = traced(tmp_path, tmp_path / "program.py")
        assert (code, document["run"]["status"], document["run"]["notes"]) == (3, "done", [])
        assert "trace failed" not in capfd.readouterr().err
        time.sleep(0.3)  # they copy on
        assert list(temporary.iterdir()) == []
    finally:
        (tmp_path / "go").touch()
    until(lambda: len(list(tmp_path.glob("*.done"))) == 3)
    assert (tmp_path / "err").read_text() == ""


CURIOUS = """\
import json, os, subprocess, sys
def seen():
    names = [name for name in sys.modules if name.startswith(("pinscope", "sitecustomize"))]
    loader = type(sys.modules["ctypes"].__spec__.loader).__name__ if "ctypes" in sys.modules else None
    return [dict(os.environ), sys.path[1:], names, loader, [type(finder).__name__ for finder in sys.meta_path]]
if __name__ == "__main__":
    import ctypes
    answers = [seen()]
    if sys.argv[1:] == []:
        for start, changes in (([os.path.abspath(__file__)], None), (["-m", "curious"], {**os.environ, "MINE": "1"})):
            start = [sys.executable, *start, "deep"]
            answers += json.loads(subprocess.run(start, capture_output=True, text=True, check=True, env=changes).stdout)
    print(json.dumps(answers))
"""


def test_the_program_and_its_children_see_their_own_environment_path_and_sitecustomize(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import os; os.environ['CUSTOMIZED'] = 'by its own'")
    (tmp_path / "curious.py").write_text(CURIOUS)
    monkeypatch.setenv("PYTHONPATH", f"{os.environ['PYTHONPATH']}{os.pathsep}{own}{os.pathsep}{tmp_path}")
    plain = subprocess.run(  # without what C code of this process, such as readline, has set
        [sys.executable, str(tmp_path / "curious.py")], capture_output=True, text=True, check=True, cwd=tmp_path,
        env=dict(os.environ),
    )  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(["trace", "curious.py"]) == 0
    expected, answers = json.loads(plain.stdout), json.loads(capfd.readouterr().out)
    for answer, its_own in zip(answers, expected, strict=True):
        answer[2] = [name for name in answer[2] if not name.startswith("pinscope")]
        assert answer == its_own
