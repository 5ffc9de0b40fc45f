"""``pinscope trace`` of programs whose children copy: each is recorded, or named, and then no check passes."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinscope.runner import traced_program
from tests.integration.traces import rows, traced

pytestmark = pytest.mark.usefixtures("_cupti")

WORK = """\
import ctypes, os
def work(count):
    cuda = ctypes.CDLL(os.environ["FAKE_CUPTI"])
    for _ in range(count): cuda.fake_copy(ctypes.c_uint64(1 << 20), 1, 3)
if __name__ == "__main__":
    import sys
    work(int(sys.argv[1]))
"""
FOLLOWED = """
import multiprocessing, os, subprocess, sys
from work import work
def once(count): work(count)
def start(way, count):
    process = multiprocessing.get_context(way).Process(target=once, args=(count,))
    process.start()
    process.join()
    assert process.exitcode == 0
if __name__ == "__main__":
    start("spawn", 5)
    subprocess.run([sys.executable, "work.py", "8"], check=True)
    os.system(f"{sys.executable} work.py 9; sleep 1")  # a busy machine looks at the shell later
    once(10)
"""


BECOMES = """
import os, sys
from work import work
work(3)
os.execv(sys.executable, [sys.executable, "work.py", "4"])
"""


@pytest.mark.parametrize(
    ("text", "copies"), [(FOLLOWED, [5, 8, 9, 10]), (BECOMES, [3, 4])], ids=["spawned and started", "become another"]
)
def test_python_that_a_program_starts_or_becomes_stands_in_the_result(
    text: str, copies: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work.py").write_text(WORK)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "program.py").write_text(text)
    code, document = traced(tmp_path, "--fail-on", "pageable=1GiB", "program.py")
    assert (code, document["run"]["notes"]) == (0, [])
    assert sorted(row["copies"] for row in rows(document, "process")) == copies
    assert rows(document, "unrecorded") == []
    (whole,) = rows(document, "program")
    assert (whole["copies"], whole["unrecorded"], whole["unseen"]) == (sum(copies), 0, 0)


UVM = """\
import ctypes, os, subprocess, sys, time
HERE = os.path.dirname(os.path.abspath(__file__))
PYTHON = f"import time; kept = open({HERE!r} + '/uvm'); time.sleep(1.5)"
NATIVE = f"{HERE}/native.sh"
def use_cuda(): os.kept = open(os.path.join(HERE, "uvm"))  # as CUDA does when it starts
def fork(work, begin=os.fork):
    child = begin()
    if not child:
        work()
        time.sleep(1.5)
        os._exit(0)
    return child
"""
LIBC = "/libc"
"""What all processes have, in place of the driver's library."""
FAMILIES = {
    "forked by C code and by Python": ("fork fork", LIBC, """
for child in [fork(use_cuda, ctypes.CDLL(None).fork), fork(use_cuda)]: os.waitpid(child, 0)
"""),
    "a program that became another": ("exec", LIBC, "os.execv('/bin/sh', ['sh', NATIVE])"),
    "a forked child that became another program": ("native", LIBC,
        "os.waitpid(fork(lambda: os.execv('/bin/sh', ['sh', NATIVE])), 0)"),
    "isolated Python": ("python", LIBC, "subprocess.run([sys.executable, '-I', '-c', PYTHON])"),
    "a native child of a shell that is gone": ("native", LIBC,
        "subprocess.run(['sh', '-c', f'sh {NATIVE} & sleep 1']); time.sleep(1.5)"),
    "a native child that os.system starts": ("native", LIBC, "os.system(f'sh {NATIVE}; true')"),
    "one forked by C code before its parent used CUDA, and one after, which CUDA refuses": ("fork", LIBC, """
begin = ctypes.CDLL(None).fork
child = fork(lambda: (time.sleep(1.5), use_cuda()), begin)
time.sleep(1.5)
use_cuda()
os.waitpid(fork(lambda: None, begin), 0)
os.waitpid(child, 0)
"""),
    "a child that was only handed the file, and has no library of CUDA": ("", "libcuda.so",
        "use_cuda()\nos.set_inheritable(os.kept.fileno(), True)\nos.system('sleep 1.5')"),
    "children that use no CUDA": ("", LIBC, """
for child in [fork(lambda: None), fork(lambda: None, ctypes.CDLL(None).fork)]: os.waitpid(child, 0)
subprocess.run(["sleep", "1"])
subprocess.run([sys.executable, "-I", "-c", "import time; time.sleep(1)"])
subprocess.run([sys.executable, "-c", "pass"])
try: os.execvp("pinscope-no-such-program", ["none"])
except OSError: pass
"""),
}  # fmt: skip


@pytest.mark.parametrize("kind", FAMILIES)
def test_children_that_used_cuda_and_are_not_recorded_are_named_first_and_others_are_not(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    expected, library, text = FAMILIES[kind]
    (tmp_path / "uvm").touch()
    (tmp_path / "native.sh").write_text(f"exec 3<{tmp_path}/uvm; exec sleep 1.5")
    (tmp_path / "program.py").write_text(UVM + text)
    monkeypatch.setattr(traced_program, "UVM", str(tmp_path / "uvm"))
    monkeypatch.setattr(traced_program, "LIBRARY", library)
    code, document = traced(tmp_path, "--fail-on", "pageable=1GiB", tmp_path / "program.py")
    assert [row["child"] for row in rows(document, "unrecorded")] == expected.split()
    assert code == bool(expected), capfd.readouterr().err
    (whole,) = rows(document, "program")
    assert (whole["unrecorded"], whole["unseen"]) == (len(expected.split()), 0)
    findings = [finding for finding in document["run"]["findings"] if finding["rule"] == "unrecorded-children"]
    if expected:
        assert document["run"]["verdict"].startswith(f"{len(expected.split())} ")
        assert [finding["evidence"][0]["value"] for finding in findings] == [len(expected.split())]
    else:
        assert findings == []
        assert document["run"]["verdict"] == "The program copied nothing to or from a GPU."


BRIEF = "import os, subprocess\nfor _ in range(3): subprocess.run(['true'])\nos.system('true')\n"


@pytest.mark.parametrize(("options", "expected"), [((), 1), (("--allow-unseen",), 0)])
def test_children_too_brief_to_be_looked_at_are_counted_and_pass_a_check_only_if_that_is_allowed(
    options: tuple[str, ...], expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(traced_program.Children, "look", lambda _: None)
    (tmp_path / "program.py").write_text(BRIEF)
    code, document = traced(tmp_path, "--fail-on", "pageable", *options, tmp_path / "program.py")
    assert (code, rows(document, "program")[0]["unseen"]) == (expected, 4)
    assert document["run"]["verdict"] == "4 children ended before PinScope could look. No copy was recorded."
    assert ("--allow-unseen" in capfd.readouterr().err) == bool(expected)


def test_with_this_process_alone_nobody_looks_and_no_number_is_given(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(BRIEF)
    document = traced(tmp_path, "--this-process-only", tmp_path / "program.py")[1]
    assert "unseen" not in rows(document, "program")[0]
