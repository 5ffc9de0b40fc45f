"""What pinning lines of a program saved: the second run of ``--what-if`` beside the first, from the second's rows."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from pinscope.analysis.rows import Row
from pinscope.experiments.trace.arithmetic import Seen, Site, line_name
from pinscope.records.finding import Finding, Quantity, Table, quantity, table, warning
from pinscope.records.run import Run
from pinscope.units import format_bytes, format_seconds

SEEN_SHARE = 0.01
"""Of the time: of less, two runs of one program differ anyway."""


@dataclass(frozen=True)
class WhatIf:
    """The second run.

    Attributes:
        seen: its own copies.
        before: the first run, and its copies of the pinned lines.
        lines_before: the copies of each line in it, where that was recorded.
        redirected: what was done for each line.
        lines: ``FILE:LINE`` of each.
    """

    seen: Seen
    before: Row
    lines_before: tuple[Row, ...]
    redirected: tuple[Row, ...]
    lines: tuple[str, ...]

    @property
    def before_seconds(self) -> float:
        """The first run, from the first copy of the lines to the end of the last copy or kernel: what a program sets up
        before takes longer or shorter by chance."""
        return float(self.before["active_seconds"] - (self.before["first_seconds"] or 0.0))

    @property
    def now_seconds(self) -> float:
        """The second run, likewise."""
        return self.seen.seconds - min((site.row["first_seconds"] or 0.0 for site in self.sites), default=0.0)

    @property
    def saved(self) -> float:
        """Seconds; below 0 where it took longer."""
        return self.before_seconds - self.now_seconds

    @property
    def sites(self) -> tuple[Site, ...]:
        """Copies to the GPU that the lines made now."""
        return tuple(
            site
            for site in self.seen.sites
            if site.row["direction"] == "h2d" and f"{site.row['file']}:{site.row['line']}" in self.lines
        )

    @property
    def left(self) -> tuple[Site, ...]:
        """Large pageable copies that are left: of the lines, and those to the host."""
        mine = set(map(id, self.sites))
        return tuple(site for site in self.seen.pageable if id(site) in mine or site.row["direction"] == "d2h")

    @property
    def name(self) -> str:
        """The lines, shortly."""
        first = PurePath(self.lines[0]).name
        more = len(self.lines) - 1
        return f"{first} and {more} more line{'s' if more > 1 else ''}" if more else first


def what_if_in(run: Run, seen: Seen, rows: Sequence[Row]) -> WhatIf | None:
    """The comparison, if the run is such a second one and has ended."""
    before = next((row for row in rows if row["kind"] == "before"), None)
    lines = tuple(map(str, run.params.get("what_if") or ()))
    if before is None or seen.program is None or not lines:
        return None
    of_lines, redirected = (tuple(row for row in rows if row["kind"] == kind) for kind in ("line_before", "redirected"))
    return WhatIf(seen, before, of_lines, redirected, lines)


def what_if_command(run: Run, seen: Seen) -> str | None:
    """What measures what pinning the first accused line saves; ``None`` where there is none, or that cannot be done:
    only copies of the program's own process can be redirected."""
    own = seen.processes[0]["process"] if seen.processes else None
    copies = (site for site in seen.pageable if site.row["direction"] == "h2d" and site.row["process"] == own)
    tried = next((site for site in copies if site.row["file"] and seen.is_worth(site)), None)
    program = run.params.get("program")
    if tried is None or not program or run.params.get("part") or run.params.get("what_if"):
        return None
    place = f"pin:{tried.row['file']}:{tried.row['line']}"
    return f"pinscope trace --what-if {shlex.quote(place)} {shlex.join(map(str, program))}"


def what_if_verdict(what: WhatIf) -> str:
    """What it saved beside what was estimated, and whether the results are the same."""
    if what.seen.failure:
        return f"With {what.name} pinned the program {what.seen.failure}."
    if not any(site.is_pinned for site in what.sites):
        return f"No copy of {what.name} could be made from pinned memory."
    before, now = what.before_seconds, what.now_seconds
    if abs(what.saved) < SEEN_SHARE * before:
        beside = f"as long as the {format_seconds(before)} without"
    else:
        difference = f"{format_seconds(abs(what.saved))} {'less' if what.saved > 0 else 'more'}"
        beside = f"{difference} than the {format_seconds(before)} without"
    estimate = what.before["estimated_seconds"]
    expected = (
        ""
        if estimate is None
        else f"; the estimate, for data made in pinned memory, was {format_seconds(estimate)} less"
    )
    whose = "that line's" if len(what.lines) == 1 else "these lines'"
    took = f"{format_seconds(now)} from {whose} first copy on"
    first = f"With {what.name} pinned the program took {took}, {beside}{expected}."
    same = f"The two runs wrote {'the same' if what.before['same_output'] else 'different things'} to stdout."
    return " ".join(filter(None, (first, _gathering(what), same, _left(what))))


def _gathering(what: WhatIf) -> str:
    took = sum(row["gather_seconds"] or 0.0 for row in what.redirected)
    if took < SEEN_SHARE * what.before_seconds:
        return ""
    return f"To copy the data into pinned memory first held the CPU for {format_seconds(took)}."


def _left(what: WhatIf) -> str:
    left = [site for site in what.left if site.row["direction"] == "h2d"]
    size = sum(site.row["bytes"] for site in left)
    return f"Of these lines' copies {format_bytes(size)} stayed pageable." if size else ""


def what_if_headline(what: WhatIf) -> Iterator[Quantity]:
    """The saving, measured and estimated, and of how much it is."""
    if what.seen.failure:
        return
    yield quantity("Saved by pinning (measured)", what.saved, "seconds")
    estimate = what.before["estimated_seconds"]
    yield quantity("Saved by pinning (estimated)", estimate, "seconds", reason="the rate of pinned copies is not known")
    yield quantity("As it is, from the lines' first copy to the end", what.before_seconds, "seconds")


def what_if_tables(what: WhatIf) -> Iterator[Table]:
    """Both runs beside each other, what was done for each line, and what was left."""
    if what.seen.failure:
        return
    before, rows = what.before, [site.row for site in what.sites]
    idle = [row["idle_seconds"] for row in rows]
    yield table(
        "As it is, and pinned",
        {"": "text", "as it is": "seconds", "pinned": "seconds"},
        [
            ("From the lines' first copy to the end of the last copy or kernel", what.before_seconds, what.now_seconds),
            ("From the first copy or kernel to the last", before["active_seconds"], what.seen.seconds),
            ("The whole program", before["seconds"], what.seen.program["seconds"] if what.seen.program else None),
            ("GPU compute idle for the lines' copies", before["idle_seconds"], None if None in idle else sum(idle)),
            (
                "CPU held by the lines",
                before["call_seconds"],
                sum(map(_held, rows)) + sum(map(_made_ready, what.redirected)),
            ),
            ("The transfers", before["copy_seconds"], sum(row["copy_seconds"] or 0.0 for row in rows)),
        ],
        note="One run each, both recorded alike. Two runs of a program may differ by several percent: repeat "
        "this before you trust a small difference.",
    )
    if len(what.lines_before) > 1:
        yield _of_each_line(what)
    yield table(
        "Lines made to copy from pinned memory",
        {
            "line": "text",
            "large copies": "count",
            "bytes": "bytes",
            "gathered in": "seconds",
            "waited for buffers": "seconds",
            "buffers": "bytes",
            "pinned in": "seconds",
            "remark": "text",
        },
        [
            (
                line_name(row),
                *(
                    row[name] if row["count"] else None
                    for name in ("count", "bytes", "gather_seconds", "wait_seconds", "pinned_bytes", "pin_seconds")
                ),
                row["reason"] or "",
            )
            for row in what.redirected
            if row["count"] or row["reason"]
        ],
        note="All of it held the CPU. Gathered: the data was copied into pinned buffers, which a program that makes "
        "its data there need not do. Waited: until the GPU had read a buffer. A DataLoader pins its batches in a "
        "thread of its own, which is not measured.",
    )
    yield table(
        "Still pageable",
        {"line": "text", "direction": "text", "large copies": "count", "bytes": "bytes", "why": "text"},
        [
            (site.name, site.row["direction"], site.row["large_count"], site.row["bytes"], _why(what, site))
            for site in what.left
        ],
    )


def _of_each_line(what: WhatIf) -> Table:
    rows = []
    for before in what.lines_before:
        place = (before["file"], before["line"])
        now = [site.row for site in what.sites if (site.row["file"], site.row["line"]) == place]
        idle = [row["idle_seconds"] for row in now]
        ready = sum(_made_ready(row) for row in what.redirected if (row["file"], row["line"]) == place)
        held = sum(map(_held, now)) + ready
        rows.append(
            (
                line_name(before),
                before["estimated_seconds"],
                before["call_seconds"],
                held if now else None,
                before["idle_seconds"],
                sum(idle) if now and None not in idle else None,
            )
        )
    columns = ("line", "saved (estimated)", "CPU held", "CPU held, pinned", "compute idle", "compute idle, pinned")
    return table(
        "Each line, as it is and pinned",
        {name: "seconds" if place else "text" for place, name in enumerate(columns)},
        rows,
        note="One run of all lines does not show what each saves of the program's time: try it alone with "
        "--what-if pin:FILE:LINE. CPU held, pinned, includes what is in the next table.",
    )


def _held(row: Row) -> float:
    return row["call_seconds"] or 0.0


def _made_ready(row: Row) -> float:
    """How long the CPU was held before the copies: gathering, waiting for buffers and pinning them."""
    return sum(row[name] or 0.0 for name in ("gather_seconds", "wait_seconds", "pin_seconds"))


def _why(what: WhatIf, site: Site) -> str:
    if site.row["direction"] == "d2h":
        return "copies to the host are not redirected"
    place = (site.row["file"], site.row["line"])
    reason = next((row["reason"] for row in what.redirected if (row["file"], row["line"]) == place), None)
    return reason or "only Tensor.to, .cuda and .copy_, and CuPy's ndarray.set, can be redirected"


def what_if_findings(what: WhatIf) -> Iterator[Finding]:
    """A result that differs."""
    if not what.seen.failure and not what.before["same_output"]:
        yield warning(
            "what-if-output-differs",
            quantity("Seconds of the second run", what.seen.seconds, "seconds"),
            title="With lines pinned the program wrote something else to stdout",
            detail="A program that prints times or uses random numbers without a seed does so in each run.",
            advice="Fix the seeds, print no times, and try again: then the same output shows that the results are "
            "equal.",
        )
