"""A terminal as one screen that is drawn in place, and its keyboard; whatever happens, the terminal is as before."""

from __future__ import annotations

import codecs
import os
import re
import select
import shutil
import signal
import sys
import termios
import time
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

from pinscope.cli.terminal import SEVERITY_STYLES, print_line, print_prose, print_table
from pinscope.records.finding import Finding, Quantity, Reading, Table
from pinscope.report import facts
from pinscope.text import one_line

if TYPE_CHECKING:
    from pinscope.report.document import Document

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
    "OA": "up",
    "[B": "down",
    "OB": "down",
    "[C": "right",
    "OC": "right",
    "[D": "left",
    "OD": "left",
    "[H": "home",
    "OH": "home",
    "[1~": "home",
    "[F": "end",
    "OF": "end",
    "[4~": "end",
    "[5~": "page up",
    "[6~": "page down",
}
"""What a key sends (xterm's control sequences; in all but the first line after Esc) → its name."""


def key_names(text: str) -> list[str]:
    """The keys that were pressed: a name such as ``up`` or ``enter``, or the sign itself. Unknown keys are left out."""
    pressed = []
    for part in _SEQUENCE.findall(text):
        name = _NAMES.get(part.removeprefix("\x1b") if len(part) > 1 else part)
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


def print_outcome(document: Document) -> None:
    """What a person wants after a run: headline, findings, and what to do next."""
    run = document.run
    _print_question(document)
    print_line(f"{facts.place(run)}, {run.status}, {run.observations:,} observations\n")
    _print_verdict(document.reading)
    _print_headline(document.reading.headline)
    print_findings(facts.by_severity(document.reading.findings))
    if run.observations:
        print_line(f"Run {run.id}. Next: pinscope report {run.id} -o report.html")
    else:
        print_line(f"Run {run.id} measured nothing.")


def print_run(document: Document) -> None:
    """Everything about a run but its raw rows."""
    _print_question(document)
    print_line()
    _print_verdict(document.reading)
    print_table(("", ""), [*facts.run_facts(document.run), ("Host", document.run.environment.host)])
    print_table(("", ""), facts.parameter_facts(document), title="Parameters")
    print_below_verdict(document.reading)


def print_below_verdict(reading: Reading) -> None:
    """What carries a verdict: figures, tables, findings."""
    _print_headline(reading.headline)
    for table in reading.tables:
        _print_table(table)
    print_findings(facts.by_severity(reading.findings))


def print_findings(findings: Sequence[Finding]) -> None:
    """Each with its numbers and what to do."""
    for finding in findings:
        title = f"{facts.SEVERITY_WORDS[finding.severity]}: {one_line(finding.title)}"
        print_prose(title, hanging="  ", style=SEVERITY_STYLES[finding.severity])
        print_prose(finding.detail, "  ", "  ")
        for quantity in finding.evidence:
            print_prose(one_line(f"· {quantity.name}: {facts.quantity_text(quantity)}"), "  ", "    ")
        print_prose(f"→ {finding.advice}", "  ", "    ")
        print_line()
        if finding.code:
            print_line(finding.code)


def _print_question(document: Document) -> None:
    """What was asked, and what a reader must know before the figures."""
    run = document.run
    print_prose(f"{document.title}: {document.question}")
    for caveat in [*facts.caveats(run), *facts.further_notes(run)]:
        print_prose(f"Note: {caveat}")


def _print_verdict(reading: Reading) -> None:
    if reading.verdict:
        print_prose(one_line(reading.verdict), style="bold")
        print_line()


def _print_headline(headline: Sequence[Quantity]) -> None:
    if headline:
        print_table(
            ("", ""), [(quantity.name, facts.quantity_text(quantity)) for quantity in headline], title="Headline"
        )


def _print_table(table: Table) -> None:
    numbers = [column for column, unit in enumerate(table.units) if unit != "text"]
    print_table(table.columns, facts.table_texts(table), title=table.title, numbers=numbers)
    if table.note:
        print_prose(table.note)
        print_line()
