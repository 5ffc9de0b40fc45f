"""A second run of a program, changed by --what-if, beside the first: what lines pinned save, or waits prove."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from pinscope.analysis.read_rows import Row
from pinscope.analysis.texts import Text, Texts, joined, say
from pinscope.records.run import Finding, Quantity, Run, Table, quantity, table
from pinscope.tracing.sites import Headed, Seen, Site, headed_table, line_name
from pinscope.tracing.trace.cpu_work import is_hidden
from pinscope.tracing.trace.hazards import ADVICE
from pinscope.tracing.trace.pageable import waits_for_file
from pinscope.units import format_about, format_seconds, format_share

TO_HOST = "copies to the host are not redirected"
SEEN_SHARE = 0.01
"""Of the time: of less, two runs of one program differ anyway."""


_OF_SOURCE = (
    "Change the source only once an event recorded behind the copy is done: event.synchronize(), or two buffers in "
    "turn."
)
TEXTS: Texts = {
    "what-if-output-differs": Text(
        "the second run of --what-if wrote something else to stdout",
        "With lines pinned the program wrote something else to stdout",
        "A program that prints times or uses random numbers without a seed does so in each run.",
        "Fix the seeds, print no times, and try again: then the same output shows that the results are equal.",
        "warning",
    ),
    "used-before-copied": Text(
        "--what-if wait: the output differs without a wait behind the copies of a line, and two runs with waits give "
        "the same",
        "Wrong data: a wait behind the copies of {line} changes {output}",
        "{proof} The copies go to the host: their data is read before they are done.",
        ADVICE,
        "critical",
    ),
    "used-before-copied/source": Text(
        "the same of copies to the GPU",
        "Wrong data: a wait behind the copies of {line} changes {output}",
        "{proof} The copies go to the GPU: their source is overwritten before they are done.",
        _OF_SOURCE,
        "critical",
    ),
    "output-never-the-same": Text(
        "--what-if wait: two runs with waits give different output",
        "Nothing is proven: two runs with waits give other output, in {output}",
        "A program that prints times or uses random numbers without a seed does so in each run.",
        "Fix the seeds, print no times, and name what must be equal: pinscope.check('result', array).",
        "warning",
    ),
    "no-early-use-shown": Text(
        "--what-if wait: the runs give the same output",
        "With waits the output is the same, which is no proof: {compared} compared",
        "Data that is used too early shows only where it reaches the output, and the copy was late in that run.",
        "Name arrays that depend on the copies: pinscope.check('result', array).",
    ),
    "not-waited-for": Text(
        "--what-if wait: no wait could be put behind some copies",
        "{line}: no wait stands behind {left}",
        "What these copies carry may be used too early, and this run would not show it.",
        "Wait there by hand, and compare the output.",
        "warning",
    ),
}


@dataclass(frozen=True)
class Pinned:
    """The second run with lines pinned, beside the first.

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
    def now(self) -> Mapping[str, Any]:
        """The second run's copies of the lines, added up as the first's are."""
        return added_up(self.sites)

    @property
    def now_seconds(self) -> float:
        """The second run, likewise."""
        return float(self.seen.seconds - self.now["first_seconds"])

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

    @property
    def verdict(self) -> str:
        """What it saved, and whether the results are the same."""
        if self.seen.failure:
            return f"With {self.name} pinned the program {self.seen.failure}."
        if not any(site.is_pinned for site in self.sites):
            return f"No copy of {self.name} could be made from pinned memory."
        before, output = self.before_seconds, "the same output" if self.before["same_output"] else "different output"
        if abs(self.saved) < SEEN_SHARE * before:
            did = f"saved nothing measurable of {format_seconds(before)}"
        else:
            share = format_share(abs(self.saved) / before)
            did = f"{'saved' if self.saved > 0 else 'cost'} {format_seconds(abs(self.saved))} ({share})"
        estimate = self.before["estimated_seconds"]
        beside = "" if estimate is None else f" ({format_about(estimate)} was estimated)"
        return f"Pinning {self.name} {did}, measured once{beside}, with {output}."

    def headline(self) -> Iterator[Quantity]:
        """The saving, measured and estimated, and of how much it is."""
        if self.seen.failure:
            return
        yield quantity("Saved by pinning (measured)", self.saved, "seconds", key="what_if.saved")
        estimate = self.before["estimated_seconds"]
        reason = "the rate of pinned copies is not known"
        yield quantity("Saved by pinning (estimated)", estimate, "seconds", reason=reason, key="what_if.estimated")
        yield quantity(
            "As it is, from the lines' first copy to the end", self.before_seconds, "seconds", key="what_if.before"
        )

    def tables(self) -> Iterator[Table]:
        """Both runs beside each other, what was done for each line, and what was left."""
        if self.seen.failure:
            return
        if any(site.is_pinned for site in self.sites):
            yield self._both_runs()
        left = {_place(site.row) for site in self.left}
        made = [row for row in self.redirected if row["count"] or (row["reason"] and _place(row) not in left)]
        gathers = any(row["count"] for row in made)
        yield headed_table(
            "Lines made to copy from pinned memory",
            [_made_to_copy(row, gathers) for row in made],
            "All of it held the CPU. Gathered: the data was copied into pinned buffers, which a program that makes "
            "its data there need not do. Waited: until the GPU had read a buffer."
            if gathers
            else "A DataLoader pins its batches in a thread of its own, which is not measured.",
        )
        yield headed_table(
            "Still pageable",
            [
                {
                    "line": ("text", site.name),
                    "direction": ("text", site.row["direction"]),
                    "large copies": ("count", site.row["large_count"]),
                    "bytes": ("bytes", site.row["bytes"]),
                    "why": ("text", self._why(site)),
                }
                for site in self.left
            ],
        )

    def findings(self) -> Iterator[Finding]:
        """A result that differs."""
        if not self.seen.failure and not self.before["same_output"]:
            seconds = quantity("Seconds of the second run", self.seen.seconds, "seconds")
            yield say(TEXTS, "what-if-output-differs", seconds)[1]

    def _both_runs(self) -> Table:
        before, now = self.before, self.now
        ready = sum(row[f"{part}_seconds"] or 0.0 for row in self.redirected for part in ("gather", "wait", "pin"))
        parts = {
            "From the lines' first copy to the end of the last copy or kernel": (self.before_seconds, self.now_seconds),
            "From the first copy or kernel to the last": (before["active_seconds"], self.seen.seconds),
            "The whole program": (before["seconds"], self.seen.program["seconds"]),
            "GPU compute idle for the lines' copies": (before["idle_seconds"], now["idle_seconds"]),
            "CPU held by the lines": (before["call_seconds"], now["call_seconds"] + ready),
            "The transfers": (before["copy_seconds"], now["copy_seconds"]),
        }
        return table(
            "As it is, and pinned",
            {"": "text", "as it is": "seconds", "pinned": "seconds"},
            [(part, *both) for part, both in parts.items()],
            note="One run each, both recorded alike. Two runs of a program may differ by several percent: repeat "
            "this before you trust a small difference. What one of several lines saves, --what-if pin:FILE:LINE tells.",
        )

    def _why(self, site: Site) -> str:
        if site.row["direction"] == "d2h":
            return TO_HOST
        reason = next((row["reason"] for row in self.redirected if _place(row) == _place(site.row)), None)
        return reason or "only Tensor.to, .cuda and .copy_, and CuPy's ndarray.set, can be redirected"


def _made_to_copy(row: Row, gathers: bool) -> Headed:
    given = row if row["count"] else {}
    work: Headed = {
        "large copies": ("count", given.get("count")),
        "bytes": ("bytes", given.get("bytes")),
        "gathered in": ("seconds", given.get("gather_seconds")),
        "waited for buffers": ("seconds", given.get("wait_seconds")),
        "buffers": ("bytes", given.get("pinned_bytes")),
        "pinned in": ("seconds", given.get("pin_seconds")),
    }
    return {"line": ("text", line_name(row)), **(work if gathers else {}), "remark": ("text", row["reason"] or "")}


def added_up(sites: Sequence[Site]) -> dict[str, Any]:
    """Copies of some lines, added up."""
    rows, saved = [site.row for site in sites], [site.saved_in_place for site in sites]
    idle = [row["idle_seconds"] for row in rows]
    return {
        "count": sum(row["count"] for row in rows),
        "bytes": sum(row["bytes"] for row in rows),
        "call_seconds": sum(row["call_seconds"] or 0.0 for row in rows),
        "copy_seconds": sum(row["copy_seconds"] or 0.0 for row in rows),
        "idle_seconds": None if None in idle else sum(idle),
        "first_seconds": min((row["first_seconds"] or 0.0 for row in rows), default=0.0),
        "estimated_seconds": None if None in saved else sum(seconds or 0.0 for seconds in saved),
    }


def _place(row: Row) -> tuple[str, int]:
    return row["file"], row["line"]


@dataclass(frozen=True)
class Waited:
    """A second run with waits, and the first.

    Attributes:
        seen: its own copies.
        before: the first run.
        lines: those whose copies were waited for.
        differences: what differs.
    """

    seen: Seen
    before: Row
    lines: tuple[Row, ...]
    differences: tuple[Row, ...]

    @property
    def is_proof(self) -> bool:
        """Whether the output differs, and not by chance."""
        return bool(self.differences and self.before["same_twice"])

    @property
    def guilty(self) -> tuple[Row, ...]:
        """Lines whose data is used too early: those that need their wait or, where none does alone, all."""
        if not self.is_proof:
            return ()
        return tuple(row for row in self.lines if row["needed"]) or self.lines

    @property
    def output(self) -> str:
        """What differs."""
        return _names(list(map(_output, self.differences)), 1)

    @property
    def verdict(self) -> str:
        """What is proven."""
        if self.seen.failure:
            return f"With waits the program {self.seen.failure}."
        if self.is_proof:
            return f"Wrong data: waits behind the copies of {_lines(self.guilty)} change {self.output}."
        if self.differences:
            return f"Nothing is proven: two runs with waits give other output, in {self.output}."
        return f"No early use was shown: with waits behind the copies of {_lines(self.lines)} the output is the same."

    def headline(self) -> Iterator[Quantity]:
        """How many lines need a wait, and what the waits cost."""
        proven = len(self.guilty) if self.is_proof else 0
        yield quantity("Lines whose data is used too early", proven, "count", key="what_if.early")
        yield quantity("Lines waited for", len(self.lines), "count", key="what_if.waited")
        yield quantity(
            "As it is, from the first copy or kernel", self.before["active_seconds"], "seconds", key="what_if.before"
        )

    def tables(self) -> Iterator[Table]:
        """Each line, and what differs."""
        words = {None: "not tried", True: "needs its wait", False: "same without"}
        yield headed_table(
            "Lines waited for",
            [
                {
                    "line": ("text", line_name(row)),
                    "direction": ("text", row["direction"]),
                    "waits": ("count", row["count"]),
                    "without its wait": ("text", words[row["needed"]] if self.is_proof else "–"),
                    "not waited for": ("text", row["reason"] or ""),
                    "source": ("text", row["source_line"] or None),
                }
                for row in self.lines
            ],
            "A wait stood behind each asynchronous copy of these lines. Needs its wait: without this one alone the "
            "program gives other output.",
        )
        yield headed_table(
            "What differs",
            [{"output": ("text", _output(row)), "first": ("count", row["count"] or None)} for row in self.differences],
            "Between the program as it is and the run with waits. First: the number of the first array that differs.",
        )

    def findings(self) -> Iterator[Finding]:
        """What is proven, and what is not."""
        if self.seen.failure:
            return
        for row in self.guilty:
            alone = "one without this line's wait did not" if row["needed"] else "it is one of these lines, or several"
            yield say(
                TEXTS,
                f"used-before-copied{'/source' if row['direction'] == 'h2d' else ''}",
                quantity("Waits put in", row["count"], "count"),
                line=line_name(row),
                output=self.output,
                proof=f"Two runs with waits gave the same, {alone}.",
            )[1]
        if self.differences and not self.is_proof:
            yield say(TEXTS, "output-never-the-same", output=self.output)[1]
        if not self.differences:
            arrays = self.before["arrays"] or 0
            compared = f"stdout and the arrays of {arrays:,} lines were" if arrays else "stdout alone was"
            yield say(TEXTS, "no-early-use-shown", compared=compared)[1]
        for row in self.lines:
            if row["reason"] or not row["count"]:
                yield say(TEXTS, "not-waited-for", line=line_name(row), left=row["reason"] or "any of its copies")[1]


def _output(row: Row) -> str:
    """``stdout``, ``numpy.save at train.py:30``, or ``'loss' at train.py:33``."""
    if not row["line"]:
        return str(row["output"])
    is_function = str(row["output"]).startswith(("numpy.", "torch."))
    return f"{row['output'] if is_function else repr(row['output'])} at {PurePath(row['file']).name}:{row['line']}"


def _lines(rows: Sequence[Row]) -> str:
    return _names([line_name(row) for row in rows], 2)


def _names(names: Sequence[str], most: int) -> str:
    more = [f"{len(names) - most:,} more"] if len(names) > most else []
    return joined([*names[:most], *more])


def second_run_in(seen: Seen, rows: Sequence[Row]) -> Pinned | Waited | None:
    """The comparison, if the run is such a second one and has ended."""
    before = next((row for row in rows if row["kind"] == "before"), None)
    if before is None or not seen.has_ended:
        return None
    redirected, waited, differences = (
        tuple(row for row in rows if row["kind"] == kind) for kind in ("redirected", "waited", "difference")
    )
    if seen.run.params.get("waits"):
        return Waited(seen, before, waited, differences)
    lines = tuple(map(str, seen.run.params.get("what_if") or ()))
    return Pinned(seen, before, redirected, lines) if lines else None


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
