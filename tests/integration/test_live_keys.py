"""``pinscope live`` driven by its keys in a real terminal: what each shows, and that the terminal is given back."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import pyte
import pytest

from tests.data.live_stage import GIB, HELD, pin_more, set_up

ROOT = Path(__file__).parents[2]
LIMIT_SECONDS = 60.0
LEFT = ("\x1b[?25h", "\x1b[?1049l")
"""The cursor is back, and what was on the screen before."""
DOWN = "\x1bOB"


class Screen(pyte.Screen):
    """With two things more that xterm can do."""

    def scroll_up(self, lines: int = 1) -> None:
        at, self.cursor.y = self.cursor.y, (self.margins or (0, self.lines - 1))[1]
        for _ in range(lines):
            self.index()
        self.cursor.y = at

    def repeat(self, count: int = 1) -> None:
        self.draw(self.buffer[self.cursor.y][self.cursor.x - 1].data * count)


class Stream(pyte.ByteStream):
    csi: ClassVar = {**pyte.ByteStream.csi, "S": "scroll_up", "b": "repeat"}
    events = pyte.ByteStream.events | {"scroll_up", "repeat"}


class Terminal:
    """The other side of a pseudo-terminal: presses keys, and knows what a person would see."""

    def __init__(self, number: int, columns: int, lines: int) -> None:
        self._number = number
        self._screen = Screen(columns, lines)
        self._stream = Stream(self._screen)
        self.raw = ""
        self.resize(columns, lines)

    def resize(self, columns: int, lines: int) -> None:
        self._screen.resize(lines, columns)
        fcntl.ioctl(self._number, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def press(self, keys: str) -> None:
        os.write(self._number, keys.encode())

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self._screen.display]

    def rows(self) -> list[str]:
        """Programs in the table, from top to bottom."""
        return [found[1] for line in self.lines if (found := re.match(rf" *\d+ +root .*? ({'|'.join(HELD)})\b", line))]

    def shows(self, *patterns: str, rows: list[str] | None = None) -> None:
        """Wait until each of the patterns is on the screen, and the table has these rows."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while not self._has(patterns, rows):
            left = deadline - time.monotonic()
            assert left > 0, f"no {patterns} {rows} in\n" + "\n".join(self.lines)
            self._read(left)

    def _has(self, patterns: tuple[str, ...], rows: list[str] | None) -> bool:
        text = "\n".join(self.lines)
        return all(re.search(one, text, re.M) for one in patterns) and rows in (None, self.rows())

    def _read(self, seconds: float) -> None:
        if select.select([self._number], [], [], seconds)[0]:
            content = os.read(self._number, 65536)
            self.raw += content.decode(errors="replace")
            self._stream.feed(content)

    def has_written(self, *parts: str) -> None:
        """Wait until all of these were written, one after the other."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while True:
            rest = " ".join(self.raw.split())
            for part in parts:
                _, found, rest = rest.partition(part)
            if found:
                return
            left = deadline - time.monotonic()
            assert left > 0, self.raw[-2000:]
            self._read(left)


@contextmanager
def shell(folder: Path, script: str, columns: int = 100, lines: int = 30) -> Iterator[Terminal]:
    """A shell with job control in a terminal of its own; ``$live`` is the command."""
    ours, theirs = pty.openpty()
    terminal = Terminal(ours, columns, lines)
    variables = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    live = f"{sys.executable} -m tests.data.live_stage {folder} --interval 0.1"
    process = subprocess.Popen(
        ["bash", "-mc", script], cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        env=variables | {"PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "live": live, "LC_ALL": "C.UTF-8"},
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - no other thread runs
    )  # fmt: skip
    os.close(theirs)
    try:
        yield terminal
        assert process.wait(LIMIT_SECONDS) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)


@pytest.fixture
def host(tmp_path: Path) -> Path:
    set_up(tmp_path)
    return tmp_path


def test_live_is_steered_by_keys_and_gives_the_terminal_back(host: Path) -> None:
    modes = "stty -a | grep -oE -- '-?(icanon|echo) '"
    script = f"$live; echo suspended; {modes}; fg >/dev/null; echo code $?; {modes}; echo over"
    with shell(host, script) as terminal:
        terminal.shows("^Pinned +17 GiB", r"^\? keys · q quit", rows=["train", "loader", "serve", "index"])

        terminal.press("1")
        terminal.shows(r"^ *pid ↑ ", rows=["train", "serve", "loader", "index"])
        terminal.press("1")
        terminal.shows(r"^ *pid ↓ ", rows=["index", "loader", "serve", "train"])
        terminal.press("33")
        terminal.shows(r"cudaHostAlloc ↑", rows=["index", "serve", "loader", "train"])
        terminal.press("0")

        terminal.press("/loadx\x7f")
        terminal.shows("^Show only: load▏", rows=["loader"])
        terminal.press("\n")
        terminal.shows("^only “load” · ", rows=["loader"])
        terminal.press("\x1b")
        terminal.shows(r"^\? keys · q quit · Enter details · ", rows=["train", "loader", "serve", "index"])
        terminal.press(f"{DOWN}{DOWN}\n")
        terminal.shows(r"^serve \(pid 1001\)$", "^cudaHostAlloc +3 GiB")
        terminal.press("\x1b")
        terminal.shows(r"^\? keys · q quit · Enter details · ", rows=["train", "loader", "serve", "index"])

        terminal.press("p")
        terminal.shows("PAUSED")
        pin_more(host, GIB)
        terminal.press("?")
        terminal.shows("^Keys$", "^Columns: 1 pid · 2 user · 3 cudaHostAlloc")
        terminal.press("?")
        terminal.shows("PAUSED", "^Pinned +17 GiB")
        terminal.press("p")
        terminal.shows("^Pinned +18 GiB", "^ *pid +user .* program")

        terminal.resize(50, 24)
        terminal.shows(r"^\? keys · q quit", r" train$", rows=["train", "loader", "serve", "index"])

        terminal.press("\x1a")
        terminal.has_written(*LEFT, "suspended icanon echo", "\x1b[?1049h")
        terminal.shows("^Pinned +18 GiB", r"^\? keys · q quit")
        terminal.press("q")
        terminal.has_written(*LEFT, "suspended", *LEFT, "code 0 icanon echo over")
