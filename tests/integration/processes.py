"""Commands of PinScope in processes of their own."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.data.hangups import hear_hangups

ROOT = Path(__file__).parents[2]


def variables(**changes: str) -> dict[str, str]:
    """The environment in which this source is found, with some variables replaced."""
    return {**os.environ, "PYTHONPATH": str(ROOT), **changes}


@contextmanager
def in_the_background(*arguments: str, **changes: str) -> Iterator[subprocess.Popen[str]]:
    """A command that goes on."""
    with subprocess.Popen(
        [sys.executable, "-m", "pinscope", *arguments], env=variables(**changes), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=hear_hangups,  # noqa: PLW1509 - no other thread runs
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def drawn_in_a_terminal(*arguments: str) -> tuple[bytes, bytes]:
    """What a command that ends well writes to stderr, which is a terminal, and to stdout, which is a pipe."""
    terminal, end = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "pinscope", *arguments], env=variables(TERM="xterm-256color"),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=end,
    ) as process:  # fmt: skip
        os.close(end)
        drawn = b""
        while True:
            try:
                drawn += (part := os.read(terminal, 4096))
            except OSError:  # the other end is closed
                break
            if not part:
                break
        assert process.stdout is not None
        facts = process.stdout.read()
        assert process.wait(60) == 0
    os.close(terminal)
    return drawn, facts


HOLD = """
import ctypes, mmap, sys, time
libc, kept = ctypes.CDLL(None, use_errno=True), []
for line in sys.stdin:
    if line == "free\\n":
        for area in kept:
            libc.munlock(area, len(area))
        kept.clear()
    else:
        area = (ctypes.c_char * int(line)).from_buffer(mmap.mmap(-1, int(line)))
        assert libc.mlock(area, len(area)) == 0
        kept.append(area)
    print("done", flush=True)
"""
"""Locks as many bytes as a line of its input says, or frees all."""


class Holder(NamedTuple):
    """A process that locks memory: its pid, and what tells it what to do."""

    pid: int
    tell: Callable[[str], None]


@contextmanager
def holder() -> Iterator[Holder]:
    """A process of another program that runs :data:`HOLD`."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:

        def tell(line: str) -> None:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
            assert process.stdout.readline() == "done\n"

        try:
            yield Holder(process.pid, tell)
        finally:
            process.kill()
