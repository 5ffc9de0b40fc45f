"""The live view as one screen of a terminal with its keyboard; whatever happens, the terminal is as before."""

from __future__ import annotations

import codecs
import os
import re
import select
import shutil
import signal
import sys
import termios
import textwrap
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from types import FrameType
from typing import Any, Self

from pinscope.cli.live_view import KEYS, Choice, HolderTable, Line, View, event_text, finding_text, frame, press
from pinscope.cli.terminal import LOOK_SECONDS, Stop, lay_out, styled
from pinscope.live.reading import who
from pinscope.live.sampler import History, Sampler
from pinscope.records.snapshot import Snapshot
from pinscope.report.facts import Fact
from pinscope.report.snapshot_facts import holder_facts
from pinscope.text import one_line, visible

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"
"""The other screen, without a cursor; a line that is too long is cut."""
_LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"
_REST_SECONDS = 0.05
"""So soon the rest of a key's sequence comes; a lone Esc is the key itself."""
_SEQUENCE = re.compile(r"\x1b[\[O][0-9;?]*[ -/]*[@-~]|\x1b.|.", re.S)
_UNFINISHED = re.compile(r"\x1b(?:[\[O][0-9;?]*)?\Z")
_NAMES = {
    "\x1b": "escape",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\b": "backspace",
    "[A": "up",
    "[B": "down",
    "[D": "left",
    "[H": "home",
    "[1~": "home",
    "[F": "end",
    "[4~": "end",
    "[5~": "page up",
    "[6~": "page down",
}
"""What a key sends → its name. Of xterm's control sequences what follows Esc, with [ where it may be O as well."""


def key_names(text: str) -> list[str]:
    """The keys that were pressed: a name such as ``up`` or ``enter``, or the sign itself. Unknown keys are left out."""
    pressed = []
    for part in _SEQUENCE.findall(text):
        name = _NAMES.get(part[1:].replace("O", "[") if len(part) > 1 else part)
        if name is not None:
            pressed.append(name)
        elif len(part) == 1 and part.isprintable():
            pressed.append(part)
    return pressed


class Screen:
    """While it is entered, stdout is one screen and, if stdin is a terminal as well, keys are read without Enter.

    Ctrl-Z gives the terminal back until the program goes on.

    Attributes:
        has_keys: the keyboard can be read.
    """

    def __init__(self) -> None:
        self.has_keys = sys.stdin is not None and sys.stdin.isatty()
        self._keyboard = sys.stdin.fileno() if self.has_keys else -1
        self._modes: list[Any] = []
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        self._drawn: list[str] = []
        self._size = os.terminal_size((0, 0))
        self._stops = self._goes_on = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGTSTP, signal.SIGCONT):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._handle)
        try:
            self._take()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            self._give_back()
        finally:
            for number, handler in self._before.items():
                signal.signal(number, handler)

    @property
    def size(self) -> os.terminal_size:
        """Columns and lines, as the window is now; COLUMNS and LINES of a shell would not change with it."""
        with suppress(OSError, ValueError):
            size = os.get_terminal_size(sys.stdout.fileno())
            if size.columns > 0 and size.lines > 0:
                return size
        return shutil.get_terminal_size()

    @property
    def is_blank(self) -> bool:
        """Nothing is drawn, as after the program was suspended."""
        return not self._drawn

    def draw(self, lines: Sequence[str]) -> None:
        """Show these lines from the top; only what changed is written."""
        lines, size = list(lines[: self.size.lines]), self.size
        text = ""
        if size != self._size:
            text, self._drawn, self._size = "\x1b[2J", [], size
        for place in range(max(len(lines), len(self._drawn))):
            line = lines[place] if place < len(lines) else ""
            if place >= len(self._drawn) or self._drawn[place] != line:
                text += f"\x1b[{place + 1};1H\x1b[2K{line}"
        self._drawn = lines
        if text:
            _write(text)

    def keys(self, seconds: float) -> list[str]:
        """The keys pressed, as soon as there are any; none after ``seconds``, or once a suspended program goes on.

        Raises:
            OSError: the terminal is gone.
        """
        if self._stops:
            self._suspend()
        if self._goes_on:
            self._goes_on = False
            self._take()
            return []
        if not self.has_keys:
            time.sleep(seconds)
            return []
        text = self._read(seconds)
        while text and _UNFINISHED.search(text) and (rest := self._read(_REST_SECONDS)):
            text += rest
        return key_names(text)

    def _read(self, seconds: float) -> str:
        if not select.select([self._keyboard], [], [], seconds)[0]:
            return ""
        content = os.read(self._keyboard, 1024)
        if not content:  # the end of the file, as a terminal that hung up has it
            self.has_keys = False
        return self._decoder.decode(content)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """Only a note: a handler may run in the middle of a line."""
        del frame
        if number == signal.SIGTSTP:
            self._stops = True
        else:
            self._goes_on = True

    def _suspend(self) -> None:
        self._stops = False
        self._give_back()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTSTP)  # returns once the program goes on
        signal.signal(signal.SIGTSTP, self._handle)
        self._goes_on = True

    def _take(self) -> None:
        self._drawn, self._size = [], os.terminal_size((0, 0))
        if self.has_keys:
            modes = termios.tcgetattr(self._keyboard)
            self._modes = self._modes or modes
            changed = list(modes)
            changed[3] &= ~(termios.ICANON | termios.ECHO)
            changed[6] = [*changed[6]]
            changed[6][termios.VMIN], changed[6][termios.VTIME] = 1, 0
            termios.tcsetattr(self._keyboard, termios.TCSADRAIN, changed)
        _write(_ENTER)

    def _give_back(self) -> None:
        with suppress(OSError):  # the terminal is gone
            _write(_LEAVE)
        if self._modes:
            with suppress(termios.error):  # the terminal is gone
                termios.tcsetattr(self._keyboard, termios.TCSADRAIN, self._modes)
            self._modes = []


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


_INDENT = "  "


def scrolled(lines: Sequence[Line], scroll: int, height: int, hint: str) -> tuple[list[Line], int]:
    """As many of the lines as there is room for, above a line that says which; and how far down they really begin."""
    room = max(height - 1, 1)
    begin = max(0, min(scroll, len(lines) - room))
    visible_lines = list(lines[begin : begin + room])
    more = f" · ↑ ↓ lines {begin + 1} to {begin + len(visible_lines)} of {len(lines)}" if len(lines) > room else ""
    return [*visible_lines, *[Line("")] * (room - len(visible_lines)), Line(f"{hint}{more}", "dim")], begin


def keys_page(columns: Sequence[str], room: int) -> list[Line]:
    """Every key, and the number of each column."""
    numbered = " · ".join(f"{number} {name}" for number, name in enumerate(columns, 1))
    return [Line("Keys", "bold"), Line(""), *_facts(KEYS, room), Line(""), *_wrapped(f"Columns: {numbered}", room)]


def process_page(view: View, pid: int | None, room: int) -> list[Line]:
    """One process: who it is, what it holds, what that takes on each GPU, what was found and what happened."""
    holder = next((holder for holder in view.snapshot.holders if holder.pid == pid), None)
    events = [event for event in view.events if event.pid == pid]
    if holder is None:
        lines = _wrapped(f"Process {pid} holds no pinned memory any more, or has ended.", room, "bold")
    else:
        parent = [] if holder.parent_pid is None else [("Parent", f"pid {holder.parent_pid}")]
        facts = [*holder_facts(holder), *parent]
        lines = [Line(one_line(who(holder)), "bold"), Line(""), *_facts(facts, room)]
        named = [finding for finding in view.findings if who(holder) in f"{finding.title} {finding.detail}"]
        if named:
            lines += [Line(""), Line("Findings", "bold")]
        for finding in named:
            text, style = finding_text(finding)
            lines += _wrapped(text, room, style)
            lines += _wrapped(f"{_INDENT}→ {one_line(finding.advice)}", room)
    if events:
        lines += [Line(""), Line("What happened", "bold")]
        lines += [line for event in reversed(events) for line in _wrapped(event_text(event), room)]
    return lines


def _facts(facts: Sequence[Fact], room: int) -> list[Line]:
    laid = lay_out(("", ""), [(name, one_line(text)) for name, text in facts], (), room)
    return [Line(text) for text in laid.body]


def _wrapped(text: str, room: int, style: str = "") -> list[Line]:
    return [Line(part, style) for part in textwrap.wrap(text, max(room, 20), subsequent_indent=_INDENT)]


_BACK = "Esc back · p pause · q quit"


class LiveScreen:
    """What is shown, and what was chosen.

    Args:
        sampler: takes the snapshots.
        view_of: what is to be said of a snapshot and of those before it.
    """

    def __init__(self, sampler: Sampler, view_of: Callable[[Snapshot, History], View]) -> None:
        self._sampler = sampler
        self._view_of = view_of
        self._choice = Choice()
        self._history = sampler.history()
        self._seen: tuple[object, ...] = ()
        self.view: View | None = None
        """The last one; ``None`` before the first, and where the terminal is gone."""

    def run(self, stop: Stop) -> None:
        """Draw and listen, until somebody wants no more of it or the terminal is gone."""
        try:
            with Screen() as screen:
                while not stop.asked and not self._choice.ended:
                    self._draw(screen)
                    for key in screen.keys(LOOK_SECONDS):
                        self._press(key, screen.size.columns)
        except OSError:
            self.view = None  # nobody is there to see it

    def _press(self, key: str, room: int) -> None:
        columns: Sequence[str] = ()
        pids: Sequence[int] = ()
        if self.view is not None:
            table = HolderTable(replace(self.view, choice=self._choice), room)
            columns, pids = table.columns, [row.holder.pid for row in table.rows]
        self._choice = press(self._choice, key, columns, pids)

    def _draw(self, screen: Screen) -> None:
        """Make the picture anew where there is something new; the screen writes only the lines that changed."""
        if not self._choice.paused:
            self._history = self._sampler.history()
        history, size = self._history, screen.size
        latest = history.latest and history.latest.taken_at
        if self._seen[:2] != (latest, history.trouble) and history.latest is not None:
            self.view = self._view_of(history.latest, history)
        seen = (latest, history.trouble, self._choice, size, screen.has_keys)
        if seen != self._seen or screen.is_blank:
            self._seen = seen
            lines = self._lines(size.columns, size.lines, screen.has_keys)
            screen.draw([styled(visible(line.text), line.style) for line in lines])

    def _lines(self, room: int, height: int, with_keys: bool) -> list[Line]:
        if self._choice.page == "keys":
            columns = HolderTable(self.view, room).columns if self.view is not None else ()
            return self._scrolled(keys_page(columns, room), height)
        if self.view is None:
            return [Line(one_line(self._history.trouble or "Looking …"))]
        if self._choice.page == "process":
            return self._scrolled(process_page(self.view, self._choice.pid, room), height)
        return frame(replace(self.view, choice=self._choice if with_keys else None), room, height)

    def _scrolled(self, lines: Sequence[Line], height: int) -> list[Line]:
        visible_lines, begin = scrolled(lines, self._choice.scroll, height, _BACK)
        self._choice = replace(self._choice, scroll=begin)
        return visible_lines
