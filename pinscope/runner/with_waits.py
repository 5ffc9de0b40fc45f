"""``pinscope trace --what-if wait``: a program once more, with a wait behind each asynchronous copy. Other output is
proof that its data was used too early; without the wait of a line alone, that it is this line's."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from pinscope.experiments.registry import answer_at_end, checked_rows
from pinscope.records.trace_row import TraceRow
from pinscope.runner.traced_program import Variant
from pinscope.runner.tracing import Compared, HeardStdout, Lines, Traced, how_it_ended, place_of_site
from pinscope.store.store import Store
from pinscope.tracing.checks import CHECKS
from pinscope.tracing.line_totals import numbered, unnumbered
from pinscope.tracing.sites import Seen, Site, seen_in
from pinscope.tracing.trace.hazards import copies_behind_the_call
from pinscope.tracing.waits import ACCOUNT

MOST_TRIED = 8
"""Lines for each of which the program runs again, to tell which of them needs its wait."""


class _Array(NamedTuple):
    """What a program saved or named: how, and the line."""

    name: str
    file: str
    line: int


class _Difference(NamedTuple):
    """What differs first; ``number``: which of the arrays of that name and line, from 1 on; ``None``: how many."""

    array: _Array
    number: int | None


@dataclass(frozen=True)
class Output:
    """What one run of the program gave.

    Attributes:
        stdout: its sum.
        exit_code: with which it ended: a program may notice that its data is wrong.
        arrays: the sums of each array, in their order.
    """

    stdout: str
    exit_code: int | None
    arrays: Mapping[_Array, Sequence[str]]

    def differences(self, other: Output) -> list[_Difference]:
        """From another one; empty where both are the same."""
        whole = {"stdout": self.stdout != other.stdout, "the exit code": self.exit_code != other.exit_code}
        differing = [_Difference(_Array(name, "", 0), None) for name, differs in whole.items() if differs]
        for array in {**self.arrays, **other.arrays}:
            ours, theirs = self.arrays.get(array, ()), other.arrays.get(array, ())
            pairs = enumerate(zip(ours, theirs, strict=False), 1)
            first = next((number for number, pair in pairs if pair[0] != pair[1]), None)
            if first is not None or len(ours) != len(theirs):
                differing.append(_Difference(array, first))
        return differing


class _Ran(NamedTuple):
    """A run that has ended; ``problem``: why it cannot be compared."""

    traced: Traced
    output: Output
    waited: Mapping[tuple[str, int], Mapping[str, Any]]
    problem: str | None


@dataclass(frozen=True)
class WaitRuns:
    """The runs of a program, each kept or not.

    Args:
        store: where they are kept.
        trace: traces the program, and keeps the trace.
        announce: gets a line before each further run.
    """

    store: Store
    trace: Callable[[Variant], Traced]
    announce: Callable[[str], object]

    def compare(self, wanted: Lines) -> Compared:
        """Run the program as it is, and with waits.

        Args:
            wanted: lines behind whose copies it waits; empty: behind those of all that copy asynchronously.
        """
        first = self._run(None, {})
        if first.traced.run.error:
            return Compared(first.traced, None, "the program was not recorded, so it was not run again")
        seen = seen_in(first.traced.run, checked_rows(first.traced.run.experiment, first.traced.rows))
        sites = [site for site in asynchronous(seen) if not wanted or place_of_site(site) in wanted]
        lines = list(dict.fromkeys([*wanted, *map(place_of_site, sites)]))
        if not lines:
            problem = "no line copies asynchronously from or to pinned memory: there is nothing to wait for"
            return Compared(first.traced, None, problem)
        self.announce(f"the program runs again, with a wait behind each asynchronous copy of {_names(lines)}")
        params = {"waits": tuple(f"{file}:{line}" for file, line in lines), "what_if_of": first.traced.run.id}
        second = self._run(lines, params)
        if second.problem and second.output.exit_code != first.output.exit_code:
            return Compared(first.traced, second.traced, f"with waits {second.problem}")
        differences = first.output.differences(second.output)
        is_same_twice, needed = True, dict[tuple[str, int], bool]()
        if differences:
            is_same_twice = self._gives(second.output, lines, "once more: are two runs with waits the same?")
            needed = self._needed(lines, sites, second.output) if is_same_twice else {}
        rows = [
            _before(seen, sites, not differences, is_same_twice, len(first.output.arrays)),
            *_waited(lines, second, sites, needed),
            *map(_difference, differences),
        ]
        return Compared(first.traced, _with_rows(self.store, second.traced, rows))

    def _needed(self, lines: Lines, sites: Iterable[Site], output: Output) -> dict[tuple[str, int], bool]:
        """Of each line whether the output differs without its wait alone; nothing of lines that were not tried. Copies
        to the host first, then by bytes."""
        ranked = sorted(sites, key=lambda site: (site.row["direction"] != "d2h", -site.row["bytes"]))
        tried = list(dict.fromkeys(place_of_site(site) for site in ranked))[:MOST_TRIED]
        if len(lines) == 1:
            return dict.fromkeys(tried, True)
        return {
            line: not self._gives(
                output, [other for other in lines if other != line], f"without that of {_names([line])}"
            )
            for line in tried
        }

    def _gives(self, output: Output, lines: Lines, why: str) -> bool:
        """Whether the program gives this output with waits behind the copies of these lines."""
        self.announce(f"the program runs again, {why}")
        ran = self._run(lines, {"waits": ()})
        if ran.traced.saved is None:
            self.store.delete(ran.traced.run.id)
        return not output.differences(ran.output)

    def _run(self, waits: Lines | None, params: Mapping[str, Any]) -> _Ran:
        spools: list[tuple[Mapping[_Array, Sequence[str]], Mapping[tuple[str, int], Mapping[str, Any]]]] = []

        def read(spool: Path) -> Iterator[TraceRow]:
            spools.append((_arrays(spool), _account(spool)))
            yield from ()

        is_first = waits is None
        with HeardStdout(pass_on=is_first) as stdout, tempfile.TemporaryFile() as stderr:
            variant = Variant(
                stdin=None if is_first else subprocess.DEVNULL,  # the first run has read ours
                stdout=stdout.descriptor,
                stderr=None if is_first else stderr.fileno(),
                waits=waits,
                checks=True,
                params=params,
                rows=read,
            )
            traced = self.trace(variant)
            failed = how_it_ended(traced.exit_code, stderr) if traced.exit_code else traced.run.error
            arrays, waited = spools[0] if spools else ({}, {})
            return _Ran(traced, Output(stdout.finish(), traced.exit_code, arrays), waited, failed)


def asynchronous(seen: Seen) -> list[Site]:
    """Lines of the program's own process whose copies from or to pinned memory return before they are done."""
    own = seen.processes[0]["process"] if seen.processes else None
    return [
        site for site in seen.sites if copies_behind_the_call(site) and site.row["file"] and site.row["process"] == own
    ]


def _names(lines: Lines) -> str:
    return ", ".join(f"{Path(file).name}:{line}" for file, line in lines)


def _arrays(spool: Path) -> Mapping[_Array, Sequence[str]]:
    path = spool / CHECKS
    arrays: dict[_Array, list[str]] = {}
    for text in path.read_bytes().splitlines() if path.exists() else ():
        name, file, line, total = json.loads(text)
        arrays.setdefault(_Array(name, file, line), []).append(total)
    return arrays


def _account(spool: Path) -> Mapping[tuple[str, int], Mapping[str, Any]]:
    path = spool / ACCOUNT
    return {(line["file"], line["line"]): line for line in (json.loads(path.read_bytes()) if path.exists() else ())}


def _before(seen: Seen, sites: Sequence[Site], is_same: bool, is_same_twice: bool, arrays: int) -> TraceRow:
    program = seen.program or {}
    kept = {name: program[name] for name in ("seconds", "active_seconds", "kernels")}
    return unnumbered(
        kind="before",
        count=sum(site.row["count"] for site in sites),
        bytes=sum(site.row["bytes"] for site in sites),
        same_output=is_same,
        same_twice=is_same_twice,
        arrays=arrays,
        **kept,
    )


def _waited(
    lines: Lines, second: _Ran, sites: Sequence[Site], needed: Mapping[tuple[str, int], bool]
) -> Iterator[TraceRow]:
    """What was done for each line."""
    for line in lines:
        own = [site.row for site in sites if place_of_site(site) == line]
        done = second.waited.get(line, {"waits": 0, "left": {}})
        first = own[0] if own else {"file": line[0], "line": line[1]}
        left = "; ".join(f"{count:,} {reason}" for reason, count in done["left"].items())
        yield unnumbered(
            kind="waited",
            count=done["waits"],
            bytes=sum(row["bytes"] for row in own),
            direction=first.get("direction"),
            needed=needed.get(line),
            reason=left or None,
            **{name: first.get(name) for name in ("file", "line", "function", "source_line")},
        )


def _difference(difference: _Difference) -> TraceRow:
    (name, file, line), number = difference
    return unnumbered(kind="difference", output=name, count=number or 0, file=file, line=line)


def _with_rows(store: Store, traced: Traced, rows: Iterable[TraceRow]) -> Traced:
    """A trace with further rows, also in the store."""
    more = [row.model_dump(mode="json", exclude_none=True) for row in numbered(rows)]
    every = [*traced.rows, *more]
    if traced.saved is not None:
        return replace(traced, rows=every)
    store.append(traced.run.id, more)
    return replace(traced, rows=every, run=store.update(traced.run.id, **answer_at_end(traced.run, every)))
