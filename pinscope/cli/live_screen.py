"""``pinscope live`` in a terminal: a screen that changes in place, steered by keys."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from pinscope.cli.live_view import (
    KEYS,
    TREND_STEPS,
    Choice,
    Line,
    View,
    event_text,
    finding_text,
    frame,
    holder_table,
    lasted_text,
    press,
)
from pinscope.cli.progress import LOOK_SECONDS, Stop
from pinscope.cli.screen import Screen
from pinscope.cli.terminal import lay_out, sparkline, styled
from pinscope.live.reading import who
from pinscope.live.sampler import History, Sampler
from pinscope.live.series import holder_trends
from pinscope.probes.answer import Answer
from pinscope.records.registration import Piece
from pinscope.records.snapshot import Holder, Snapshot
from pinscope.report.facts import Fact
from pinscope.report.snapshot_facts import holder_facts
from pinscope.text import one_line, visible
from pinscope.units import format_bytes, format_duration

_INDENT = "  "
OpenFiles = Answer[Mapping[str, int]]


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


def process_page(view: View, pid: int | None, files: OpenFiles | None, room: int) -> list[Line]:
    """One process: who it is, what it holds, what that takes on each GPU, what was found and what happened."""
    holder = next((holder for holder in view.snapshot.holders if holder.pid == pid), None)
    events = [event for event in view.events if event.pid == pid]
    if holder is None:
        lines = _wrapped(f"Process {pid} holds no pinned memory any more, or has ended.", room, "bold")
    else:
        lines = [Line(one_line(who(holder)), "bold"), Line(""), *_facts(_process_facts(view, holder, files), room)]
        lines += _pieces(holder, view, room)
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


def _process_facts(view: View, holder: Holder, files: OpenFiles | None) -> Iterator[Fact]:
    curve = holder_trends(view.samples, 2 * TREND_STEPS).get((holder.pid, holder.started_at), ())
    if len(curve) > 1:
        most = f", at most {format_bytes(max(filter(None, curve), default=0))}"
        yield "Held lately", f"{sparkline(curve)} in {lasted_text(view.samples)}{most}"
    yield from holder_facts(holder)
    if holder.parent_pid is not None:
        yield "Parent", f"pid {holder.parent_pid}"
    if files is not None:
        yield "Open files", _files_text(files)


def _files_text(files: OpenFiles) -> str:
    if files.value is None:
        return f"n/a ({files.reason})"
    return ", ".join(f"{count:,} × {kind}" if count > 1 else kind for kind, count in files.value.items()) or "none"


def _pieces(holder: Holder, view: View, room: int) -> list[Line]:
    """What the probe saw being pinned and is held still."""
    if not holder.oldest_pieces:
        return []
    rows = [_piece_cells(piece, view) for piece in holder.oldest_pieces]
    laid = lay_out(("kind", "size", "held for", "address"), rows, (1, 2), room)
    title = Line(f"Pinned while the probe ran, the {len(rows)} oldest pieces", "bold")
    return [Line(""), title, *(Line(text) for text in (*laid.headings, *laid.body))]


def _piece_cells(piece: Piece, view: View) -> tuple[str, str, str, str]:
    age = (view.snapshot.taken_at - piece.since).total_seconds()
    address = "n/a" if piece.address is None else f"{piece.address:#x}"
    return piece.kind.replace("_", " "), format_bytes(piece.bytes), format_duration(max(round(age), 0)), address


def _facts(facts: Sequence[Fact] | Iterator[Fact], room: int) -> list[Line]:
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
        files_of: what a process has open.
    """

    def __init__(
        self, sampler: Sampler, view_of: Callable[[Snapshot, History], View], files_of: Callable[[int], OpenFiles]
    ) -> None:
        self._sampler = sampler
        self._view_of = view_of
        self._files_of = files_of
        self._choice = Choice()
        self._history = sampler.history()
        self._seen: tuple[object, ...] = ()
        self._files: tuple[int | None, OpenFiles] | None = None
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
            table = holder_table(replace(self.view, choice=self._choice), room)
            columns, pids = table.columns, [row.pid for row in table.rows]
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
            columns = holder_table(self.view, room).columns if self.view is not None else ()
            return self._scrolled(keys_page(columns, room), height)
        if self.view is None:
            return [Line(one_line(self._history.trouble or "Looking …"))]
        if self._choice.page == "process":
            return self._scrolled(process_page(self.view, self._choice.pid, self._open_files(), room), height)
        self._files = None
        return frame(replace(self.view, choice=self._choice if with_keys else None), room, height)

    def _scrolled(self, lines: Sequence[Line], height: int) -> list[Line]:
        visible_lines, begin = scrolled(lines, self._choice.scroll, height, _BACK)
        self._choice = replace(self._choice, scroll=begin)
        return visible_lines

    def _open_files(self) -> OpenFiles | None:
        """Those of the chosen process, read when its page is opened: a process may have very many."""
        pid = self._choice.pid
        if pid is None:
            return None
        if self._files is None or self._files[0] != pid:
            self._files = (pid, self._files_of(pid))
        return self._files[1]
