"""What pinning lines of a program saved: the second run of ``--what-if`` beside the first, from the second's rows."""

from __future__ import annotations

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
        redirected: what was done for each line.
        lines: ``FILE:LINE`` of each.
    """

    seen: Seen
    before: Row
    redirected: tuple[Row, ...]
    lines: tuple[str, ...]

    @property
    def before_seconds(self) -> float:
        """The first run, from the first copy or kernel to the end of the last."""
        return float(self.before["active_seconds"])

    @property
    def saved(self) -> float:
        """Seconds; below 0 where it took longer."""
        return self.before_seconds - self.seen.seconds

    @property
    def exit_code(self) -> int:
        """Of the second run; where it is not 0 there is nothing to compare."""
        return int(self.seen.program["exit_code"] or 0) if self.seen.program else 0

    @property
    def sites(self) -> tuple[Site, ...]:
        """Copies to the GPU that the lines made now."""
        return tuple(
            site for site in self.seen.sites
            if site.row["direction"] == "h2d" and f"{site.row['file']}:{site.row['line']}" in self.lines
        )  # fmt: skip

    @property
    def left(self) -> tuple[Site, ...]:
        """Large pageable copies that are left: of the lines, and those to the host."""
        mine = set(map(id, self.sites))
        return tuple(site for site in self.seen.pageable if id(site) in mine or site.row["direction"] == "d2h")

    @property
    def name(self) -> str:
        """The lines, shortly."""
        first = PurePath(self.lines[0]).name
        return first if len(self.lines) == 1 else f"{first} and {len(self.lines) - 1} more"


def what_if_in(run: Run, seen: Seen, rows: Sequence[Row]) -> WhatIf | None:
    """The comparison, if the run is such a second one and has ended."""
    before = next((row for row in rows if row["kind"] == "before"), None)
    lines = tuple(map(str, run.params.get("what_if") or ()))
    if before is None or seen.program is None or not lines:
        return None
    return WhatIf(seen, before, tuple(row for row in rows if row["kind"] == "redirected"), lines)


def what_if_verdict(what: WhatIf) -> str:
    """What it saved beside what was estimated, and whether the results are the same."""
    if code := what.exit_code:
        how = f"ended with exit code {code}" if code > 0 else f"was ended by signal {-code}"
        return f"With {what.name} pinned the program {how}."
    if not any(site.is_pinned for site in what.sites):
        return f"No copy of {what.name} could be made from pinned memory."
    before, now = what.before_seconds, what.seen.seconds
    if abs(what.saved) < SEEN_SHARE * before:
        first = f"Pinning {what.name} changed less than 1 %: {format_seconds(before)} before, {format_seconds(now)} now"
    elif what.saved > 0:
        first = f"Pinning {what.name} saved {format_seconds(what.saved)} of {format_seconds(before)}"
    else:
        first = f"Pinning {what.name} took {format_seconds(-what.saved)} more than the {format_seconds(before)} without"
    estimate = what.before["estimated_seconds"]
    expected = "" if estimate is None else f"; the estimate was {format_seconds(estimate)}"
    same = "The output was the same." if what.before["same_output"] else "The output differed."
    return " ".join(filter(None, (f"{first}{expected}.", same, _left(what))))


def _left(what: WhatIf) -> str:
    left = [site for site in what.left if site.row["direction"] == "h2d"]
    size = sum(site.row["bytes"] for site in left)
    return f"{format_bytes(size)} of its copies stayed pageable." if size else ""


def what_if_headline(what: WhatIf) -> Iterator[Quantity]:
    """The saving, measured and estimated, and of how much it is."""
    if what.exit_code:
        return
    yield quantity("Saved by pinning (measured)", what.saved, "seconds")
    estimate = what.before["estimated_seconds"]
    yield quantity("Saved by pinning (estimated)", estimate, "seconds", reason="the rate of pinned copies is not known")
    yield quantity("As it is, from the first copy or kernel to the last", what.before_seconds, "seconds")


def what_if_tables(what: WhatIf) -> Iterator[Table]:
    """Both runs beside each other, what was done for each line, and what was left."""
    if what.exit_code:
        return
    before, rows = what.before, [site.row for site in what.sites]
    idle = [row["idle_seconds"] for row in rows]
    yield table(
        "As it is, and pinned",
        {"": "text", "as it is": "seconds", "pinned": "seconds"},
        [
            ("From the first copy or kernel to the last", what.before_seconds, what.seen.seconds),
            ("The whole program", before["seconds"], what.seen.program["seconds"] if what.seen.program else None),
            ("GPU compute idle for the lines' copies", before["idle_seconds"], None if None in idle else sum(idle)),
            ("CPU held by their calls", before["call_seconds"], sum(row["call_seconds"] or 0.0 for row in rows)),
            ("Their transfers", before["copy_seconds"], sum(row["copy_seconds"] or 0.0 for row in rows)),
        ],
        note="One run each, both recorded alike: a difference below 1 % means nothing.",
    )
    yield table(
        "Lines made to copy from pinned memory",
        {
            "line": "text", "copies": "count", "bytes": "bytes", "gathered": "seconds", "waited": "seconds",
            "pinned": "bytes", "pinning took": "seconds", "remark": "text",
        },
        [
            (
                line_name(row), row["count"], row["bytes"], row["gather_seconds"], row["wait_seconds"],
                row["pinned_bytes"], row["pin_seconds"], row["reason"],
            )
            for row in what.redirected if row["count"] or row["reason"]
        ],
        note="Gathered: the CPU copied the data into pinned buffers, which a program that makes its data there need "
        "not do. Waited: until the GPU had read a buffer. Copies of batches that a DataLoader pinned are not counted "
        "here.",
    )  # fmt: skip
    yield table(
        "Still pageable",
        {"line": "text", "way": "text", "copies": "count", "bytes": "bytes", "why": "text"},
        [
            (site.name, site.row["direction"], site.row["large_count"], site.row["bytes"], _why(what, site))
            for site in what.left
        ],
    )


def _why(what: WhatIf, site: Site) -> str:
    if site.row["direction"] == "d2h":
        return "copies to the host are not redirected"
    place = (site.row["file"], site.row["line"])
    reason = next((row["reason"] for row in what.redirected if (row["file"], row["line"]) == place), None)
    return reason or "its call is none that can be redirected: Tensor.to, .cuda and .copy_, and CuPy's ndarray.set"


def what_if_findings(what: WhatIf) -> Iterator[Finding]:
    """A result that differs."""
    if not what.exit_code and not what.before["same_output"]:
        yield warning(
            "what-if-output-differs",
            quantity("Seconds of the second run", what.seen.seconds, "seconds"),
            title="With lines pinned the program wrote something else to stdout",
            detail="A program that prints times or uses random numbers without a seed does so in each run.",
            advice="Fix the seeds, print no times, and try again: then the same output shows that the results are "
            "equal.",
        )
