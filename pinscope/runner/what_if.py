"""``pinscope trace --what-if``: a program as it is, and once more with a change. With lines copied from pinned memory:
what that saves. With a wait behind each asynchronous copy: other output is proof that its data was used too early;
without the wait of a line alone, that it is this line's."""

from __future__ import annotations

import hashlib
import json
import linecache
import os
import subprocess
import sys
import tempfile
import termios
import threading
import tty
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

from pinscope.errors import BadInput
from pinscope.experiments.registry import answer_at_end, checked_rows
from pinscope.records.environment import Environment
from pinscope.records.trace_row import LARGE_BYTES, TraceRow
from pinscope.runner.traced_program import Variant
from pinscope.runner.tracing import Traced
from pinscope.store.store import Store
from pinscope.tracing import redirect, waits
from pinscope.tracing.checks import CHECKS
from pinscope.tracing.line_totals import numbered, unnumbered
from pinscope.tracing.places import library_folders
from pinscope.tracing.sites import Seen, Site, seen_in
from pinscope.tracing.stacks import file_label
from pinscope.tracing.trace.hazards import copies_behind_the_call
from pinscope.tracing.trace.what_if import TO_HOST, added_up

MOST_PINNED_BYTES = 4 << 30
"""Of all buffers together; less where the host has not four times as much."""
PINNED_BATCHES = "the DataLoader that it iterates over pinned its batches"
LEFT_BATCHES = "the DataLoader that it iterates over left {:,} parts of its batches as they are: {}"
LINGER_SECONDS = 2.0
"""After the program's end its stdout is read for so long at most: a child of it may hold it open."""
MOST_TRIED = 8
"""Lines for each of which the program runs again, to tell which of them needs its wait."""
_CHANGES = {"pin", "wait"}
_ALLOWED = "--what-if takes pin or wait, or with a line, such as pin:train.py:33"


Lines = Sequence[tuple[str, int]]
"""Files, without links, and lines in them."""


class Request(NamedTuple):
    """What --what-if asks for.

    Attributes:
        change: ``pin``, or ``wait`` behind asynchronous copies.
        lines: where. Empty: of ``pin`` every line that the first run shows to copy large pieces from pageable memory
            more than once; of ``wait`` every line that copies asynchronously.
    """

    change: str
    lines: Lines


def parse_request(texts: Sequence[str], script: str) -> Request | None:
    """What is to be changed; ``None``: nothing.

    Args:
        texts: of each option.
        script: beside which files are looked for, too.

    Raises:
        BadInput: no such form, file or line.
    """
    if not texts:
        return None
    change, *others = sorted({text.partition(":")[0] for text in texts})
    if others and {change, *others} <= _CHANGES:
        raise BadInput("--what-if takes either pin or wait: run the command once for each")
    lines = [_parse_line(text, script) for text in texts if text not in _CHANGES]
    if lines and len(lines) < len(texts):
        raise BadInput(f"{_ALLOWED}; {change} alone means every line")
    return Request(change, tuple(dict.fromkeys(lines)))


def _parse_line(text: str, script: str) -> tuple[str, int]:
    kind, _, place = text.partition(":")
    file, _, line = place.rpartition(":")
    if kind not in _CHANGES or not file or not line.isdecimal():
        raise BadInput(f"{_ALLOWED}; not {text!r}")
    folders = (Path(), Path(script).parent)
    path = next((folder / file for folder in folders if (folder / file).is_file()), None)
    if path is None:
        raise BadInput(f"--what-if: there is no file {file}")
    lines = linecache.getlines(str(path))
    if not 1 <= int(line) <= len(lines):
        count = f"{len(lines):,} {'line' if len(lines) == 1 else 'lines'}"
        raise BadInput(f"--what-if: {file} has {count}, and no line {int(line)}")
    return file_label(str(path.resolve())), int(line)


@dataclass(frozen=True)
class Compared:
    """Both runs.

    Attributes:
        before: the program as it is.
        after: changed; ``None`` where it was not run again.
        problem: why it was not, or what went wrong in it.
    """

    before: Traced
    after: Traced | None = None
    problem: str | None = None

    @property
    def second(self) -> Traced | None:
        """The changed run, if it went well: only then can the two be compared."""
        return None if self.problem or self.after is None or self.after.run.error else self.after


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
    """A run that has ended; ``account``: what the recorder did in it; ``problem``: why it cannot be compared."""

    traced: Traced
    output: Output
    account: Any
    problem: str | None

    @property
    def seen(self) -> Seen:
        """Its trace, taken apart."""
        return seen_in(self.traced.run, checked_rows(self.traced.run.experiment, self.traced.rows))


@dataclass(frozen=True)
class WhatIfRuns:
    """The runs of a program. What it writes to stdout is compared; that of the first is shown, too.

    Args:
        store: where they are kept.
        trace: traces the program, and keeps the trace.
        environment: this machine.
        announce: gets a line before each further run.
    """

    store: Store
    trace: Callable[[Variant], Traced]
    environment: Environment
    announce: Callable[[str], object]

    def compare(self, request: Request) -> Compared:
        """Run the program as it is, and with the change."""
        return (self._wait if request.change == "wait" else self._pin)(request.lines)

    def _pin(self, wanted: Lines) -> Compared:
        first = self._run()
        if first.problem:
            return Compared(first.traced, None, "the program did not end well, so it was not run again")
        seen = first.seen
        chosen = list(dict.fromkeys(wanted or map(place_of_site, _chosen(seen))))
        sites = [site for site in seen.sites if site.row["direction"] == "h2d" and place_of_site(site) in chosen]
        named = {place_of_site(site): site.row["file"] for site in sites}
        lines = [(named.get(line, line[0]), line[1]) for line in chosen]
        if not lines:
            problem = "no line copies large pieces from pageable memory more than once: nothing to pin"
            return Compared(first.traced, None, problem)
        self.announce(f"the program runs again, copying from pinned memory at {_names(lines)}")
        plan = {
            "lines": lines,
            "libraries": library_folders(),
            "large_bytes": LARGE_BYTES,
            "all_loaders": not wanted,
            "most_bytes": min(MOST_PINNED_BYTES, self.environment.limits.host_available_bytes // 4),
        }
        params = {"what_if": tuple(f"{file}:{line}" for file, line in lines), "what_if_of": first.traced.run.id}
        second = self._run(is_first=False, redirect=plan, params=params)
        is_same = first.output.stdout == second.output.stdout
        after = self._with_rows(second.traced, _pinned(seen, sites, second.account, is_same=is_same))
        return Compared(first.traced, after, f"with lines pinned {second.problem}" if after.exit_code else None)

    def _wait(self, wanted: Lines) -> Compared:
        first = self._run(checks=True)
        if first.traced.run.error:
            return Compared(first.traced, None, "the program was not recorded, so it was not run again")
        seen = first.seen
        sites = [site for site in asynchronous(seen) if not wanted or place_of_site(site) in wanted]
        lines = list(dict.fromkeys([*wanted, *map(place_of_site, sites)]))
        if not lines:
            problem = "no line copies asynchronously from or to pinned memory: there is nothing to wait for"
            return Compared(first.traced, None, problem)
        self.announce(f"the program runs again, with a wait behind each asynchronous copy of {_names(lines)}")
        params = {"waits": tuple(f"{file}:{line}" for file, line in lines), "what_if_of": first.traced.run.id}
        second = self._run(is_first=False, waits=lines, checks=True, params=params)
        if second.problem and second.output.exit_code != first.output.exit_code:
            return Compared(first.traced, second.traced, f"with waits {second.problem}")
        differences = first.output.differences(second.output)
        is_same_twice, needed = True, dict[tuple[str, int], bool]()
        if differences:
            is_same_twice = self._gives(second.output, lines, "once more: are two runs with waits the same?")
            needed = self._needed(lines, sites, second.output) if is_same_twice else {}
        arrays = len(first.output.arrays)
        rows = [
            _before(seen, sites, same_output=not differences, same_twice=is_same_twice, arrays=arrays),
            *_waited(lines, second, sites, needed),
            *map(_difference, differences),
        ]
        return Compared(first.traced, self._with_rows(second.traced, rows))

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
        ran = self._run(is_first=False, waits=lines, checks=True, params={"waits": ()})
        if ran.traced.saved is None:
            self.store.delete(ran.traced.run.id)
        return not output.differences(ran.output)

    def _run(self, *, is_first: bool = True, **changes: Any) -> _Ran:
        """Run the program, with these changes of the :class:`Variant`."""
        spools: list[tuple[Mapping[_Array, Sequence[str]], Any]] = []
        with HeardStdout(pass_on=is_first) as stdout, tempfile.TemporaryFile() as stderr:
            variant = Variant(
                stdin=None if is_first else subprocess.DEVNULL,  # the first run has read ours
                stdout=stdout.descriptor,
                stderr=None if is_first else stderr.fileno(),
                at_end=lambda spool: spools.append((_arrays(spool), _account(spool))),
                **changes,
            )
            traced = self.trace(variant)
            problem = _how_it_ended(traced.exit_code, stderr) if traced.exit_code else traced.run.error
            arrays, account = spools[0] if spools else ({}, None)
            return _Ran(traced, Output(stdout.finish(), traced.exit_code, arrays), account, problem)

    def _with_rows(self, traced: Traced, rows: Iterable[TraceRow]) -> Traced:
        """A trace with further rows, also in the store."""
        more = [row.model_dump(mode="json", exclude_none=True) for row in numbered(rows)]
        every = [*traced.rows, *more]
        if traced.saved is not None:
            return replace(traced, rows=every)
        self.store.append(traced.run.id, more)
        return replace(traced, rows=every, run=self.store.update(traced.run.id, **answer_at_end(traced.run, every)))


def place_of_site(site: Site) -> tuple[str, int]:
    """Its file, without links, and its line."""
    file = site.row["file"]
    return str(Path(file).resolve()) if file else "", site.row["line"]


def _chosen(seen: Seen) -> Iterator[Site]:
    """The first run's copies to the GPU that are to be pinned where no lines are asked for."""
    for site in seen.pageable:
        if site.row["direction"] == "h2d" and site.row["file"] and site.row["large_count"] > 1 and seen.is_worth(site):
            yield site


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


def _account(spool: Path) -> Any:
    """What the recorder wrote of the lines that it changed; ``None`` where it changed none."""
    paths = (spool / name for name in (redirect.ACCOUNT, waits.ACCOUNT))
    return next((json.loads(path.read_bytes()) for path in paths if path.exists()), None)


def _how_it_ended(code: int, stderr: IO[bytes]) -> str:
    """A program that failed, with the last line that it wrote."""
    stderr.seek(0)
    words = stderr.read().decode(errors="replace").strip().splitlines()
    how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return f"the program {how}{f': {words[-1][:200]}' if words else ''}"


class HeardStdout:
    """A descriptor for a program's stdout. What it writes is summed up, and passed on to our own if wanted.

    Where our own stdout is a terminal, the program gets one, too: programs write otherwise into a pipe.

    Args:
        pass_on: write everything to our own stdout.
    """

    def __init__(self, pass_on: bool) -> None:
        self._pass_on = pass_on
        self._sum = hashlib.sha256()
        self._read, self.descriptor = _terminal() if os.isatty(1) else os.pipe()
        self._thread = threading.Thread(target=self._hear, name="stdout of the program", daemon=True)
        self._finished = False

    def __enter__(self) -> Self:
        sys.stdout.flush()
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.finish()

    def finish(self) -> str:
        """The sum of all that was written, once the program has ended."""
        if not self._finished:
            self._finished = True
            os.close(self.descriptor)
            self._thread.join(LINGER_SECONDS)
        return self._sum.hexdigest()

    def _hear(self) -> None:
        with suppress(OSError):  # a terminal whose last writer is gone; or nobody takes it any more
            while piece := os.read(self._read, 1 << 16):
                self._sum.update(piece)
                while self._pass_on and piece:
                    piece = piece[os.write(1, piece) :]
        os.close(self._read)  # who still writes learns it from the kernel


def _terminal() -> tuple[int, int]:
    """Both ends of a terminal as large as ours; what is written arrives as it is."""
    ours, its = os.openpty()
    tty.setraw(its)
    termios.tcsetwinsize(its, termios.tcgetwinsize(1))
    return ours, its


def _before(seen: Seen, sites: Sequence[Site], **values: Any) -> TraceRow:
    """The first run, and its copies of the lines."""
    kept = {name: seen.program[name] for name in ("seconds", "active_seconds", "copies", "kernels")}
    return unnumbered(kind="before", **kept, **added_up(sites), **values)


def _pinned(seen: Seen, sites: Sequence[Site], account: Any, *, is_same: bool) -> Iterator[TraceRow]:
    """What the second run's trace says beside its own records: the first run, and the account of each line.

    Args:
        seen: the first run.
        sites: of it, the copies to the GPU that the chosen lines made, those from pinned memory among them: the second
            run's are counted likewise.
        account: of the second run.
        is_same: both wrote the same to stdout.
    """
    yield _before(seen, sites, same_output=is_same)
    account = account or {"lines": [], "loaders": []}
    lines: list[tuple[Any, str, str | None]] = [(line, "{:,} copies: {}", None) for line in account["lines"]]
    lines += [
        (redirect.Line(site.row["file"], site.row["line"]).document(), "", why)
        for site, why in _not_chosen(seen, sites)
    ]
    loaders = [(loader, LEFT_BATCHES, PINNED_BATCHES) for loader in account["loaders"]]
    for redirected, left, otherwise in [*lines, *loaders]:
        yield unnumbered(
            kind="redirected",
            file=redirected["file"],
            line=redirected["line"],
            count=redirected["copies"],
            bytes=redirected["bytes"],
            gather_seconds=redirected["gather_ns"] / 1e9,
            wait_seconds=redirected["wait_ns"] / 1e9,
            pin_seconds=redirected["pin_ns"] / 1e9,
            pinned_bytes=redirected["pinned_bytes"],
            reason="; ".join(left.format(count, why) for why, (count, _) in redirected["left"].items()) or otherwise,
        )


def _not_chosen(seen: Seen, chosen: Sequence[Site]) -> Iterator[tuple[Site, str]]:
    """Large pageable copies that the second run leaves alone, and why."""
    for site in seen.pageable:
        if site.row["file"] and site not in chosen:
            few = "a single copy: pinning pays where it repeats" if site.row["large_count"] == 1 else "not chosen"
            yield site, TO_HOST if site.row["direction"] == "d2h" else few


def _waited(
    lines: Lines, second: _Ran, sites: Sequence[Site], needed: Mapping[tuple[str, int], bool]
) -> Iterator[TraceRow]:
    """What was done for each line."""
    waited = {(line["file"], line["line"]): line for line in second.account or ()}
    for line in lines:
        own = [site.row for site in sites if place_of_site(site) == line]
        done = waited.get(line, {"waits": 0, "left": {}})
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
