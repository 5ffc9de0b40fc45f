"""``pinscope live`` as people run it: real processes that lock memory, a real terminal, pipes that close, signals."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.data.fake_driver import Program, left_by
from tests.integration.processes import Holder, holder, in_the_background

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


def test_the_probe_tells_what_a_program_registers_and_copies_meanwhile(kernel: Path, driver: Path) -> None:
    with Program(driver) as program:
        chosen = ("--once", "--json", "--probe", "--interval", "1", "--pid", str(program.pid))
        with running(*chosen, LD_LIBRARY_PATH=str(driver.parent)) as process:
            assert process.stderr is not None
            assert process.stderr.readline() == "pinscope: tracing registered memory for 1 s\n"
            memory = program.does("map", MIB)
            program.does("register", memory, MIB)
            program.does("h2d", program.does("gpu", MIB), memory, 5000)
            out, errors = process.communicate(timeout=60)
            assert (process.returncode, errors) == (0, "")
        document = json.loads(out)
        (holder,) = document["holders"]
        assert (holder["pid"], holder["registered_bytes"], holder["registrations"]) == (program.pid, MIB, 1)
        assert [holder["copies"][key] for key in ("to_gpu_bytes", "pinned_bytes", "from_gpu_bytes")] == [5000, 5000, 0]
        assert document["probe"]["lost_events"] == 0
        assert left_by(process.pid, kernel) == set()


def test_a_terminal_that_closes_takes_the_probe_away(kernel: Path, driver: Path) -> None:
    there = {"LD_LIBRARY_PATH": str(driver.parent)}
    with Program(driver), running("--json", "--probe", "--interval", "0.2", **there) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["probe"]["since"]
        assert left_by(process.pid, kernel)
        process.send_signal(signal.SIGHUP)
        process.communicate(timeout=30)
        assert process.returncode == 0
        assert left_by(process.pid, kernel) == set()
