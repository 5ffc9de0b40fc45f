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
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.data.fake_driver import Program, build, left_by, tracing
from tests.integration.processes import Holder, holder, in_the_background, variables

MIB = 2**20
LOCKED_BYTES = 8 * MIB


@pytest.fixture
def locker() -> Iterator[Holder]:
    """A process that has locked memory."""
    with holder() as started:
        started.tell(str(LOCKED_BYTES))
        yield started


def live(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pinscope", "live", "--no-gpu", *arguments]


def running(*arguments: str, **changes: str) -> AbstractContextManager[subprocess.Popen[str]]:
    return in_the_background("live", "--no-gpu", *arguments, **changes)


def test_json_goes_on_line_by_line_and_tells_what_happened(locker: Holder) -> None:
    with running("--json", "--interval", "0.1", "--pid", str(locker.pid)) as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        (holder,) = first["holders"]
        held = (holder["pid"], holder["locked_bytes"], holder["host_alloc_bytes"])
        assert held == (locker.pid, LOCKED_BYTES, 0)
        assert (first["format"], first["events"], first["growing"]) == (1, [], [])
        assert {"host", "devices", "unreadable", "findings"} <= first.keys()
        locker.tell("free")
        events: list[dict[str, Any]] = []
        while not events:
            document = json.loads(process.stdout.readline())
            events = document["events"]
        assert [(event["kind"], event["what"], event["change_bytes"]) for event in events] == [
            ("released", "locked", -LOCKED_BYTES)
        ]
        assert document["holders"] == []
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=20)
        assert (process.returncode, errors) == (0, "")
        assert all(json.loads(line)["format"] == 1 for line in rest.splitlines())


def test_without_a_terminal_tables_follow_each_other_in_plain_text_until_the_pipe_closes(locker: Holder) -> None:
    with running("--interval", "0.1") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        text = ""
        while text.count("Memory  ") < 3:
            text += process.stdout.readline()
        process.stdout.close()
        assert (process.wait(20), process.stderr.read()) == (0, "")
    assert "\x1b" not in text
    assert len(re.findall(rf"^ *{locker.pid} .* 8 MiB ", text, re.M)) >= 2


def test_a_pipe_that_closes_ends_it_quietly_however_rare_the_snapshots() -> None:
    with running("--json", "--interval", "3600") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        json.loads(process.stdout.readline())
        process.stdout.close()
        assert process.wait(20) == 0
        assert process.stderr.read() == ""


def test_a_terminal_gets_a_screen_that_changes_in_place_and_keeps_the_last_one(locker: Holder) -> None:
    columns = 60
    terminal, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with subprocess.Popen(
        live("--interval", "0.2", "--pid", str(locker.pid)), env=variables(TERM="xterm-256color", COLUMNS="", LINES=""),
        stdin=end, stdout=end, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        os.close(end)
        try:
            drawn = _until(terminal, lambda text: text.count("8 MiB") >= 2)
            locker.tell("free")
            drawn += _until(terminal, lambda text: "released" in text)
            process.send_signal(signal.SIGINT)
            drawn += _until(terminal, lambda _: False)
            assert process.wait(20) == 0
            assert process.stderr is not None
            assert process.stderr.read() == b""
        finally:
            process.kill()
    os.close(terminal)
    screen, _, left = drawn.rpartition("\x1b[?1049l")  # the alternate screen is left
    assert "\x1b[?1049h" in screen
    assert "\x1b[?25h" in drawn  # and the cursor is back
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", left).replace("\r", "")
    assert "Memory  " in plain
    assert max(map(len, plain.splitlines())) <= columns
    assert not re.search(r"^[KMGT]iB", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "\n", screen), re.M)


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
        chosen = ("--once", "--json", "--probe", "--interval", "1", "--pid", str(program.pid))
        with running(*chosen, LD_LIBRARY_PATH=str(library.parent)) as process:
            assert process.stderr is not None
            assert process.stderr.readline() == "pinscope: tracing registered memory for 1 s\n"
            program.does("register", program.does("map", MIB), MIB)
            out, errors = process.communicate(timeout=60)
            assert (process.returncode, errors) == (0, "")
        document = json.loads(out)
        (holder,) = document["holders"]
        assert (holder["pid"], holder["registered_bytes"], holder["registrations"]) == (program.pid, MIB, 1)
        assert document["probe"]["lost_events"] == 0
        assert left_by(process.pid, kernel) == set()


def test_a_terminal_that_closes_takes_the_probe_away(kernel: Path, library: Path) -> None:
    there = {"LD_LIBRARY_PATH": str(library.parent)}
    with Program(library), running("--json", "--probe", "--interval", "0.2", **there) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["probe"]["since"]
        assert left_by(process.pid, kernel)
        process.send_signal(signal.SIGHUP)
        process.communicate(timeout=30)
        assert process.returncode == 0
        assert left_by(process.pid, kernel) == set()
