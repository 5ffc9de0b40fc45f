"""``pinscope live`` and ``pinscope exporter``: who holds pinned memory now, for people and for programs."""

from __future__ import annotations

import os
import select
import sys
import textwrap
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.resources import files
from typing import Annotated, Self

import typer

from pinscope.cli import terminal
from pinscope.cli.live_view import (
    KEYS,
    Choice,
    HolderTable,
    Line,
    View,
    event_text,
    fact_lines,
    finding_text,
    frame,
    press,
    tail,
    whole,
)
from pinscope.cli.main import PROBE_HELP, Gpus, Interval, Pids, Probe, checked_pids, option, switch
from pinscope.cli.outcome import print_findings
from pinscope.errors import BadInput, NotPossible
from pinscope.live.findings import snapshot_findings, who
from pinscope.live.sampler import History, Sampler
from pinscope.live.series import growing
from pinscope.live.source import LiveSource, open_source
from pinscope.records.snapshot import Snapshot
from pinscope.records.timeline import Event
from pinscope.report.facts import by_severity
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


def live(
    once: Annotated[bool, switch("--once", "Print one snapshot and exit.")] = False,
    as_json: Annotated[
        bool, switch("--json", "Print JSON: one document with --once, otherwise one on each line.")
    ] = False,
    interval: Interval = 1.0,
    pid: Pids = None,
    probe: Annotated[
        bool,
        switch(
            "--probe",
            f"{PROBE_HELP} With --pid: also count the copies of that process, by call, "
            "size, direction and kind of memory. With --once: trace for one --interval, then print.",
        ),
    ] = False,
    gpus: Gpus = True,
    hosts: Annotated[str | None, option("ADDRESSES", "Instead: what exporters say, as node1:10435,node2.")] = None,
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
        stop.wait(seconds)
        seen = source.take()
    print_once(as_json, _view(seen, pids))


def _follow(source: LiveSource, stop: terminal.Stop, as_json: bool, pids: Collection[int], seconds: float) -> None:
    with Sampler(source.take, interval_seconds=seconds) as sampler:
        if not as_json and terminal.is_steerable() and sys.stdin.isatty():
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


def _stream(sampler: Sampler, stop: terminal.Stop, as_json: bool, pids: Collection[int]) -> None:
    """One snapshot after the other, until somebody stops it or nobody reads any more."""
    show, reported, printed = _print_json_line if as_json else _print_table, False, None
    while not stop.asked and not _reader_is_gone():
        history = sampler.history()
        if history.trouble is not None and not reported:
            terminal.complain(history.trouble)
        reported = history.trouble is not None
        if (seen := history.latest) is not None and seen is not printed:
            events = [event for event in history.events if printed is None or event.at > printed.taken_at]
            show(_view(seen, pids, history, events))
            sys.stdout.flush()
            printed = seen
        time.sleep(min(terminal.LOOK_SECONDS, history.interval_seconds / 4))


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
    print_rules: Annotated[bool, switch("--print-rules", "Print alert rules for Prometheus and exit.")] = False,
    print_dashboard: Annotated[bool, switch("--print-dashboard", "Print a dashboard for Grafana and exit.")] = False,
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


_ESCAPE_MILLISECONDS = 50
"""So soon the rest of a key's sequence comes; a lone Esc is the key itself."""
_KEY_NAMES: Mapping[str, str] = {
    "KEY_UP": "up",
    "KEY_DOWN": "down",
    "KEY_LEFT": "left",
    "KEY_HOME": "home",
    "KEY_END": "end",
    "KEY_PPAGE": "page up",
    "KEY_NPAGE": "page down",
    "KEY_BACKSPACE": "backspace",
    "\x7f": "backspace",
    "\b": "backspace",
    "KEY_ENTER": "enter",
    "\r": "enter",
    "\n": "enter",
    "\x1b": "escape",
}
"""What curses calls a key, or the sign that it sends → its name."""
_COLOURS = ("red", "green", "yellow", "cyan")
_OTHER_TERMINAL = "xterm-256color"
"""What a terminal is taken for that this host does not know, as a new one at the other end of ssh may be."""


class Screen:
    """While it is entered, the terminal is one screen, and keys are read without Enter. Ctrl-Z gives the terminal back
    until the program goes on.

    Raises:
        NotPossible: this host knows no terminals.
    """

    def __enter__(self) -> Self:
        try:
            import curses
        except ImportError as error:
            raise NotPossible(f"this Python has no curses ({error}); pinscope live --once needs none") from None
        self._curses = curses
        try:
            self._window = curses.initscr()
        except curses.error:
            os.environ["TERM"] = _OTHER_TERMINAL
            try:
                self._window = curses.initscr()
            except curses.error:
                advice = "install ncurses-base, or use pinscope live --once"
                raise NotPossible(f"this host has no descriptions of terminals; {advice}") from None
        self._styles = {"bold": curses.A_BOLD, "dim": curses.A_DIM, "reverse": curses.A_REVERSE}
        curses.noecho()
        curses.cbreak()
        curses.set_escdelay(_ESCAPE_MILLISECONDS)
        self._window.keypad(True)
        with suppress(curses.error):  # a terminal may lack both
            curses.curs_set(0)
        with suppress(curses.error):
            self._add_colours()
        return self

    def __exit__(self, *exception: object) -> None:
        with suppress(self._curses.error):  # the terminal is gone
            self._curses.endwin()

    def _add_colours(self) -> None:
        """NO_COLOR (no-color.org) leaves bold print."""
        if not os.environ.get("NO_COLOR"):
            self._curses.start_color()
            self._curses.use_default_colors()
            for number, colour in enumerate(_COLOURS, 1):
                self._curses.init_pair(number, getattr(self._curses, f"COLOR_{colour.upper()}"), -1)
                self._styles[colour] = self._curses.color_pair(number)

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines, as the window is now."""
        lines, columns = self._window.getmaxyx()
        return columns, lines

    def draw(self, lines: Sequence[Line]) -> None:
        """Show these lines from the top."""
        columns, most = self.size
        self._window.erase()
        for row, line in enumerate(lines[:most]):
            style = sum(self._styles.get(word, 0) for word in line.style.split())
            self._window.insnstr(row, 0, visible(line.text), columns, style)
        self._window.refresh()

    def key(self, seconds: float) -> str:
        """The key that was pressed: a name such as ``up`` or ``enter``, or the sign itself; empty if none was for so
        long, or one that has no meaning here."""
        self._window.timeout(round(seconds * 1000))
        try:
            pressed = self._window.get_wch()
        except self._curses.error:
            return ""
        if isinstance(pressed, int):
            return _KEY_NAMES.get(self._curses.keyname(pressed).decode(), "")
        return _KEY_NAMES.get(pressed, pressed if pressed.isprintable() else "")


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
    return [Line("Keys", "bold"), Line(""), *fact_lines(KEYS, room), Line(""), *_wrapped(f"Columns: {numbered}", room)]


def process_page(view: View, pid: int | None, room: int) -> list[Line]:
    """One process: who it is, what it holds, what that takes on each GPU, what was found and what happened."""
    holder = next((holder for holder in view.snapshot.holders if holder.pid == pid), None)
    events = [event for event in view.events if event.pid == pid]
    if holder is None:
        lines = _wrapped(f"Process {pid} holds no pinned memory any more, or has ended.", room, "bold")
    else:
        parent = [] if holder.parent_pid is None else [("Parent", f"pid {holder.parent_pid}")]
        facts = [*holder_facts(holder), *parent]
        lines = [Line(one_line(who(holder)), "bold"), Line(""), *fact_lines(facts, room)]
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
        with Screen() as screen:
            while not (stop.asked or self._choice.ended or _reader_is_gone()):
                self._draw(screen)
                if key := screen.key(terminal.LOOK_SECONDS):
                    self._press(key, screen.size[0])
        if _reader_is_gone():
            self.view = None

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
        history = self._history
        latest = history.latest and history.latest.taken_at
        if self._seen[:2] != (latest, history.trouble) and history.latest is not None:
            self.view = self._view_of(history.latest, history)
        seen = (latest, history.trouble, self._choice, screen.size)
        if seen != self._seen:
            self._seen = seen
            screen.draw(self._lines(*screen.size))

    def _lines(self, room: int, height: int) -> list[Line]:
        if self._choice.page == "keys":
            columns = HolderTable(self.view, room).columns if self.view is not None else ()
            return self._scrolled(keys_page(columns, room), height)
        if self.view is None:
            return [Line(one_line(self._history.trouble or "Looking …"))]
        if self._choice.page == "process":
            return self._scrolled(process_page(self.view, self._choice.pid, room), height)
        return frame(replace(self.view, choice=self._choice), room, height)

    def _scrolled(self, lines: Sequence[Line], height: int) -> list[Line]:
        visible_lines, begin = scrolled(lines, self._choice.scroll, height, _BACK)
        self._choice = replace(self._choice, scroll=begin)
        return visible_lines
