"""PinScope loaded once, on a disk that can be made to fail: each command runs in a fork of it, within milliseconds."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Outliving
from tests.faults.child import TREE

_SOURCE = TREE / "tests" / "data" / "faulty_disk.c"
_LIMIT_SECONDS = 60


@dataclass(frozen=True)
class Fault:
    """What happens to which call that changes a file; see tests/data/faulty_disk.c.

    Attributes:
        at: the number of the call, from 1 on; 0: none.
        does: ``kill``, ``tear``, or an error's name.
        lasts: all later calls fail as well.
        program: only in a program with this in its command line, which the command starts; else in the command.
    """

    at: int = 0
    does: str = "kill"
    lasts: bool = False
    program: str | None = None

    def __str__(self) -> str:
        words = f"{self.does} {'from' if self.lasts else 'at'} call {self.at}"
        return words + (f" of the {self.program.rpartition('.')[2]}" if self.program else "")


@dataclass(frozen=True)
class Ended:
    """How a command ended; ``calls`` are those that changed a file."""

    code: int
    stdout: str
    stderr: str
    calls: int

    @property
    def killed(self) -> bool:
        """By the fault, not by itself."""
        return self.code == -signal.SIGKILL


@dataclass
class Forks:
    """Commands in forks of one process."""

    process: subprocess.Popen[str]
    library: Path
    folder: Path
    ran: int = field(default=0)

    def run(self, *arguments: str, disk: Path, fault: Fault | None = None, **environment: str) -> Ended:
        """Run ``pinscope`` and wait for its end.

        Args:
            arguments: its command line.
            disk: the folder that is on the failing disk; working folder, database and temporary files are below it.
            fault: what fails.
            environment: added to that of the command.
        """
        fault = fault or Fault()
        counter = self.folder / "calls"
        counter.write_bytes(bytes(8))
        given = {
            "PINSCOPE_DATABASE": f"sqlite:///{disk}/db/runs.db", "TMPDIR": f"{disk}/tmp", "HOME": f"{disk}/home",
            "DISK_COUNT": str(counter), "DISK_AT": str(fault.at), "DISK_DOES": fault.does, "COLUMNS": "200",
            **environment,
        }  # fmt: skip
        if fault.program:
            given |= {"DISK_PROGRAM": fault.program, "DISK_FOLDERS": f"{disk}/"}
            given |= {"DISK_LASTS": "1"} if fault.lasts else {}
        order = {
            "arguments": arguments, "environment": given, "folder": str(disk), "output": str(self.folder),
            "fault": None if fault.program else [f"{disk}/", fault.at, fault.does, fault.lasts],
        }  # fmt: skip
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        code = int(self.process.stdout.readline())
        self.ran += 1
        return Ended(
            code, (self.folder / "stdout").read_text(errors="replace"),
            (self.folder / "stderr").read_text(errors="replace"), int.from_bytes(counter.read_bytes(), sys.byteorder),
        )  # fmt: skip


@pytest.fixture(scope="session")
def forks(outliving: Outliving) -> Iterator[Forks]:
    """The process that is forked, for all campaigns."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here, for a disk that fails")
    folder = Path(tempfile.mkdtemp(prefix="pinscope-forks-", dir="/tmp"))
    library = folder / "faulty_disk.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, _SOURCE, "-ldl"], check=True)
    environment = {**os.environ, "PYTHONPATH": str(TREE), "LD_PRELOAD": str(library), "OPENBLAS_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "tests.faults.forked"], env=environment, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    outliving.processes.add(process.pid)
    try:
        yield Forks(process, library, folder)
    finally:
        process.communicate()
        shutil.rmtree(folder)


def _serve() -> None:
    """The process itself: an order a line, answered with the exit code."""
    _load()
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if not child:
            _carry_out(order)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


def _load() -> None:
    """Import what commands import when they need it."""
    from pinscope.cli import main, outcome  # noqa: F401
    from pinscope.experiments import registry  # noqa: F401
    from pinscope.live import source  # noqa: F401
    from pinscope.planning import reading as plan_reading  # noqa: F401
    from pinscope.probes import environment
    from pinscope.report import facts, write  # noqa: F401
    from pinscope.runner import timeline  # noqa: F401
    from pinscope.store import recordings

    environment.capture_environment()
    recordings.recorded_runs()


def _carry_out(order: Mapping[str, Any]) -> None:
    from pinscope.cli.main import main

    os.setsid()
    signal.alarm(_LIMIT_SECONDS)
    os.environ.update(order["environment"])
    tempfile.tempdir = None
    os.chdir(order["folder"])
    for descriptor, path in ((0, os.devnull), (1, f"{order['output']}/stdout"), (2, f"{order['output']}/stderr")):
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.dup2(opened, descriptor)
        os.close(opened)
    disk = ctypes.CDLL(os.environ["LD_PRELOAD"])
    if order["fault"]:
        folders, at, does, lasts = order["fault"]
        disk.disk_count(order["environment"]["DISK_COUNT"].encode())
        disk.disk_set(folders.encode(), ctypes.c_long(at), does.encode(), ctypes.c_long(lasts))
    code = main(order["arguments"])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _serve()
