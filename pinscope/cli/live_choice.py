"""What a person at the keys of ``pinscope live`` has chosen to see, and what each key changes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

PAGE_LINES = 10
MOST_LINES = 10_000
"""Of a page; the screen stops at its last line."""
MOST_WORDS = 60
KEYS: Sequence[tuple[str, str]] = (
    ("↑ ↓  k j", "choose a process; PgUp, PgDn, Home and End as well"),
    ("Enter", "all that is known of it; Esc: back"),
    ("1 … 9", "sort by that column; once more: the other way round"),
    ("< >  ← →", "sort by the column before or after; r: the other way round; 0: most bytes first"),
    ("/", "show only processes with these words: pid, name, user, container or command; Esc: all again"),
    ("p  Space", "hold the picture, and go on"),
    ("?  h", "this page"),
    ("q", "quit; Ctrl-C as well. Ctrl-Z suspends"),
)
"""Key → what it does, for people."""


@dataclass(frozen=True)
class Choice:
    """What is to be seen.

    Attributes:
        page: the table, one process, or the keys.
        column: heading of the column by which the table is sorted; empty: most bytes first.
        turned: sorted the other way round.
        words: each must stand in a process that is shown.
        typing: the words are being typed.
        pid: the chosen process; the first one where it is ``None``.
        place: its row when it was last seen.
        scroll: lines above the screen on a page that is longer than it.
        paused: the figures stand still.
        ended: there is no more to be seen.
    """

    page: Literal["holders", "process", "keys"] = "holders"
    column: str = ""
    turned: bool = False
    words: str = ""
    typing: bool = False
    pid: int | None = None
    place: int = 0
    scroll: int = 0
    paused: bool = False
    ended: bool = False

    def row(self, pids: Sequence[int]) -> int:
        """The row of the chosen process; where it is gone, the one that took its place."""
        return pids.index(self.pid) if self.pid in pids else max(0, min(self.place, len(pids) - 1))


def press(choice: Choice, key: str, columns: Sequence[str], pids: Sequence[int]) -> Choice:
    """What is chosen after a key.

    Args:
        choice: before it.
        key: its name, or its sign.
        columns: headings of the table.
        pids: of its rows.
    """
    if choice.typing:
        return _typed(choice, key)
    if (anywhere := _ANYWHERE.get(key)) is not None:
        return anywhere(choice)
    if choice.page == "holders":
        return _in_table(choice, key, columns, pids)
    if key in ("escape", "enter", "left", "backspace"):
        return replace(choice, page="holders", scroll=0)
    return replace(choice, scroll=_moved(choice.scroll, key, MOST_LINES)) if key in _STEPS else choice


def _typed(choice: Choice, key: str) -> Choice:
    if key in ("enter", "escape"):
        return replace(choice, typing=False, words=choice.words if key == "enter" else "")
    if key == "backspace":
        return replace(choice, words=choice.words[:-1])
    return replace(choice, words=(choice.words + key)[:MOST_WORDS]) if len(key) == 1 else choice


def _in_table(choice: Choice, key: str, columns: Sequence[str], pids: Sequence[int]) -> Choice:
    if key in _STEPS and pids:
        place = _moved(choice.row(pids), key, len(pids) - 1)
        return replace(choice, place=place, pid=pids[place])
    if key == "enter" and pids:
        place = choice.row(pids)
        return replace(choice, page="process", place=place, pid=pids[place], scroll=0)
    if key == "escape":
        return replace(choice, words="")
    if key == "r":
        return replace(choice, turned=not choice.turned)
    if key == "0":
        return replace(choice, column="", turned=False)
    return _sorted(choice, key, columns)


def _sorted(choice: Choice, key: str, columns: Sequence[str]) -> Choice:
    if key.isdecimal() and int(key) <= len(columns):
        column = columns[int(key) - 1]
        return replace(choice, column=column, turned=column == choice.column and not choice.turned)
    step = {"<": -1, "left": -1, ">": 1, "right": 1}.get(key)
    if step is None or not columns:
        return choice
    place = columns.index(choice.column) + step if choice.column in columns else min(step, 0)
    return replace(choice, column=columns[place % len(columns)], turned=False)


def _turn_keys(choice: Choice) -> Choice:
    return replace(choice, page="holders" if choice.page == "keys" else "keys", scroll=0)


def _turn_pause(choice: Choice) -> Choice:
    return replace(choice, paused=not choice.paused)


_ANYWHERE: Mapping[str, Callable[[Choice], Choice]] = {
    "q": lambda choice: replace(choice, ended=True),
    "/": lambda choice: replace(choice, page="holders", typing=True),
    "?": _turn_keys,
    "h": _turn_keys,
    "p": _turn_pause,
    " ": _turn_pause,
}
_STEPS: Mapping[str, int] = {
    "up": -1,
    "k": -1,
    "down": 1,
    "j": 1,
    "page up": -PAGE_LINES,
    "page down": PAGE_LINES,
    "home": -MOST_LINES,
    "end": MOST_LINES,
}


def _moved(place: int, key: str, last: int) -> int:
    return max(0, min(last, place + _STEPS[key]))
