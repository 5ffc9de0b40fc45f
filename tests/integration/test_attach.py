"""``pinscope trace --attach PID``: the recorder comes into a program that runs, records, and leaves it as it was."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pinscope.cli.main import main
from pinscope.probes.attachable import read_attachable
from pinscope.runner import attach
from pinscope.runner.injection import hand_over
from pinscope.tracing.attached import start_code
from tests.integration.traces import Document, program, rows, traced
from tests.integration.traces import attached as events

pytestmark = pytest.mark.usefixtures("_cupti")
YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
may_attach = pytest.mark.skipif(
    bool(os.geteuid() and YAMA.exists() and YAMA.read_text() != "0\n"), reason="kernel.yama.ptrace_scope is not 0"
)

LOOP = """
import hashlib
def state():
    folder = os.path.dirname(ctypes.__file__)
    return [sys.path, sorted(name for name in sys.modules if "pinscope" in name), sorted(os.environ), str(os._exit),
            str(sys.unraisablehook), len(os.listdir("/proc/self/task")), sorted(os.listdir("/proc/self/fd")),
            sorted(vars(sys.modules["__main__"]).keys() - {"step", "sum", "done"}), cuda.fake_asked()]
sum, done = hashlib.sha256(), open(sys.argv[1], "a", buffering=1)
def work(step):
    copy(1 << 20, PAGEABLE, DEVICE); kernel(100_000)
    sum.update(b"%d" % step); done.write(f"{time.time_ns()}\\n")
step = 0
print(json.dumps(state()) if (json := __import__("json")) else "", flush=True)
while step < 50 or not os.path.exists(sys.argv[2]):
    work(step); step += 1; time.sleep(0.002)
print(json.dumps(state()), flush=True)
print(step, sum.hexdigest())
"""


@contextmanager
def running(folder: Path, text: str, *arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    """A program that has written its first line, which is in ``args``."""
    path = program(folder, text)
    with subprocess.Popen(
        [sys.executable, path, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": ""},
    ) as process:  # fmt: skip
        try:
            process.first = process.stdout.readline()  # type: ignore[attr-defined, union-attr]
            yield process
        finally:
            with suppress(ProcessLookupError):
                process.kill()


def attached(tmp_path: Path, *arguments: str | int, seconds: float = 0.3) -> tuple[int, Document]:
    return traced(tmp_path, "--for", f"{seconds}s", *map(str, arguments))


@may_attach
@pytest.mark.parametrize("times", [2, 20])
def test_figures_are_those_of_a_whole_trace_and_the_program_is_as_before(times: int, tmp_path: Path) -> None:
    moments, stop = tmp_path / "moments", tmp_path / "stop"
    stop.touch()
    whole = rows(traced(tmp_path, program(tmp_path, LOOP), tmp_path / "others", stop)[1], "site")
    stop.unlink()
    with running(tmp_path, LOOP, moments, stop) as process:
        found = [attached(tmp_path, "--attach", process.pid) for _ in range(times)]
        stop.touch()
        output, _ = process.communicate()
    assert process.returncode == 0, output
    after, result = output.splitlines()
    before = json.loads(process.first)  # type: ignore[attr-defined]
    assert json.loads(after) == [before[0], sorted([*before[1], "_pinscope_attached"]), *before[2:]]
    alone = subprocess.run(
        [sys.executable, "-c", "import hashlib, sys; sum = hashlib.sha256(); count = int(sys.argv[1])\n"
         "for step in range(count): sum.update(b'%d' % step)\nprint(count, sum.hexdigest())", result.split()[0]],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert result + "\n" == alone.stdout
    steps = np.loadtxt(moments, np.int64)
    for code, document in found:
        (site,) = rows(document, "site")
        assert (code, document["run"]["notes"], document["run"]["params"]["attached"]) == (0, [], [process.pid])
        assert (site["source_line"], site["function"]) == (whole[0]["source_line"], "work")
        for name in ("bytes", "copy_seconds"):
            assert site[name] / site["count"] == pytest.approx(whole[0][name] / whole[0]["count"], rel=0.1)
        assert misses_none(np.asarray([row["at_ns"] for row in events(document, "copies")]), steps)


def misses_none(copies: NDArray[np.int64], steps: NDArray[np.int64]) -> bool:
    """Whether the copies have the rhythm of as many steps in a row: a step takes 2 ms, and each was noted."""
    windows = np.lib.stride_tricks.sliding_window_view(steps, len(copies))
    behind = windows - copies
    behind -= np.median(behind, axis=1, keepdims=True).astype(np.int64)
    return bool(len(copies) > 20 and np.median(np.abs(behind), axis=1).min() < 1e6)


STEPS = """
print("runs", flush=True)
while not os.path.exists(sys.argv[1]): copy(1 << 20, PAGEABLE, DEVICE); time.sleep(0.002)
print("ends as ever", flush=True)
"""


SEIZES = """
import ctypes, sys, time
print(ctypes.CDLL(None).ptrace(ctypes.c_long(0x4206), ctypes.c_long(int(sys.argv[1])), None, None), flush=True)
time.sleep(60)
"""
MIXED = """
import numpy as np, signal, threading
calls, alarms, total, numbers = [], [], 0.0, np.arange(4096.0)
signal.signal(signal.SIGALRM, lambda *_: alarms.append(1))
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
reader, writer = os.pipe()
other = threading.Thread(target=lambda: [time.sleep(0.001) or sum(range(5000)) for _ in range(300)])
other.start()
print("runs", flush=True)
while len(calls) < 50:
    assert float((numbers * 3.0 + 1.0).sum()) == 25163776.0  # in vector registers
    assert bytes(range(256)) * 64 == bytearray(bytes(range(256)) * 64)
    begun = time.monotonic(); time.sleep(0.0005); assert time.monotonic() - begun >= 0.0005
    os.write(writer, b"x"); assert os.read(reader, 8) == b"x"
other.join()
signal.setitimer(signal.ITIMER_REAL, 0)
print("ends", len(calls), len(alarms) > 50)
"""


def said(capfd: pytest.CaptureFixture[str]) -> str:
    """The one line that was written."""
    (line,) = capfd.readouterr().err.splitlines()
    return line


@may_attach
def test_what_cannot_be_attached_to_is_refused_by_one_line_and_runs_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = tmp_path / "stop"

    def refused(pid: int) -> str:
        assert main(["trace", "--attach", str(pid), "--for", "100ms"]) == 2
        return said(capfd)

    with subprocess.Popen(["sleep", "60"]) as other:
        assert "it is no Python" in refused(other.pid)
        other.kill()
        os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
        assert "it has ended" in refused(other.pid)
    with running(tmp_path, STEPS, stop) as process:
        os.kill(process.pid, signal.SIGSTOP)
        while "T" not in Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]:
            time.sleep(0.01)
        assert "it is stopped" in refused(process.pid)
        os.kill(process.pid, signal.SIGCONT)
        with subprocess.Popen(
            [sys.executable, "-c", SEIZES, str(process.pid)], stdout=subprocess.PIPE, text=True
        ) as debugger:
            assert debugger.stdout is not None
            assert debugger.stdout.readline() == "0\n"
            assert f"a debugger is attached to it already, process {debugger.pid}" in refused(process.pid)
            debugger.kill()
        monkeypatch.setattr(platform, "machine", lambda: "aarch64")
        assert "to attach on aarch64, Python 3.14 or newer is needed" in refused(process.pid)
        stop.touch()
        assert (process.communicate()[0], process.returncode) == ("ends as ever\n", 0)


@may_attach
def test_a_program_that_is_stopped_fifty_times_computes_and_waits_as_ever(tmp_path: Path) -> None:
    give_back = "import ctypes; ctypes.CDLL(None).munmap(ctypes.c_void_p({0[0]}), {0[1]}); calls.append(1)"
    with running(tmp_path, MIXED) as process:
        target = read_attachable(process.pid).value
        assert target is not None
        for _ in range(50):
            hand_over(target, tmp_path, give_back.format)
        assert (process.communicate()[0], process.returncode) == ("ends 50 True\n", 0)


@may_attach
def test_a_process_that_has_the_number_of_another_one_is_left_alone(tmp_path: Path) -> None:
    stop, spool = tmp_path / "stop", tmp_path / "spool"
    spool.mkdir(0o700)
    with running(tmp_path, STEPS, stop) as process:
        target = read_attachable(process.pid).value
        assert target is not None
        given = {"folder": f"0:0:{spool}", "library": "", "started": target.started - 1, "is_first": True}
        hand_over(target, spool, lambda memory: start_code({**given, "memory": memory}))
        time.sleep(0.2)
        stop.touch()
        assert (process.communicate()[0], process.returncode) == ("ends as ever\n", 0)
    assert list(spool.iterdir()) == []


@may_attach
def test_a_second_trace_of_a_program_is_refused_and_the_first_goes_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    stop = tmp_path / "stop"
    with running(tmp_path, STEPS, stop) as process:
        command = [sys.executable, "-m", "pinscope", "trace", "--attach", str(process.pid), "--for", "20s"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as first:
            assert "recording for 20 s" in first.stderr.readline()  # type: ignore[union-attr]
            assert main(["trace", "--attach", str(process.pid)]) == 2
            assert f"process {process.pid}: it is traced already" in said(capfd)
            first.send_signal(signal.SIGINT)
            assert "train.py" in first.communicate()[1]
            assert first.returncode == 0
        stop.touch()
        assert (process.communicate()[0], process.returncode) == ("ends as ever\n", 0)


ENDS = """
print("runs", flush=True)
begun = time.time()
while not cuda.fake_asked() or time.time() < begun + 0.3:
    if not cuda.fake_asked(): begun = time.time()
    copy(1 << 20, PAGEABLE, DEVICE); time.sleep(0.002)
"""


@may_attach
@pytest.mark.parametrize("how", ["sys.exit(3)", "os.kill(os.getpid(), 9)", "os.execlp('sleep', 'sleep', '60')"])
def test_a_program_that_ends_meanwhile_is_kept_until_then(how: str, tmp_path: Path) -> None:
    with running(tmp_path, ENDS + how) as process:
        code, document = attached(tmp_path, "--attach", process.pid, seconds=30)
        process.kill()
        assert process.wait() == (3 if "exit" in how else -9)
    ended = f"Process {process.pid} ended, or became another program, while it was recorded."
    assert (code, document["run"]["notes"]) == (0, [ended])
    assert rows(document, "site")[0]["count"] > 10


CHILDREN = """
import multiprocessing
def work():
    ctypes.CDLL(sys.argv[2])
    print("runs", flush=True)
    while not os.path.exists(sys.argv[1]): copy(1 << 20, PAGEABLE, DEVICE); time.sleep(0.002)
if __name__ == "__main__":
    ranks = [multiprocessing.get_context("spawn").Process(target=work) for _ in range(2)]
    for number, rank in enumerate(ranks): os.environ["RANK"] = str(number); rank.start()
    for rank in ranks: rank.join()
    print("ends as ever")
"""


@may_attach
def test_the_children_of_a_launcher_are_recorded_together(tmp_path: Path, library: Path) -> None:
    stop, driver = tmp_path / "stop", tmp_path / "libcuda.so.1"
    shutil.copy(library, driver)
    with running(tmp_path, CHILDREN, stop, driver) as process:
        assert process.stdout is not None
        process.stdout.readline()
        code, document = attached(tmp_path, "--attach", process.pid, "--attach-children")
        stop.touch()
        assert (process.communicate()[0], process.returncode) == ("ends as ever\n", 0)
    assert (code, document["run"]["notes"]) == (0, [])
    assert {row["rank"] for row in rows(document, "process")} == {0, 1}
    assert {row["process"] for row in rows(document, "site")} == set(document["run"]["params"]["attached"])


LEFT = """
print("runs", flush=True)
def step(): copy(1 << 20, PAGEABLE, DEVICE); time.sleep(0.002)
while not cuda.fake_asked(): step()
while cuda.fake_asked(): step()
while sorted(os.listdir("/proc/self/task")) != [str(os.getpid())]: step()
print([name for name in sys.modules if name.startswith(("pinscope", "_pinscope"))])
"""


@may_attach
def test_where_pinscope_is_killed_the_recorder_leaves_the_program_by_itself(tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    with running(tmp_path, LEFT) as process:
        command = [sys.executable, "-m", "pinscope", "trace", "--attach", str(process.pid), "--for", "1m"]
        with subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(temporary)}
        ) as tool:
            assert "recording for 60 s" in tool.stderr.readline()  # type: ignore[union-attr]
            tool.kill()
        assert (process.communicate()[0], process.returncode) == ("['_pinscope_attached']\n", 0)
    assert list(temporary.iterdir()) == []


@may_attach
def test_a_program_that_waits_in_a_call_is_left_as_it_is(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attach, "START_SECONDS", 0.3)
    text = """
print("runs", flush=True)
sys.stdin.readline()
for _ in range(100): time.sleep(0.001)
print([name for name in sys.modules if name.startswith("pinscope.")])
"""
    with running(tmp_path, text) as process:
        assert main(["trace", "--attach", str(process.pid)]) == 2
        assert "its main thread ran no Python code within 0.3 s" in said(capfd)
        assert (process.communicate("\n")[0], process.returncode) == ("[]\n", 0)


TAKES_SCRIPTS = """
signal.signal(signal.SIGUSR1, lambda *_: exec(open(sys.argv[2]).read(), {}))
"""


def test_a_python_that_takes_scripts_is_given_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of Python 3.14, whose main thread runs the script where it stands next between two instructions."""
    stop, script = tmp_path / "stop", tmp_path / "script"

    def remote_exec(pid: int, path: str) -> None:
        shutil.copy(path, script)
        os.kill(pid, signal.SIGUSR1)

    monkeypatch.setattr(sys, "remote_exec", remote_exec, raising=False)
    with running(tmp_path, TAKES_SCRIPTS + STEPS, stop, script) as process:
        code, document = attached(tmp_path, "--attach", process.pid)
        stop.touch()
        assert (process.communicate()[0], process.returncode) == ("ends as ever\n", 0)
    assert (code, document["run"]["notes"]) == (0, [])
    assert rows(document, "site")[0]["count"] > 10
