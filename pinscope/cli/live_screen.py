"""``pinscope live`` in a terminal: a screen that changes in place, steered by keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from pinscope.cli.live_choice import Choice, press
from pinscope.cli.live_pages import OpenFiles, keys_page, process_page, scrolled
from pinscope.cli.live_view import Line, View, frame, holder_table
from pinscope.cli.screen import Screen
from pinscope.cli.stop import LOOK_SECONDS, Stop
from pinscope.cli.terminal import styled
from pinscope.live.sampler import History, Sampler
from pinscope.records.snapshot import Snapshot
from pinscope.text import one_line, visible

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
        shown, begin = scrolled(lines, self._choice.scroll, height, _BACK)
        self._choice = replace(self._choice, scroll=begin)
        return shown

    def _open_files(self) -> OpenFiles | None:
        """Those of the chosen process, read when its page is opened: a process may have very many."""
        pid = self._choice.pid
        if pid is None:
            return None
        if self._files is None or self._files[0] != pid:
            self._files = (pid, self._files_of(pid))
        return self._files[1]
