"""PinScope as a child process, with what it took: seconds, peak memory, and whether a traceback came out."""

from __future__ import annotations

import os
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
    with TemporaryFile() as out, TemporaryFile() as err, TemporaryFile() as given:
        given.write(stdin or b"")
        given.seek(0)
        begun = time.monotonic()
        process = subprocess.Popen(
            command, stdin=given, stdout=out, stderr=err, cwd=folder, env=variables, start_new_session=True
        )
        late = threading.Event()

        def kill() -> None:
            late.set()
            os.killpg(process.pid, 9)

        timer = threading.Timer(time_limit, kill)
        timer.start()
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.monotonic() - begun
        timer.cancel()
        timer.join()
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        return Outcome(
            arguments, process.returncode, seconds, usage.ru_maxrss * 1024,
            out.read().decode(errors="replace"), err.read().decode(errors="replace"), late.is_set(),
        )  # fmt: skip


@cache
def base_bytes() -> int:
    """Peak memory of ``runs list`` in an empty database: it loads what others load, and does nothing."""
    with TemporaryDirectory() as folder:
        return run_pinscope(
            "runs", "list", environment={"PINSCOPE_DATABASE": f"sqlite:///{folder}/empty.sqlite"}
        ).peak_bytes
