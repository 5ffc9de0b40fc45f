"""Asynchronous copies whose data is used before they are done: reads that were watched, what could not be watched, and
what a second run with waits proved."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from pinscope.analysis.read_rows import Row
from pinscope.analysis.texts import Costed, Text, Texts, joined, say
from pinscope.records.run import Finding, Quantity, Run, Table, quantity
from pinscope.tracing.sites import Headed, Seen, Site, headed_table, line_name

_ADVICE = (
    "Call stream.synchronize(), or synchronize() of an event recorded behind the copy, just before the data is read."
)
_OF_SOURCE = (
    "Change the source only once an event recorded behind the copy is done: event.synchronize(), or two buffers in "
    "turn."
)
NEARLY_ALL = 0.9
"""Of a line's copies: where so many were watched, the others were read by nobody, as those of a loop's end."""
TEXTS: Texts = {
    "read-before-copied": Text(
        "a tensor to which PyTorch copies asynchronously is read on the host before anything waits for the copy",
        "{read} reads data of {line} before the copy is done: {early:,} of {times:,} copies",
        "By {call}. {flying:,} reads came while the copy ran: their data was wrong or half old[; before the other "
        "{lucky:,} nothing waited, and the copy happened to be done].",
        _ADVICE,
        "critical",
    ),
    "read-before-copied/luck": Text(
        "the same, where each copy happened to be done",
        "{read} reads data of {line} and nothing waits for the copy before: {early:,} of {times:,} copies",
        "By {call}. Each copy happened to be done this time; where the GPU has more to do, it is not.",
        _ADVICE,
        "warning",
    ),
    "reads-not-watched": Text(
        "a line copies asynchronously into pinned memory of the host, does not wait itself, and reads of that memory "
        "cannot be watched",
        "{line} copies to the host asynchronously {times:,} times: reads before a wait were not watched",
        "Only reads by PyTorch of the tensor that it copied to can be watched. NumPy, CuPy and C read memory without a "
        "call.",
        "'{command}' runs the program again with waits: other output is proof that data is read too early.",
    ),
    "used-before-copied": Text(
        "--what-if wait: the output differs without a wait behind the copies of a line, and two runs with waits give "
        "the same",
        "Wrong data: a wait behind the copies of {line} changes {output}",
        "{proof} The copies go to the host: their data is read before they are done.",
        _ADVICE,
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


def waited_in(run: Run, seen: Seen, rows: Sequence[Row]) -> Waited | None:
    """The comparison, if the run is such a second one and has ended."""
    before = next((row for row in rows if row["kind"] == "before"), None)
    if before is None or seen.program is None or not run.params.get("waits"):
        return None
    lines, differences = ([row for row in rows if row["kind"] == kind] for kind in ("waited", "difference"))
    return Waited(seen, before, tuple(lines), tuple(differences))


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


def waited_verdict(waited: Waited) -> str:
    """What is proven."""
    if waited.seen.failure:
        return f"With waits the program {waited.seen.failure}."
    if waited.is_proof:
        return f"Wrong data: waits behind the copies of {_lines(waited.guilty)} change {waited.output}."
    if waited.differences:
        return f"Nothing is proven: two runs with waits give other output, in {waited.output}."
    return f"No early use was shown: with waits behind the copies of {_lines(waited.lines)} the output is the same."


def waited_headline(waited: Waited) -> Iterator[Quantity]:
    """How many lines need a wait, and what the waits cost."""
    proven = len(waited.guilty) if waited.is_proof else 0
    yield quantity("Lines whose data is used too early", proven, "count", key="what_if.early")
    yield quantity("Lines waited for", len(waited.lines), "count", key="what_if.waited")
    yield quantity(
        "As it is, from the first copy or kernel", waited.before["active_seconds"], "seconds", key="what_if.before"
    )


def waited_tables(waited: Waited) -> Iterator[Table]:
    """Each line, and what differs."""
    words = {None: "not tried", True: "needs its wait", False: "same without"}
    yield headed_table(
        "Lines waited for",
        [
            {
                "line": ("text", line_name(row)),
                "direction": ("text", row["direction"]),
                "waits": ("count", row["count"]),
                "without its wait": ("text", words[row["needed"]] if waited.is_proof else "–"),
                "not waited for": ("text", row["reason"] or ""),
                "source": ("text", row["source_line"] or None),
            }
            for row in waited.lines
        ],
        "A wait stood behind each asynchronous copy of these lines. Needs its wait: without this one alone the program "
        "gives other output.",
    )
    yield headed_table(
        "What differs",
        [{"output": ("text", _output(row)), "first": ("count", row["count"] or None)} for row in waited.differences],
        "Between the program as it is and the run with waits. First: the number of the first array that differs.",
    )


def waited_findings(waited: Waited) -> Iterator[Finding]:
    """What is proven, and what is not."""
    if waited.seen.failure:
        return
    for row in waited.guilty:
        alone = "one without this line's wait did not" if row["needed"] else "it is one of these lines, or several"
        yield say(
            TEXTS,
            f"used-before-copied{'/source' if row['direction'] == 'h2d' else ''}",
            quantity("Waits put in", row["count"], "count"),
            line=line_name(row),
            output=waited.output,
            proof=f"Two runs with waits gave the same, {alone}.",
        )[1]
    if waited.differences and not waited.is_proof:
        yield say(TEXTS, "output-never-the-same", output=waited.output)[1]
    if not waited.differences:
        arrays = waited.before["arrays"] or 0
        compared = f"stdout and the arrays of {arrays:,} lines were" if arrays else "stdout alone was"
        yield say(TEXTS, "no-early-use-shown", compared=compared)[1]
    for row in waited.lines:
        if row["reason"] or not row["count"]:
            yield say(TEXTS, "not-waited-for", line=line_name(row), left=row["reason"] or "any of its copies")[1]


# A plain trace


def copies_behind_the_call(site: Site) -> bool:
    """Whether the call may return before the copy is done: it is asynchronous or launches a graph, and the memory of
    the host is pinned."""
    call = site.row["call"] or ""
    over_the_link = site.row["direction"] in ("h2d", "d2h")
    return over_the_link and site.host_memory == "pinned" and ("Async" in call or "GraphLaunch" in call)


def unwatched(seen: Seen) -> list[Site]:
    """Lines that copy asynchronously to the host, do not wait themselves, and of which reads were not all watched."""
    watched: dict[tuple[str, int, int | None], int] = {}
    for row in seen.watched:
        place = row["file"], row["line"], row["process"]
        watched[place] = watched.get(place, 0) + row["count"]
    return [
        site
        for site in seen.read_later
        if copies_behind_the_call(site)
        and watched.get((site.row["file"], site.row["line"], site.row["process"]), 0) < NEARLY_ALL * site.row["count"]
    ]


def hazard_verdict(seen: Seen) -> str:
    """The line that reads too early most often; empty where none is known to."""
    if not seen.early_reads:
        return ""
    row = seen.early_reads[0]
    reads = f"{line_name(row)} reads what {_copied_at(row)} copies"
    if not row["in_flight_count"]:
        return f"{reads}, {_times(row)}, and nothing waits for the copy before."
    return f"Wrong data: {reads} before the copy is done, {_times(row)}."


def unwatched_words(seen: Seen) -> str:
    """That nobody knows whether data is read too early; empty where that is known."""
    sites = unwatched(seen)
    return (
        f"Not watched: whether what {sites[0].name} copies to the host is read before the copy is done."
        if sites
        else ""
    )


def hazard_findings(seen: Seen) -> Iterator[Costed]:
    """Early reads, and what could not be watched."""
    for row in seen.early_reads:
        lucky = row["count"] - row["in_flight_count"]
        yield say(
            TEXTS,
            "read-before-copied" if row["in_flight_count"] else "read-before-copied/luck",
            quantity("Copies that were read before a wait", row["count"], "count"),
            quantity("Of these, while the copy ran", row["in_flight_count"], "count"),
            read=line_name(row),
            line=_copied_at(row),
            early=row["count"],
            times=_copies(seen, row),
            call=row["call"],
            flying=row["in_flight_count"],
            lucky=lucky or None,
        )
    program = shlex.join(map(str, seen.run.params.get("program") or ("PROGRAM",)))
    for site in unwatched(seen):
        yield say(
            TEXTS,
            "reads-not-watched",
            quantity("Copies", site.row["count"], "count"),
            line=site.name,
            times=site.row["count"],
            command=f"pinscope trace --what-if wait {program}",
        )


def early_reads_table(seen: Seen) -> Table:
    """Reads that came too early."""
    rows: list[Headed] = [
        {
            "read at": ("text", line_name(row)),
            "by": ("text", row["call"]),
            "copied at": ("text", _copied_at(row)),
            "before a wait": ("count", row["count"]),
            "while the copy ran": ("count", row["in_flight_count"]),
            "source": ("text", row["source_line"] or None),
        }
        for row in seen.early_reads
    ]
    return headed_table(
        "Read before the copy was done",
        rows,
        "Of tensors to which PyTorch copied asynchronously. Before a wait: no call waited for the GPU since the copy.",
    )


def _copied_at(row: Row) -> str:
    return f"{PurePath(row['copy_file']).name}:{row['copy_line']}"


def _copies(seen: Seen, read: Row) -> int:
    """How many copies of the line were watched that made what was read."""
    place = read["copy_file"], read["copy_line"], read["process"]
    return sum(row["count"] for row in seen.watched if (row["file"], row["line"], row["process"]) == place)


def _times(row: Row) -> str:
    return f"{row['count']:,} time{'s' if row['count'] > 1 else ''}"
