"""A second run of a program, with lines pinned, beside the first: what that saved."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from pinscope.analysis.read_rows import Row
from pinscope.records.run import Quantity, Run, Table, quantity, table
from pinscope.tracing.sites import Headed, Seen, Site, headed_table, line_name
from pinscope.tracing.trace.cpu_work import is_hidden
from pinscope.tracing.trace.pageable import waits_for_file
from pinscope.units import format_seconds, format_share

TO_HOST = "copies to the host are not redirected"
SEEN_SHARE = 0.01
"""Of the time: of less, two runs of one program differ anyway."""


@dataclass(frozen=True)
class WhatIf:
    """The second run.

    Attributes:
        seen: its own copies.
        before: the first run, and its copies of the pinned lines.
        redirected: what was done for each line.
        lines: ``FILE:LINE`` of each.
    """

    seen: Seen
    before: Row
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
        own = set(map(id, self.sites))
        return tuple(site for site in self.seen.pageable if id(site) in own or site.row["direction"] == "d2h")

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
    return WhatIf(seen, before, tuple(row for row in rows if row["kind"] == "redirected"), lines)


def what_if_verdict(what: WhatIf) -> str:
    """What it saved, and whether the results are the same."""
    if what.seen.failure:
        return f"With {what.name} pinned the program {what.seen.failure}."
    if not any(site.is_pinned for site in what.sites):
        return f"No copy of {what.name} could be made from pinned memory."
    before, output = what.before_seconds, "the same output" if what.before["same_output"] else "different output"
    if abs(what.saved) < SEEN_SHARE * before:
        did = f"saved nothing measurable of {format_seconds(before)}"
    else:
        share = format_share(abs(what.saved) / before)
        did = f"{'saved' if what.saved > 0 else 'cost'} {format_seconds(abs(what.saved))} ({share})"
    return f"Pinning {what.name} {did}, measured once, with {output}."


def what_if_headline(what: WhatIf) -> Iterator[Quantity]:
    """The saving, measured and estimated, and of how much it is."""
    if what.seen.failure:
        return
    yield quantity("Saved by pinning (measured)", what.saved, "seconds", key="what_if.saved")
    estimate = what.before["estimated_seconds"]
    reason = "the rate of pinned copies is not known"
    yield quantity("Saved by pinning (estimated)", estimate, "seconds", reason=reason, key="what_if.estimated")
    yield quantity(
        "As it is, from the lines' first copy to the end", what.before_seconds, "seconds", key="what_if.before"
    )


def what_if_tables(what: WhatIf) -> Iterator[Table]:
    """Both runs beside each other, what was done for each line, and what was left."""
    if what.seen.failure:
        return
    if any(site.is_pinned for site in what.sites):
        yield _both_runs(what)
    left = {_place(site.row) for site in what.left}
    yield headed_table(
        "Lines made to copy from pinned memory",
        [_made_to_copy(row) for row in what.redirected if row["count"] or (row["reason"] and _place(row) not in left)],
        "All of it held the CPU. Gathered: the data was copied into pinned buffers, which a program that makes "
        "its data there need not do. Waited: until the GPU had read a buffer. A DataLoader pins its batches in a "
        "thread of its own, which is not measured.",
    )
    yield headed_table(
        "Still pageable",
        [
            {
                "line": ("text", site.name),
                "direction": ("text", site.row["direction"]),
                "large copies": ("count", site.row["large_count"]),
                "bytes": ("bytes", site.row["bytes"]),
                "why": ("text", _why(what, site)),
            }
            for site in what.left
        ],
    )


def _both_runs(what: WhatIf) -> Table:
    before, rows = what.before, [site.row for site in what.sites]
    return table(
        "As it is, and pinned",
        {"": "text", "as it is": "seconds", "pinned": "seconds"},
        [
            ("From the lines' first copy to the end of the last copy or kernel", what.before_seconds, what.now_seconds),
            ("From the first copy or kernel to the last", before["active_seconds"], what.seen.seconds),
            ("The whole program", before["seconds"], what.seen.program["seconds"] if what.seen.program else None),
            ("GPU compute idle for the lines' copies", before["idle_seconds"], _idle_seconds(rows)),
            ("CPU held by the lines", before["call_seconds"], _held(rows, what.redirected)),
            ("The transfers", before["copy_seconds"], sum(row["copy_seconds"] or 0.0 for row in rows)),
        ],
        note="One run each, both recorded alike. Two runs of a program may differ by several percent: repeat "
        "this before you trust a small difference. What one of several lines saves, --what-if pin:FILE:LINE tells.",
    )


def _made_to_copy(row: Row) -> Headed:
    given = row if row["count"] else {}
    return {
        "line": ("text", line_name(row)),
        "large copies": ("count", given.get("count")),
        "bytes": ("bytes", given.get("bytes")),
        "gathered in": ("seconds", given.get("gather_seconds")),
        "waited for buffers": ("seconds", given.get("wait_seconds")),
        "buffers": ("bytes", given.get("pinned_bytes")),
        "pinned in": ("seconds", given.get("pin_seconds")),
        "remark": ("text", row["reason"] or ""),
    }


def _place(row: Row) -> tuple[str, int]:
    return row["file"], row["line"]


def _held(copies: Sequence[Row], redirected: Sequence[Row]) -> float:
    """How long the CPU was held by copies, and before them: gathering, waiting for buffers and pinning them."""
    ready = sum(row[name] or 0.0 for row in redirected for name in ("gather_seconds", "wait_seconds", "pin_seconds"))
    return float(sum(row["call_seconds"] or 0.0 for row in copies) + ready)


def _idle_seconds(copies: Sequence[Row]) -> float | None:
    """How long compute stood idle for copies; ``None`` where that is not known of one."""
    idle = [row["idle_seconds"] for row in copies]
    return None if None in idle else sum(idle)


def _why(what: WhatIf, site: Site) -> str:
    if site.row["direction"] == "d2h":
        return TO_HOST
    reason = next((row["reason"] for row in what.redirected if _place(row) == _place(site.row)), None)
    return reason or "only Tensor.to, .cuda and .copy_, and CuPy's ndarray.set, can be redirected"


def what_if_command(run: Run, seen: Seen) -> str | None:
    """What measures what pinning the first accused line saves; ``None`` where there is none, where something else than
    pinning helps, or that cannot be done: only copies of the program's own process can be redirected."""
    own = seen.processes[0]["process"] if seen.processes else None
    copies = (site for site in seen.pageable if site.row["direction"] == "h2d" and site.row["process"] == own)
    pinned = (site for site in copies if not (is_hidden(site) or waits_for_file(site)))
    tried = next((site for site in pinned if site.row["file"] and seen.is_worth(site)), None)
    program = run.params.get("program")
    if tried is None or not program or any(run.params.get(name) for name in ("part", "attached", "what_if")):
        return None
    place = f"pin:{tried.row['file']}:{tried.row['line']}"
    return f"pinscope trace --what-if {shlex.quote(place)} {shlex.join(map(str, program))}"
