"""PinScope as a child process, with what it took: seconds, peak memory, and whether a traceback came out."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile

TREE = Path(__file__).resolve().parents[2]
_BETWEEN = """
import os, signal, sys
child = os.posix_spawn(sys.argv[2], sys.argv[2:], os.environ)
_, status, usage = os.wait4(child, 0)
os.write(int(sys.argv[1]), b"%d %d" % (usage.ru_maxrss * 1024, os.waitstatus_to_exitcode(status)))
"""
"""A small process between: Linux counts what the process that starts another one held as that one's peak."""


@dataclass(frozen=True)
class Outcome:
    """How a command ended.

    Attributes:
        exit_code: its exit status; negative: the signal that ended it.
        seconds: until its end.
        peak_bytes: most resident memory of the command itself, its children not counted.
        timed_out: it was killed at its time limit.
    """

    arguments: Sequence[str]
    exit_code: int
    seconds: float
    peak_bytes: int
    stdout: str
    stderr: str
    timed_out: bool

    @property
    def traceback(self) -> bool:
        """Whether the user saw one."""
        return "Traceback (most recent call last)" in self.stdout + self.stderr

    @property
    def above_base(self) -> int:
        """Peak memory beyond that of a command that does nothing, in bytes."""
        return self.peak_bytes - base_bytes()


def run_pinscope(
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    time_limit: float = 120.0,
    stdin: bytes | None = None,
    prefix: Sequence[str] = (),
) -> Outcome:
    """Run ``pinscope`` with these arguments and wait for its end.

    Args:
        environment: added to that of the test.
        folder: working folder.
        time_limit: seconds after which the command and its process group are killed.
        prefix: a command that runs it, such as ``unshare``; memory is then that of the prefix's process.
    """
    command = [*prefix, sys.executable, "-P", "-m", "pinscope", *arguments]
    variables = {**os.environ, "PYTHONPATH": str(TREE), "COLUMNS": "200", **(environment or {})}
    with TemporaryFile() as out, TemporaryFile() as err, TemporaryFile() as given, TemporaryFile() as report:
        given.write(stdin or b"")
        given.seek(0)
        begun = time.monotonic()
        command[0] = shutil.which(command[0]) or command[0]
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _BETWEEN, str(report.fileno()), *command], stdin=given, stdout=out,
            stderr=err, cwd=folder, env=variables, start_new_session=True, pass_fds=(report.fileno(),),
        )  # fmt: skip
        late = threading.Event()

        def kill() -> None:
            late.set()
            os.killpg(process.pid, 9)

        timer = threading.Timer(time_limit, kill)
        timer.start()
        process.wait()
        seconds = time.monotonic() - begun
        timer.cancel()
        timer.join()
        for file in (out, err, report):
            file.seek(0)
        peak, code = map(int, (report.read() or b"0 -9").split())
        return Outcome(
            arguments, code, seconds, peak,
            out.read().decode(errors="replace"), err.read().decode(errors="replace"), late.is_set(),
        )  # fmt: skip


@cache
def base_bytes() -> int:
    """Peak memory of ``runs list`` in an empty database: it loads what others load, and does nothing."""
    with TemporaryDirectory() as folder:
        return run_pinscope(
            "runs", "list", environment={"PINSCOPE_DATABASE": f"sqlite:///{folder}/empty.sqlite"}
        ).peak_bytes
