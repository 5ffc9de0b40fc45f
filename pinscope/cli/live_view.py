"""A snapshot as lines of text: totals, GPUs, holders, and what stands at the bottom of them."""

from __future__ import annotations

import platform
import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

from pinscope.cli.terminal import SEVERITY_STYLES, TableLines, lay_out
from pinscope.live.findings import snapshot_verdict, who
from pinscope.records.environment import Link
from pinscope.records.figure import Estimated, Figure, figures
from pinscope.records.run import Finding, Severity
from pinscope.records.snapshot import DeviceFigures, Holder, HostTotals, Snapshot
from pinscope.records.timeline import Event
from pinscope.report.facts import Fact
from pinscope.report.snapshot_facts import (
    COLUMNS,
    ON_GPUS,
    HolderRow,
    copy_facts,
    figure_text,
    holder_rows,
    matching,
    tracing_facts,
)
from pinscope.text import one_line, shortened
from pinscope.units import format_bandwidth, format_bytes, format_share

PAGE_LINES = 10
MOST_LINES = 10_000
"""Of a page; the screen stops at its last line."""
MOST_WORDS = 60
KEYS: Sequence[tuple[str, str]] = (
    ("↑ ↓", "choose a process; PgUp, PgDn, Home and End as well"),
    ("Enter", "all that is known of it; Esc: back"),
    ("1 … 9", "sort by that column; once more: the other way round; 0: most bytes first"),
    ("/", "show only processes with these words: pid, name, user, container or command; Esc: all again"),
    ("p", "hold the picture, and go on"),
    ("?", "this page"),
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
    scroll: int = 0
    paused: bool = False
    ended: bool = False

    def row(self, pids: Sequence[int]) -> int:
        """The row of the chosen process; where it is gone, the first."""
        return pids.index(self.pid) if self.pid in pids else 0


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
        return replace(choice, pid=pids[_moved(choice.row(pids), key, len(pids) - 1)])
    if key == "enter" and pids:
        return replace(choice, page="process", pid=pids[choice.row(pids)], scroll=0)
    if key == "escape":
        return replace(choice, words="")
    if key == "0":
        return replace(choice, column="", turned=False)
    if key.isdecimal() and int(key) <= len(columns):
        column = columns[int(key) - 1]
        return replace(choice, column=column, turned=column == choice.column and not choice.turned)
    return choice


_ANYWHERE: Mapping[str, Callable[[Choice], Choice]] = {
    "q": lambda choice: replace(choice, ended=True),
    "/": lambda choice: replace(choice, page="holders", typing=True),
    "?": lambda choice: replace(choice, page="holders" if choice.page == "keys" else "keys", scroll=0),
    "p": lambda choice: replace(choice, paused=not choice.paused),
}
_STEPS: Mapping[str, int] = {
    "up": -1,
    "down": 1,
    "page up": -PAGE_LINES,
    "page down": PAGE_LINES,
    "home": -MOST_LINES,
    "end": MOST_LINES,
}


def _moved(place: int, key: str, last: int) -> int:
    return max(0, min(last, place + _STEPS[key]))


GROWS = "▲"
UP, DOWN = "↑", "↓"
"""After the heading of the column by which the table is sorted: small amounts first, large amounts first."""
COMMAND_CHARACTERS = 48
"""Of a command line in the table; the JSON has all of it."""
_HEADINGS: Mapping[str, str] = {name: figure.short for name, figure in COLUMNS.items() if figure.short}
_COLUMNS: Mapping[str, str] = {heading: name for name, heading in _HEADINGS.items()}
_TEXTS = ("user", "GPUs", "program")
"""Columns that are no numbers."""


MOST_EVENTS = 5
MOST_FINDINGS = 4
LEAST_RATE = 1e7
"""An idle link carries a few hundred kB/s of its own: digits that nobody needs."""
NARROW = 90
"""With fewer columns GPUs go without their names and holders without their command lines."""
ONLY_LOCKED = "Locked (VmLck), which is not pinned for CUDA:"
_LABEL = 10
_FIGURE = re.compile(r"(\d) (\S)")
_SIGNS: Mapping[Severity, str] = {"critical": "!!", "warning": "!"}
"""Severity that is shown below the table → what stands before it."""
_HINTS = ("? keys", "q quit", "Enter details", "/ filter", "1–9 sort", "p pause")
_EVENT_WORDS = {"appeared": "appeared with", "grew": "grew by", "released": "released", "ended": "ended, and gave back"}
_HOST: Mapping[str, Figure] = {figure.field: figure for figure in figures(HostTotals)}
_PARTS_OF_PINNED = ("explained_bytes", "other_pinned_bytes")


@dataclass(frozen=True)
class View:
    """What is to be shown of one moment."""

    snapshot: Snapshot
    findings: Sequence[Finding] = ()
    growing: Collection[int] = ()
    """Pids of holders that take more and more."""
    events: Sequence[Event] = ()
    """Oldest first."""
    trouble: str | None = None
    """Why the snapshot may be old, or the next one late."""
    note: str = ""
    """Said beside the time."""
    chosen: bool = False
    """Only certain holders are shown; totals are the host's."""
    choice: Choice = Choice()
    """What the person at the keys has chosen."""


@dataclass(frozen=True)
class HolderTable:
    """The holders that are to be shown, as they are to be sorted, in ``room`` columns."""

    view: View
    room: int | None

    @cached_property
    def holders(self) -> Sequence[Holder]:
        """All that may be shown, most bytes first."""
        holders = self.view.snapshot.holders
        return matching(holders, self.view.choice.words) if self.view.choice.words else holders

    @cached_property
    def columns(self) -> list[str]:
        """Headings of those that say something of somebody; the least important ones only where there is room."""
        probe = self.view.snapshot.probe is not None or any(holder.registered_bytes for holder in self.holders)
        in_table = [
            figure
            for figure in COLUMNS.values()
            if figure.short
            and (probe or not figure.probed)
            and not (_is_narrow(self.room) and figure.terminal == "room")
        ]
        own = [figure for figure in in_table if figure.column not in ON_GPUS and self._says_something(figure)]
        on_gpus = ["GPUs", *(_HEADINGS[figure.column] for figure in in_table if figure.column in ON_GPUS)]
        return [
            "pid",
            "user",
            *(_HEADINGS[figure.column] for figure in own),
            *(on_gpus if any(holder.gpus for holder in self.holders) else []),
            "program",
        ]

    @cached_property
    def rows(self) -> list[HolderRow]:
        """All of them, sorted; those that only lock memory, which is not pinned, stand apart as the last ones."""
        return sorted(self._sorted(), key=lambda row: row.only_locked)

    def _sorted(self) -> list[HolderRow]:
        rows = holder_rows(self.holders, self.view.growing)
        if self.view.choice.column not in self.columns:
            return rows
        known = [(key, row) for row in rows if (key := self._key(row)) is not None]
        amounts_first = self.view.choice.column in _COLUMNS
        known.sort(key=lambda pair: pair[0], reverse=amounts_first != self.view.choice.turned)
        return [*(row for _, row in known), *(row for row in rows if self._key(row) is None)]

    def lay_out(self, begin: int, end: int) -> TableLines:
        """These rows as lines."""
        columns = self.columns
        cells = [self._cells(row) for row in self.rows[begin:end]]
        mark = UP if (self.view.choice.column in _COLUMNS) == self.view.choice.turned else DOWN
        headings = [f"{name} {mark}" if name == self.view.choice.column else name for name in columns]
        numbers = [place for place, name in enumerate(columns) if name not in _TEXTS]
        return lay_out(headings, [[cell[name] for name in columns] for cell in cells], numbers, self.room)

    def _says_something(self, figure: Figure) -> bool:
        always = figure.terminal == "always" or figure.probed
        return always or any((getattr(holder, figure.field) or 0) > figure.common for holder in self.holders)

    def _key(self, row: HolderRow) -> Any:
        """By what a row is sorted; ``None``: it is not known."""
        if self.view.choice.column in _COLUMNS:
            return row.amounts[_COLUMNS[self.view.choice.column]]
        if self.view.choice.column == "program":
            return self._program(row)
        return {"pid": row.holder.pid, "user": row.holder.user, "GPUs": row.gpus}[self.view.choice.column]

    def _program(self, row: HolderRow) -> str:
        holder = row.holder
        words = one_line("" if _is_narrow(self.room) else holder.command or "") or one_line(holder.name)
        return shortened(words or "n/a", COMMAND_CHARACTERS)

    def _cells(self, row: HolderRow) -> dict[str, str]:
        name = self._program(row)
        inside = f" [{one_line(row.holder.container)}]" if row.holder.container else ""
        return {
            "pid": str(row.holder.pid),
            "user": one_line(row.holder.user or "n/a"),
            **{heading: row.text(name) for name, heading in _HEADINGS.items() if heading in self.columns},
            "GPUs": ",".join(map(str, row.gpus)) or row.text("gpu_memory_bytes"),
            "program": f"{GROWS + ' ' if row.growing else ''}{name}{inside}",
        }


class Line(NamedTuple):
    """One line, and whether it is a heading or calls for attention."""

    text: str
    style: str = ""
    """As rich names it."""


def frame(view: View, room: int, height: int) -> list[Line]:
    """All of it on one screen of ``room`` columns: what does not fit is left out, and the line says how many."""
    top, bottom, keys = head(view, room), tail(view, room), keys_line(view.choice, room)
    height -= 1
    third = max((height - len(top)) // 3, 0)
    table = _fitting(view, room, height - len(top) - min(len(bottom), third))
    lines = [*top, *table, *bottom][:height]
    return [*lines, *[Line("")] * (height - len(lines)), keys]


def whole(view: View, room: int | None = None) -> list[Line]:
    """Totals, GPUs and every holder, as long as they are; what chosen ones copied, and how to trace them."""
    lines = [*head(view, room), *_holder_lines(HolderTable(view, room))]
    for holder in view.snapshot.holders if view.chosen else ():
        lines += [Line(""), Line(one_line(who(holder)), "bold")]
        lines += fact_lines([*copy_facts(holder), *tracing_facts(holder)], room)
    return lines


def fact_lines(facts: Sequence[Fact], room: int | None) -> list[Line]:
    """Names, and what is said of each."""
    laid = lay_out(("", ""), [(name, one_line(text)) for name, text in facts], (), room)
    return [Line(text) for text in laid.body]


def keys_line(choice: Choice, room: int) -> Line:
    """The words that are being typed, or the most important keys."""
    if choice.typing:
        return Line(f"Show only: {one_line(choice.words)}▏  Enter: done  Esc: show all"[:room], "reverse")
    hints = [*([f"only “{one_line(choice.words)}”"] if choice.words else []), *_HINTS]
    return Line(" · ".join(hints)[:room], "dim")


def head(view: View, room: int | None) -> list[Line]:
    """When it was, the host's totals, and its GPUs."""
    seen = view.snapshot
    title = [one_line(platform.node()), f"{seen.taken_at:%Y-%m-%d %H:%M:%S} UTC"]
    if view.note:
        title.append(view.note)
    if view.choice.paused:
        title.append("PAUSED: p goes on")
    lines = [Line(text, "bold") for text in _flow("", title, room)]
    if not view.chosen:
        lines += [Line(text, "bold") for text in _wrapped(one_line(snapshot_verdict(seen)), room)]
    lines += [Line(text) for label, phrases in _totals(view) for text in _flow(label, phrases, room)]
    if view.trouble:
        lines += [Line(text, "bold red") for text in _wrapped(f"! {one_line(view.trouble)}", room)]
    if seen.devices:
        wide = {heading for heading, figure in _DEVICE_FIGURES.items() if figure.terminal == "room"} | {"name"}
        columns = [name for name in _DEVICE_COLUMNS if not (_is_narrow(room) and name in wide)]
        rows = [[_device_cells(device)[name] for name in columns] for device in seen.devices]
        numbers = [place for place, name in enumerate(columns) if name not in ("GPU", "link", "name")]
        laid = lay_out(columns, rows, numbers, room)
        lines += [Line(""), *(Line(text, "bold") for text in laid.headings), *map(Line, laid.body)]
    return [*lines, Line("")]


def tail(view: View, room: int | None) -> list[Line]:
    """What was found, what cannot be read, and what happened last, newest first; a line each."""
    bad = [finding for finding in view.findings if finding.severity in _SIGNS]
    texts = [
        *map(finding_text, bad[:MOST_FINDINGS]),
        *((one_line(f"? {gap.what}: {gap.reason}."), "") for gap in view.snapshot.unreadable[:3]),
        *((event_text(event), "") for event in list(view.events)[: -MOST_EVENTS - 1 : -1]),
    ]
    lines = [Line(part, style) for text, style in texts for part in _wrapped(text, room)]
    return [Line(""), *lines] if lines else []


def finding_text(finding: Finding) -> tuple[str, str]:
    """A finding's title behind its sign, and its style."""
    return f"{_SIGNS.get(finding.severity, '·')} {one_line(finding.title)}", SEVERITY_STYLES[finding.severity]


def event_text(event: Event) -> str:
    """One event in words: ``09:50:11 python (4711) grew by 1 GiB of cudaHostAlloc, to 17 GiB``."""
    change = (
        f"{_EVENT_WORDS[event.kind]} {format_bytes(abs(event.change_bytes))} of {COLUMNS[f'{event.what}_bytes'].short}"
    )
    rest = f", to {format_bytes(event.total_bytes)}" if event.kind == "grew" else ""
    left = f", {format_bytes(event.total_bytes)} left" if event.kind == "released" else ""
    return one_line(f"{event.at:%H:%M:%S} {event.name} ({event.pid}) {change}{rest}{left}")


def _totals(view: View) -> Iterator[tuple[str, list[str]]]:
    seen = view.snapshot
    host = seen.host
    memory = [format_bytes(host.total_bytes), f"{format_bytes(host.available_bytes)} available"]
    if host.cgroup_limit_bytes is not None:
        left, limit = format_bytes(host.cgroup_headroom_bytes), format_bytes(host.cgroup_limit_bytes)
        memory.append(f"control group leaves {left} of {limit}")
    yield "Memory", memory
    # Some containers show a host without memory.
    share = host.pinned_bytes / host.total_bytes if host.pinned_bytes is not None and host.total_bytes > 0 else None
    pinned = _HOST["pinned_bytes"]
    parts = [f"{_figure(host, _HOST[name])} {_HOST[name].short}" for name in _PARTS_OF_PINNED]
    yield ("Pinned", [_figure(host, pinned) + (f" ({format_share(share)})" if share is not None else ""), *parts])
    used, pool = _figure(host, _HOST["hugetlb_used_bytes"]), _figure(host, _HOST["hugetlb_pool_bytes"])
    others = [figure for figure in _HOST.values() if figure.short and figure.field not in _PARTS_OF_PINNED]
    yield (
        "Others",
        [
            *(f"{_figure(host, figure)} {figure.short}" for figure in others),
            f"{used} of {pool} huge pages",
            *([f"stalled {format_share(host.pressure.some_10s_share)} of 10 s"] if host.pressure else []),
        ],
    )
    if seen.probe is not None:
        lost = [f"{seen.probe.lost_events:,} events lost"] if seen.probe.lost_events else []
        yield "Probe", [f"sees what is registered since {seen.probe.since:%H:%M:%S} UTC", *lost]


_DEVICE_FIGURES: Mapping[str, Figure] = {figure.short: figure for figure in figures(DeviceFigures) if figure.short}
_DEVICE_COLUMNS = ("GPU", *_DEVICE_FIGURES, "link", "name")


def _device_cells(device: DeviceFigures) -> dict[str, str]:
    return {
        "GPU": str(device.index),
        **{heading: _figure(device, figure) for heading, figure in _DEVICE_FIGURES.items()},
        "link": "n/a" if device.link is None else _link_text(device.link),
        "name": one_line(device.name),
    }


def _link_text(link: Link) -> str:
    if link.kind != "pcie":
        return "NVLink-C2C"
    now, best = (link.generation_now, link.width_now), (link.generation_max, link.width_max)
    text = "Gen{}×{}".format(*("?" if part is None else part for part in now))
    return text if now == best or None in best else text + " of Gen{}×{}".format(*best)


def _holder_lines(
    table: HolderTable, begin: int = 0, count: int | None = None, chosen: int | None = None
) -> list[Line]:
    """``count`` holders from ``begin`` on, and how many there are besides; ``chosen``: the row that is marked."""
    view, room, every = table.view, table.room, len(table.holders)
    if not every:
        return [Line(text) for text in _wrapped(_nobody(view), room)]
    end = every if count is None else min(begin + count, every)
    laid = table.lay_out(begin, end)
    lines = [Line(text, "bold") for text in laid.headings]
    for place, row in enumerate(laid.rows, begin):
        if table.rows[place].only_locked and (place == begin or not table.rows[place - 1].only_locked):
            lines.append(Line(ONLY_LOCKED[: room or None], "bold"))
        style = "reverse" if place == chosen else "yellow" if table.rows[place].growing else ""
        lines += [Line(text.ljust(room or 0) if place == chosen else text, style) for text in row]
    return lines if end - begin == every else [*lines, Line(f"… and {every - (end - begin)} more")]


def _nobody(view: View) -> str:
    """Why no holder is shown."""
    seen = view.snapshot
    if seen.holders and view.choice.words:
        return f"None of the {len(seen.holders)} holders fits “{one_line(view.choice.words)}”."
    if seen.host.explained_bytes is None:
        reason = seen.host.missing.get("explained_bytes")
        return one_line(f"Who holds pinned memory is not known{f': {reason}' if reason else ''}.")
    return f"{'None of the chosen processes holds' if view.chosen else 'No process is seen to hold'} pinned memory."


def _fitting(view: View, room: int, height: int) -> list[Line]:
    """As many holders as ``height`` lines take, the chosen one among them."""
    table = HolderTable(view, room)
    chosen = view.choice.row([row.holder.pid for row in table.rows])
    count = min(len(table.holders), max(height, 1))
    while True:
        begin = max(0, chosen - count + 1)
        lines = _holder_lines(table, begin, count, chosen)
        if len(lines) <= height or count <= 1:
            return lines
        count -= 1


def _flow(label: str, phrases: Iterable[str], room: int | None) -> list[str]:
    """Phrases in a row after their label; a line is broken between two phrases only."""
    indent = _LABEL if label else 0
    lines = [f"{label:{indent}}"]
    fresh = True
    for phrase in phrases:
        text = phrase if fresh else f" · {phrase}"
        if not fresh and room is not None and len(lines[-1]) + len(text) > room:
            lines.append(" " * indent)
            text = phrase
        lines[-1] += text
        fresh = False
    return lines


def _figure(record: Estimated, figure: Figure) -> str:
    """The figure in words, with a sign where it is an estimate."""
    value = getattr(record, figure.field)
    if figure.unit == "bytes/second" and value and value < LEAST_RATE:
        return f"<{format_bandwidth(LEAST_RATE)}"
    return figure_text(record, figure.field, figure.unit, because=False)


def _is_narrow(room: int | None) -> bool:
    return room is not None and room < NARROW


def _wrapped(text: str, room: int | None) -> list[str]:
    """The text in two lines at most. A number stays with its unit, and neither is ever cut."""
    if room is None:
        return [text]
    whole_figures = _FIGURE.sub("\\1\u00a0\\2", text)
    lines = textwrap.wrap(
        whole_figures,
        max(room, 20),
        subsequent_indent="  ",
        max_lines=2,
        placeholder=" …",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace("\u00a0", " ") for line in lines]
