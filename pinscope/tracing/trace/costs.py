"""What a line of the program costs by one rule, and the words for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pinscope.analysis.read_rows import Row
from pinscope.analysis.texts import Costed
from pinscope.tracing.sites import MOSTLY, Seen, Site, line_name
from pinscope.units import format_about, format_seconds, format_share

NEARLY_ALL = 0.9
"""Of the time: where a loop has as much, shares are said of all of it."""


@dataclass(frozen=True)
class Cost:
    """What a line costs by one rule.

    Attributes:
        row: the line.
        rule: of the finding that says more.
        seconds: what it costs.
        saved: what following the advice saves; ``None`` where nobody knows.
        to_do: what to change, in a few words; empty where another rule says it of the same line.
        advice: the same as a sentence, with what it is for.
        finding: what more there is to say; ``None`` where that is nothing.
    """

    row: Row
    rule: str
    seconds: float
    saved: float | None
    to_do: str
    advice: str
    finding: Costed | None = None

    def rank(self, seen: Seen) -> tuple[int, float]:
        """What is known to save a part of the time stands before what may, and that before what saves little."""
        if self.saved is None:
            return 1, self.seconds
        return (2, self.saved) if self.saves_much(seen) else (0, self.seconds)

    def saves_much(self, seen: Seen) -> bool:
        """Whether it is known to save a part of the time."""
        return self.saved is not None and self.saved >= MOSTLY * seen.seconds_from_first(self.row) > 0


def where(row: Row) -> str:
    """The line itself, as the file had it."""
    if not row["file"]:
        return "The Python line is not known."
    source = f": {row['source_line']}" if row["source_line"] else ""
    through = f" (through line {row['library_line']} of {row['library_file']})" if row["library_file"] else ""
    about = "A thread without Python made the call while the main thread stood at l" if row["is_elsewhere"] else "L"
    place = f"{about}ine {row['line']} of {row['file']}, in {row['function']}{through}{source}"
    return place if place.endswith(".") else f"{place}."


def told(row: Row, **more: Any) -> dict[str, Any]:
    """Values for a text: the fields of a row, with the line's name in place of its number, and more."""
    return {**row, "line": line_name(row), "where": where(row), **more}


def share_of_time(seen: Seen, row: Row, seconds: float) -> str:
    """``21.2 % of the 265 ms from its first copy on``: how much that is for a line of copies or other calls."""
    whole = seen.seconds_from_first(row)
    share = format_share(min(seconds / whole, 1.0)) if whole else format_share(0.0)
    if whole == seen.seconds:
        return f"{share} of {format_seconds(whole)}"
    first = {"site": "copy", "synchronisation": "wait"}.get(row["kind"], "call")
    return f"{share} of the {format_seconds(whole)} from its first {first} on"


def time_of(seen: Seen, row: Row) -> float:
    """Of what a line's share is said: all of the time, or its loop's where that is clearly less."""
    loop = seen.seconds_from_first(row)
    return loop if loop < NEARLY_ALL * seen.seconds else seen.seconds


def took(seen: Seen, row: Row, seconds: float) -> str:
    """``1.50 s (15.0 %)``."""
    whole = time_of(seen, row)
    share = f" ({format_share(min(seconds / whole, 1.0))})" if whole else ""
    return f"{format_seconds(seconds)}{share}"


def saves(seen: Seen, row: Row, saved: float) -> str:
    """``saves about 980 ms of 10.0 s (9.8 %)``; ``of its loop's 4.00 s`` where that is not the whole."""
    whole = time_of(seen, row)
    if whole != seen.seconds:
        return f"saves {format_about(saved)} of its loop's {format_seconds(whole)}"
    share = f" of {format_seconds(whole)} ({float(f'{min(100 * saved / whole, 100):.2g}'):g} %)" if whole else ""
    return f"saves {format_about(saved)}{share}"


def stood(seen: Seen, site: Site) -> str:
    """``the GPU idled 1.00 s (10.0 %)``."""
    return f"{blocked(site)} {took(seen, site.row, site.stands_seconds)}"


def blocked(site: Site) -> str:
    """What copies of a line keep waiting."""
    return "the GPU idled" if site.row["idle_seconds"] is not None else "the CPU was blocked for"
