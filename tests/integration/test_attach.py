"""``pinscope trace --attach PID``: the recorder comes into a program that runs, records, and leaves it as it was."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pinscope.cli.main import main
from pinscope.probes.attachable import read_attachable
from pinscope.runner.debugger import hand_over
from pinscope.tracing.attached import start_code
from tests.data.fake_cupti import PRELUDE
from tests.integration.traces import Document, program, rows, traced
from tests.integration.traces import attached as events

pytestmark = [
    pytest.mark.usefixtures("_cupti"),
    pytest.mark.skipif(not shutil.which("gdb"), reason="no gdb here: apt install gdb"),
]

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
        [sys.executable, path, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
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


@pytest.mark.parametrize("times", [5, 20])
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
