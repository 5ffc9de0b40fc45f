"""``pinscope live`` and ``pinscope exporter``: who holds pinned memory now, for people and for programs."""

from __future__ import annotations

import codecs
import os
import queue
import re
import select
import shutil
import signal
import sys
import termios
import textwrap
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.resources import files
from types import FrameType
from typing import Annotated, Any, Self

import typer

from pinscope.cli import terminal
from pinscope.cli.live_view import (
    KEYS,
    Choice,
    HolderTable,
    Line,
    View,
    event_text,
    finding_text,
    frame,
    press,
    tail,
    whole,
)
from pinscope.cli.main import PROBE_HELP, Gpus, Interval, Pids, Probe, checked_pids, option
from pinscope.cli.outcome import print_findings
from pinscope.errors import BadInput
from pinscope.live.findings import snapshot_findings, who
from pinscope.live.sampler import History, Sampler
from pinscope.live.series import growing
from pinscope.live.source import LiveSource, open_source
from pinscope.records.snapshot import Snapshot
from pinscope.records.timeline import Event, Sample
from pinscope.report.facts import Fact, by_severity
from pinscope.report.snapshot_facts import holder_facts
from pinscope.report.write import snapshot_document
from pinscope.text import one_line, visible


def print_once(as_json: bool, view: View) -> None:
    """One moment, with all that is to be said of it."""
    if as_json:
        terminal.print_json(snapshot_document(view.snapshot, view.findings))
        return
    print_lines(whole(view, terminal.terminal_columns()))
    terminal.print_line()
    for gap in view.snapshot.unreadable:
        terminal.print_prose(f"Cannot be read: {gap.what}: {gap.reason}.", hanging="  ")
        if gap.advice:
            terminal.print_prose(f"→ {gap.advice}", "  ", "    ")
    if view.snapshot.unreadable:
        terminal.print_line()
    print_findings(view.findings)


def print_lines(lines: Sequence[Line]) -> None:
    """Lines, in their styles in a terminal."""
    for line in lines:
        sys.stdout.write(terminal.styled(visible(line.text), line.style) + "\n")


def _print_table(view: View) -> None:
    room = terminal.terminal_columns()
    print_lines([*whole(view, room), *tail(view, room)])
    terminal.print_line()


def _print_json_line(view: View) -> None:
    pids = {holder.pid for holder in view.snapshot.holders}
    more = {
        "events": [event.model_dump(mode="json") for event in view.events],
        "growing": sorted(pids & set(view.growing)),
    }
    terminal.print_json(snapshot_document(view.snapshot, view.findings) | more, on_one_line=True)


GROWTH_SAMPLES = 300
"""Over so many samples a holder must grow, and give nothing back, to be marked."""
WAITING_SNAPSHOTS = 16
"""Beyond these the sampler waits for the reader of our output."""


def live(
    once: Annotated[bool, typer.Option("--once", help="Print one snapshot and exit.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON: one document with --once, otherwise one on each line.")
    ] = False,
    interval: Interval = 1.0,
    pid: Pids = None,
    probe: Annotated[
        bool,
        typer.Option(
            "--probe",
            help=f"{PROBE_HELP} With --pid: also count the copies of that process, by call, "
            "size, direction and kind of memory. With --once: trace for one --interval, then print.",
        ),
    ] = False,
    gpus: Gpus = True,
    hosts: Annotated[
        str | None,
        option(
            "ADDRESSES",
            "Show these hosts instead, by comma, such as node1:10435,node2: what their `pinscope exporter` says.",
            "--hosts",
        ),
    ] = None,
) -> int:
    """Show which processes hold pinned memory, and what it costs each GPU, until Ctrl-C."""
    if hosts is not None:
        from pinscope.cli.live_hosts import show_hosts

        return show_hosts(hosts, once, as_json, interval)
    pids = checked_pids(pid)
    source_of = open_source(probe=probe, gpus=gpus, interval_seconds=interval, copies_of=pids)
    with terminal.Stop() as stop, source_of as source:
        if once:
            _show_once(source, stop, as_json, pids, interval if probe else 0.0)
        else:
            _follow(source, stop, as_json, pids, interval)
    return 0


def _only(seen: Snapshot, pids: Collection[int]) -> Snapshot:
    """The snapshot with these holders alone, or all if no pid is given; totals are always the host's."""
    if not pids:
        return seen
    return seen.model_copy(update={"holders": tuple(holder for holder in seen.holders if holder.pid in pids)})


def _show_once(source: LiveSource, stop: terminal.Stop, as_json: bool, pids: Collection[int], seconds: float) -> None:
    """One moment; with ``seconds``, after the probe has listened for so long."""
    seen = source.take()
    if seconds:
        terminal.complain(f"tracing registered memory for {seconds:g} s")
        end = time.monotonic() + seconds
        while not stop.asked and (left := end - time.monotonic()) > 0:
            time.sleep(min(terminal.LOOK_SECONDS, left))
        seen = source.take()
    print_once(as_json, _view(seen, pids))


def _follow(source: LiveSource, stop: terminal.Stop, as_json: bool, pids: Collection[int], seconds: float) -> None:
    with Sampler(source.take, interval_seconds=seconds) as sampler:
        if not as_json and terminal.is_steerable():
            screen = LiveScreen(sampler, lambda seen, history: _view(seen, pids, history, history.events))
            screen.run(stop)
            if screen.view is not None:  # the last one is left behind, whole
                print_lines(whole(replace(screen.view, note=""), terminal.terminal_columns()))
        else:
            _stream(sampler, stop, as_json, pids)


def _view(seen: Snapshot, pids: Collection[int], history: History | None = None, events: Sequence[Event] = ()) -> View:
    """What is to be shown of a snapshot. Findings are those of the whole host."""
    return View(
        snapshot=_only(seen, pids),
        findings=by_severity(snapshot_findings(seen)),
        growing=growing(history.samples[-GROWTH_SAMPLES:]) if history else (),
        events=[event for event in events if not pids or event.pid in pids],
        trouble=history.trouble if history else None,
        chosen=bool(pids),
        note=f"every {history.interval_seconds:g} s" if history and terminal.is_steerable() else "",
    )


class _Feed:
    """Hands each snapshot from the sampler's thread to the one that prints; waits where that one is slow."""

    def __init__(self) -> None:
        self.waiting: queue.Queue[tuple[Snapshot, tuple[Event, ...]]] = queue.Queue(WAITING_SNAPSHOTS)
        self.closed = False

    def offer(self, seen: Snapshot, sample: Sample, events: tuple[Event, ...]) -> None:
        del sample
        while not self.closed:
            with suppress(queue.Full):
                self.waiting.put((seen, events), timeout=terminal.LOOK_SECONDS)
                return


def _stream(sampler: Sampler, stop: terminal.Stop, as_json: bool, pids: Collection[int]) -> None:
    """Every snapshot, one after the other, until somebody stops it or nobody reads any more."""
    feed, show, reported = _Feed(), _print_json_line if as_json else _print_table, False
    sampler.subscribe(feed.offer)
    try:
        while not stop.asked and not _reader_is_gone():
            history = sampler.history()
            if history.trouble is not None and not reported:
                terminal.complain(history.trouble)
            reported = history.trouble is not None
            with suppress(queue.Empty):
                seen, events = feed.waiting.get(timeout=terminal.LOOK_SECONDS)
                show(_view(seen, pids, history, events))
                sys.stdout.flush()
    finally:
        feed.closed = True
        sampler.unsubscribe(feed.offer)


def _reader_is_gone() -> bool:
    """True if stdout is a pipe that nobody reads: with a long interval the next write would notice too late."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(state & select.POLLERR for _, state in poll.poll(0))
    except (OSError, ValueError):  # no file
        return False


ALERTS, DASHBOARD = "alerts.yaml", "dashboard.json"
"""Files in pinscope/monitoring/."""


def exporter(
    address: Annotated[str, typer.Option(metavar="ADDRESS", help="IP address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="PORT", help="Port to listen on; 0 takes any free one.")] = 10435,
    interval: Interval = 5.0,
    probe: Probe = False,
    gpus: Gpus = True,
    print_rules: Annotated[
        bool, typer.Option("--print-rules", help="Print alert rules for Prometheus and exit.")
    ] = False,
    print_dashboard: Annotated[
        bool, typer.Option("--print-dashboard", help="Print a dashboard for Grafana and exit.")
    ] = False,
) -> int:
    """Serve the live figures to Prometheus until Ctrl-C. Only this machine reaches them, unless --address is given."""
    if print_rules and print_dashboard:
        raise BadInput("--print-rules and --print-dashboard exclude each other")
    if print_rules or print_dashboard:
        name = ALERTS if print_rules else DASHBOARD
        sys.stdout.write((files("pinscope.monitoring") / name).read_text(encoding="utf-8"))
        return 0
    # Here, as a live view needs not wait for an HTTP server.
    from pinscope.monitoring.server import MetricsServer, SnapshotCollector, is_loopback

    with terminal.Stop() as stop, open_source(probe=probe, gpus=gpus, interval_seconds=interval) as source:
        sampler = Sampler(source.take, interval_seconds=interval, history_seconds=0.0)
        with MetricsServer(SnapshotCollector(sampler.history), address, port) as server, sampler:
            if not is_loopback(address):
                terminal.complain(
                    f"everyone who can reach {address} can read which processes and users hold memory here"
                )
            terminal.print_line(f"PinScope's metrics are at {server.url} (Ctrl-C stops it)")
            sys.stdout.flush()
            _serve(sampler, stop)
    return 0


def _serve(sampler: Sampler, stop: terminal.Stop) -> None:
    """Until somebody stops it; says what cannot be read, each line once."""
    said = {""}
    while not stop.asked:
        history = sampler.history()
        gaps = history.latest.unreadable if history.latest else ()
        for line in (*(f"cannot be read: {gap.what}: {gap.reason}" for gap in gaps), history.trouble or ""):
            if line not in said:
                terminal.complain(line)
                said.add(line)
        time.sleep(terminal.LOOK_SECONDS)


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
    laid = terminal.lay_out(("", ""), [(name, one_line(text)) for name, text in facts], (), room)
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

    def run(self, stop: terminal.Stop) -> None:
        """Draw and listen, until somebody wants no more of it or the terminal is gone."""
        try:
            with Screen() as screen:
                while not stop.asked and not self._choice.ended:
                    self._draw(screen)
                    for key in screen.keys(terminal.LOOK_SECONDS):
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
            screen.draw([terminal.styled(visible(line.text), line.style) for line in lines])

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
