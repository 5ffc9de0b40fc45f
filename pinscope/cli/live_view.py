"""A snapshot as lines of text: totals, GPUs, holders, and what stands at the bottom of them."""

from __future__ import annotations

import platform
import re
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pinscope.cli.table import TableLines, lay_out
from pinscope.live.verdict import snapshot_verdict
from pinscope.records.bound import Estimated
from pinscope.records.environment import Link
from pinscope.records.figure import Figure, figures
from pinscope.records.finding import Finding
from pinscope.records.snapshot import DeviceFigures, Holder, HostTotals, Snapshot, Unreadable
from pinscope.records.timeline import Event
from pinscope.report.holder_table import COLUMNS, ON_GPUS, HolderRow, holder_rows
from pinscope.report.snapshot_facts import figure_text
from pinscope.text import one_line
from pinscope.units import format_bandwidth, format_bytes, format_share

GROWS = "▲"
MOST_EVENTS = 5
MOST_FINDINGS = 4
MOST_UNREADABLE = 3
COMMAND_CHARACTERS = 48
"""Of a command line in the table; the JSON has all of it."""
LEAST_RATE = 1e7
"""An idle link carries a few hundred kB/s of its own: digits that nobody needs."""
NARROW = 90
"""With fewer columns GPUs go without their names and holders without their command lines."""
_LABEL = 10
_FIGURE = re.compile(r"(\d) (\S)")
_EVENT_WORDS = {
    "appeared": "appeared with", "grew": "grew by", "released": "released", "ended": "ended, and gave back",
}  # fmt: skip
_HOST: Mapping[str, Figure] = {figure.field: figure for figure in figures(HostTotals)}
_PARTS_OF_PINNED = ("explained_bytes", "other_pinned_bytes")
_HEADINGS: Mapping[str, str] = {name: figure.short for name, figure in COLUMNS.items() if figure.short}


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


class Line(NamedTuple):
    """One line, and whether it is a heading or calls for attention."""

    text: str
    style: str = ""
    """As rich names it."""


def frame(view: View, room: int, height: int) -> list[Line]:
    """All of it on one screen of ``room`` columns: what does not fit is left out, and the line says how many."""
    top, bottom = head(view, room), tail(view, room)
    bottom = bottom[: max((height - len(top)) // 3, 0)]
    return [*top, *_fitting(view, room, height - len(top) - len(bottom)), *bottom][:height]


def whole(view: View, room: int | None = None) -> list[Line]:
    """Totals, GPUs and every holder, as long as they are."""
    return [*head(view, room), *_holder_lines(view, room, len(view.snapshot.holders))]


def head(view: View, room: int | None) -> list[Line]:
    """When it was, the host's totals, and its GPUs."""
    seen = view.snapshot
    title = [one_line(platform.node()), f"{seen.taken_at:%Y-%m-%d %H:%M:%S} UTC", *([view.note] if view.note else [])]
    lines = [Line(text, "bold") for text in _flow("", title, room)]
    if not view.chosen:
        lines += [Line(text, "bold") for text in _wrapped(one_line(snapshot_verdict(seen)), room)]
    lines += [Line(text) for label, phrases in _totals(seen) for text in _flow(label, phrases, room)]
    if view.trouble:
        lines += [Line(text, "bold red") for text in _wrapped(f"! {one_line(view.trouble)}", room)]
    if seen.devices:
        shown = _device_columns(_is_narrow(room))
        rows = [[_device_cells(one)[name] for name in shown] for one in seen.devices]
        numbers = [place for place, name in enumerate(shown) if name not in ("GPU", "link", "name")]
        lines += [Line(""), *_table(shown, rows, numbers, room)]
    return [*lines, Line("")]


def tail(view: View, room: int | None) -> list[Line]:
    """What was found, what cannot be read, and what happened last; a line each."""
    bad = [one for one in view.findings if one.severity in ("critical", "warning")]
    texts = [
        *((f"! {one_line(one.title)}", "bold") for one in bad[:MOST_FINDINGS]),
        *((f"? {gap_text(one)}", "") for one in view.snapshot.unreadable[:MOST_UNREADABLE]),
        *((event_text(one), "") for one in list(view.events)[-MOST_EVENTS:]),
    ]
    lines = [Line(part, style) for text, style in texts for part in _wrapped(text, room)]
    return [Line(""), *lines] if lines else []


def gap_text(gap: Unreadable) -> str:
    """What cannot be read and why."""
    return one_line(f"{gap.what}: {gap.reason}.")


def event_text(event: Event) -> str:
    """One event in words: ``09:50:11 python (4711) grew by 1 GiB of cudaHostAlloc, to 17 GiB``."""
    change = (
        f"{_EVENT_WORDS[event.kind]} {format_bytes(abs(event.change_bytes))} of {COLUMNS[f'{event.what}_bytes'].short}"
    )
    rest = f", to {format_bytes(event.total_bytes)}" if event.kind == "grew" else ""
    left = f", {format_bytes(event.total_bytes)} left" if event.kind == "released" else ""
    return one_line(f"{event.at:%H:%M:%S} {event.name} ({event.pid}) {change}{rest}{left}")


def _totals(seen: Snapshot) -> Iterator[tuple[str, list[str]]]:
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
    yield "Pinned", [_figure(host, pinned) + (f" ({format_share(share)})" if share is not None else ""), *parts]
    used, pool = _figure(host, _HOST["hugetlb_used_bytes"]), _figure(host, _HOST["hugetlb_pool_bytes"])
    others = [one for one in _HOST.values() if one.short and one.field not in _PARTS_OF_PINNED]
    yield (
        "Others",
        [
            *(f"{_figure(host, one)} {one.short}" for one in others),
            f"{used} of {pool} huge pages",
            *([f"stalled {format_share(host.pressure.some_10s_share)} of 10 s"] if host.pressure else []),
        ],
    )
    if seen.probe is not None:
        lost = [f"{seen.probe.lost_events:,} events lost"] if seen.probe.lost_events else []
        yield "Probe", [f"sees what is registered since {seen.probe.since:%H:%M:%S} UTC", *lost]


_DEVICE_FIGURES: Mapping[str, Figure] = {figure.short: figure for figure in figures(DeviceFigures) if figure.short}
_DEVICE_COLUMNS = ("GPU", *_DEVICE_FIGURES, "link", "name")


def _device_columns(narrow: bool) -> list[str]:
    """The least important ones only where there is room."""
    wide = {heading for heading, figure in _DEVICE_FIGURES.items() if figure.terminal == "room"} | {"name"}
    return [name for name in _DEVICE_COLUMNS if not (narrow and name in wide)]


def _device_cells(one: DeviceFigures) -> dict[str, str]:
    return {
        "GPU": str(one.index),
        **{heading: _figure(one, figure) for heading, figure in _DEVICE_FIGURES.items()},
        "link": "n/a" if one.link is None else _link_text(one.link),
        "name": one_line(one.name),
    }


def _link_text(link: Link) -> str:
    if link.kind != "pcie":
        return "NVLink-C2C"
    now, best = (link.generation_now, link.width_now), (link.generation_max, link.width_max)
    text = "Gen{}×{}".format(*("?" if part is None else part for part in now))
    return text if now == best or None in best else text + " of Gen{}×{}".format(*best)


def _holder_columns(holders: Sequence[Holder], probe: bool, narrow: bool) -> list[str]:
    """Those that say something of somebody; the least important ones only where there is room."""
    shown = [
        figure for figure in COLUMNS.values()
        if figure.short and (probe or not figure.probed) and not (narrow and figure.terminal == "room")
    ]  # fmt: skip
    own = [figure for figure in shown if figure.column not in ON_GPUS and _says_something(figure, holders)]
    on_gpus = ["GPUs", *(_HEADINGS[figure.column] for figure in shown if figure.column in ON_GPUS)]
    return [
        "pid", "user", *(_HEADINGS[figure.column] for figure in own),
        *(on_gpus if any(one.gpus for one in holders) else []), "program",
    ]  # fmt: skip


def _says_something(figure: Figure, holders: Sequence[Holder]) -> bool:
    always = figure.terminal == "always" or figure.probed
    return always or any((getattr(one, figure.field) or 0) > figure.common for one in holders)


def _holder_cells(one: HolderRow, columns: Collection[str], narrow: bool) -> dict[str, str]:
    name = _shortened(one_line(one.name if narrow else one.command or one.name) or "n/a")
    inside = f" [{one_line(one.container)}]" if one.container else ""
    return {
        "pid": str(one.pid),
        "user": one_line(one.user or "n/a"),
        **{heading: one.text(name) for name, heading in _HEADINGS.items() if heading in columns},
        "GPUs": ",".join(map(str, one.gpus)) or one.text("gpu_memory_bytes"),
        "program": f"{GROWS + ' ' if one.growing else ''}{name}{inside}",
    }


def _holder_lines(view: View, room: int | None, count: int) -> list[Line]:
    """The ``count`` holders with the most bytes, and how many there are besides."""
    holders = view.snapshot.holders
    if not holders and view.snapshot.host.explained_bytes is None:
        reason = view.snapshot.host.missing.get("explained_bytes")
        return [Line(one_line(f"Who holds pinned memory is not known{f': {reason}' if reason else ''}."))]
    if not holders:
        nobody = "None of the chosen processes holds" if view.chosen else "No process is seen to hold"
        return [Line(f"{nobody} pinned memory.")]
    columns = _holder_columns(holders, view.snapshot.probe is not None, _is_narrow(room))
    rows = []
    for one in holder_rows(holders[:count], view.growing):
        cells = _holder_cells(one, columns, _is_narrow(room))
        rows.append([cells[name] for name in columns])
    numbers = [place for place, name in enumerate(columns) if name not in ("user", "GPUs", "program")]
    lines = _table(columns, rows, numbers, room)
    return lines if count >= len(holders) else [*lines, Line(f"… and {len(holders) - count} more")]


def _fitting(view: View, room: int, height: int) -> list[Line]:
    """As many holders as ``height`` lines take."""
    count = min(len(view.snapshot.holders), max(height, 1))
    lines = _holder_lines(view, room, count)
    while len(lines) > height and count > 1:
        count -= 1
        lines = _holder_lines(view, room, count)
    return lines


def _table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: Collection[int], room: int | None
) -> list[Line]:
    laid: TableLines = lay_out(columns, rows, numbers, room)
    return [
        *(Line(text, "bold") for text in laid.headings),
        *(Line(text, "yellow" if GROWS in text else "") for text in laid.body),
    ]


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


def _shortened(command: str) -> str:
    return command if len(command) <= COMMAND_CHARACTERS else command[: COMMAND_CHARACTERS - 1] + "…"


def _wrapped(text: str, room: int | None) -> list[str]:
    """The text in two lines at most. A number stays with its unit, and neither is ever cut."""
    if room is None:
        return [text]
    whole_figures = _FIGURE.sub("\\1\u00a0\\2", text)
    lines = textwrap.wrap(
        whole_figures, max(room, 20), subsequent_indent="  ", max_lines=2, placeholder=" …",
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return [line.replace("\u00a0", " ") for line in lines]
