"""``pinscope live`` as people run it: real processes that lock memory, a real terminal, pipes that close, signals."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.data.fake_driver import Program, build, left_by, tracing
from tests.data.hangups import hear_hangups

ROOT = Path(__file__).parents[2]
MIB = 2**20
LOCKED_BYTES = 8 * MIB
LOCKS = """
import ctypes, mmap, sys
libc = ctypes.CDLL(None, use_errno=True)
memory = mmap.mmap(-1, int(sys.argv[1]))
address = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
for line in sys.stdin:
    call = libc.mlock if line == "lock\\n" else libc.munlock
    assert call(address, ctypes.c_size_t(len(memory))) == 0
    print("done", flush=True)
"""


class Locker:
    """A process that locks memory and unlocks it when told to."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.pid = process.pid
        self._process = process

    def tell(self, what: str) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "done\n"


@pytest.fixture
def locker() -> Iterator[Locker]:
    command = [sys.executable, "-c", LOCKS, str(LOCKED_BYTES)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        locker = Locker(process)
        locker.tell("lock")
        yield locker
        process.communicate(timeout=10)


def live(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pinscope", "live", "--no-gpu", *arguments]


def variables(**changes: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **changes}


@contextmanager
def running(*arguments: str, **changes: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        live(*arguments), env=variables(**changes), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, preexec_fn=hear_hangups,  # noqa: PLW1509 - no other thread runs
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def once(*arguments: str) -> str:
    done = subprocess.run(
        live("--once", *arguments), env=variables(), capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == ""
    return done.stdout


def test_a_process_that_locks_memory_is_told_and_gone_once_it_unlocks(locker: Locker) -> None:
    document = json.loads(once("--json", "--pid", str(locker.pid)))
    (one,) = document["holders"]
    assert (one["pid"], one["locked_bytes"], one["host_alloc_bytes"]) == (locker.pid, LOCKED_BYTES, 0)
    assert document["format"] == 1
    assert {"host", "devices", "unreadable", "findings"} <= document.keys()
    assert re.search(rf"^ *{locker.pid} .* 8 MiB ", once(), re.M)
    locker.tell("unlock")
    assert json.loads(once("--json", "--pid", str(locker.pid)))["holders"] == []


def test_json_goes_on_line_by_line_and_tells_what_happened(locker: Locker) -> None:
    with running("--json", "--interval", "0.1", "--pid", str(locker.pid)) as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        assert [one["locked_bytes"] for one in first["holders"]] == [LOCKED_BYTES]
        assert (first["events"], first["growing"]) == ([], [])
        locker.tell("unlock")
        events: list[dict[str, Any]] = []
        while not events:
            events = json.loads(process.stdout.readline())["events"]
        assert [(one["kind"], one["what"], one["change_bytes"]) for one in events] == [
            ("released", "locked", -LOCKED_BYTES)
        ]
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=20)
        assert (process.returncode, errors) == (0, "")
        assert all(json.loads(line)["format"] == 1 for line in rest.splitlines())


def test_without_a_terminal_tables_follow_each_other_in_plain_text(locker: Locker) -> None:
    with running("--interval", "0.1") as process:
        assert process.stdout is not None
        shown = ""
        while shown.count("Memory  ") < 3:
            shown += process.stdout.readline()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
        assert process.returncode == 0
    assert "\x1b" not in shown
    assert shown.count(f"{locker.pid} ") >= 2


@pytest.mark.parametrize("interval", ["0.1", "3600"])
def test_a_pipe_that_closes_ends_it_quietly(interval: str) -> None:
    with running("--json", "--interval", interval) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        json.loads(process.stdout.readline())
        process.stdout.close()
        assert process.wait(20) == 0
        assert process.stderr.read() == ""


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_a_terminal_gets_a_screen_that_changes_in_place_and_keeps_the_last_one(locker: Locker, columns: int) -> None:
    terminal, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with subprocess.Popen(
        live("--interval", "0.2", "--pid", str(locker.pid)), env=variables(TERM="xterm-256color", COLUMNS="", LINES=""),
        stdin=end, stdout=end, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        os.close(end)
        drawn = _until(terminal, lambda text: text.count("8 MiB") >= 2)
        locker.tell("unlock")
        drawn += _until(terminal, lambda text: "released" in text)
        process.send_signal(signal.SIGINT)
        drawn += _until(terminal, lambda _: False)
        assert process.wait(20) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""
    os.close(terminal)
    screen, _, left = drawn.rpartition("\x1b[?1049l")  # the alternate screen is left
    assert "\x1b[?1049h" in screen
    assert "\x1b[?25h" in drawn  # and the cursor is back
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", left).replace("\r", "")
    assert "Memory  " in plain
    assert max(map(len, plain.splitlines())) <= columns
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "\n", screen)
    assert not re.search(r"^[KMGT]iB", shown, re.M)


def _until(terminal: int, enough: Any, seconds: float = 20.0) -> str:
    """What is drawn until it is enough, or the other end is closed."""
    drawn, deadline = b"", time.monotonic() + seconds
    while not enough(drawn.decode(errors="replace")):
        assert time.monotonic() < deadline, drawn.decode(errors="replace")
        try:
            drawn += os.read(terminal, 4096)
        except OSError:
            break
    return drawn.decode(errors="replace")


def test_a_process_that_is_not_there_is_refused() -> None:
    highest = 2**22 + 1  # beyond the kernel's largest pid
    done = subprocess.run(
        live("--pid", str(highest)), env=variables(), capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"pinscope: there is no process {highest}\n"


@pytest.fixture(scope="module")
def kernel() -> Iterator[Path]:
    """Where the kernel's tracing is; skips where there is none."""
    with tracing() as folder:
        yield folder


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("driver"))


def test_the_probe_tells_what_a_program_registers_meanwhile(kernel: Path, library: Path) -> None:
    with Program(library) as program:
        chosen = ("--once", "--json", "--probe", "--interval", "2", "--pid", str(program.pid))
        with running(*chosen, LD_LIBRARY_PATH=str(library.parent)) as process:
            assert process.stderr is not None
            assert process.stderr.readline() == "pinscope: tracing registered memory for 2 s\n"
            program.does("register", program.does("map", MIB), MIB)
            out, errors = process.communicate(timeout=60)
            assert (process.returncode, errors) == (0, "")
        document = json.loads(out)
        (one,) = document["holders"]
        assert (one["pid"], one["registered_bytes"], one["registrations"]) == (program.pid, MIB, 1)
        assert document["probe"]["lost_events"] == 0
        assert left_by(process.pid, kernel) == set()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_takes_the_probe_away(kernel: Path, library: Path, number: signal.Signals) -> None:
    there = {"LD_LIBRARY_PATH": str(library.parent)}
    with Program(library), running("--json", "--probe", "--interval", "0.2", **there) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["probe"]["since"]
        assert left_by(process.pid, kernel)
        process.send_signal(number)
        process.communicate(timeout=30)
        assert process.returncode == 0
        assert left_by(process.pid, kernel) == set()
