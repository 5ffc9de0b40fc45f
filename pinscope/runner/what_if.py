"""A program run twice: as it is, then with copies of chosen lines made from pinned memory; what that saves."""

from __future__ import annotations

import hashlib
import json
import linecache
import os
import shlex
import sys
import tempfile
import termios
import threading
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

from pinscope.analysis.read_rows import grouped
from pinscope.errors import BadInput
from pinscope.experiments.registry import checked_rows
from pinscope.records.environment import Environment
from pinscope.records.run import LARGE_BYTES, Run, TraceRow
from pinscope.runner.traced_program import Variant
from pinscope.runner.tracing import Traced
from pinscope.tracing.line_totals import unnumbered
from pinscope.tracing.redirect import ACCOUNT
from pinscope.tracing.sites import Seen, Site, library_folders, seen_in
from pinscope.tracing.stacks import file_label

MOST_PINNED_BYTES = 4 << 30
"""Of all buffers together; less where the host has not four times as much."""
PINNED_BATCHES = "the DataLoader that it iterates over pinned its batches"
LEFT_BATCHES = "the DataLoader that it iterates over left {:,} parts of its batches as they are: {}"
LINGER_SECONDS = 2.0
"""After the program's end its stdout is read for so long at most: a child of it may hold it open."""
_ALLOWED = "--what-if takes pin, or pin:FILE:LINE such as pin:train.py:33"


Lines = Sequence[tuple[str, int]]
"""Files, without links, and lines in them."""


def parse_request(texts: Sequence[str], script: str) -> Lines | None:
    """The lines that are to be pinned; ``None``: none. Empty: every line that the first run shows to copy large pieces
    from pageable memory more than once.

    Args:
        texts: of each option.
        script: beside which files are looked for, too.

    Raises:
        BadInput: no such form, file or line.
    """
    if not texts:
        return None
    lines = [_parse_line(text, script) for text in texts if text != "pin"]
    if lines and len(lines) < len(texts):
        raise BadInput(f"{_ALLOWED}; pin alone means every line")
    return tuple(dict.fromkeys(lines))


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


def _parse_line(text: str, script: str) -> tuple[str, int]:
    kind, _, place = text.partition(":")
    file, _, line = place.rpartition(":")
    if kind != "pin" or not file or not line.isdecimal():
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
        after: with lines pinned; ``None`` where it was not run again.
        problem: why it was not, or what went wrong in it.
    """

    before: Traced
    after: Traced | None = None
    problem: str | None = None

    @property
    def second(self) -> Traced | None:
        """The run with lines pinned, if it went well: only then can the two be compared."""
        return None if self.problem or self.after is None or self.after.run.error else self.after


def run_twice(
    trace: Callable[[Variant], Traced], wanted: Lines, environment: Environment, announce: Callable[[str], object]
) -> Compared:
    """Run a program as it is, then with lines pinned; what it writes to stdout then is compared, not shown.

    Args:
        trace: traces the program, and keeps the trace.
        wanted: of :func:`parse_request`.
        environment: this machine.
        announce: gets a line before the second run.
    """
    stdin_place = _place_in_stdin()
    with HeardStdout(pass_on=True) as stdout:
        before = trace(Variant(stdout=stdout.descriptor))
        written = stdout.finish()
    if before.exit_code or before.run.error:
        return Compared(before, None, "the program did not end well, so it was not run again")
    seen = seen_in(before.run, checked_rows(before.run.experiment, before.rows))
    chosen = list(dict.fromkeys(wanted or map(_place, _chosen(seen))))
    sites = [site for site in seen.sites if site.row["direction"] == "h2d" and _place(site) in chosen]
    named = {_place(site): site.row["file"] for site in sites}
    lines = [(named.get(line, line[0]), line[1]) for line in chosen]
    if not lines:
        return Compared(before, None, "no line copies large pieces from pageable memory more than once: nothing to pin")
    announce(f"the program runs again, copying from pinned memory at {', '.join(map(_short, lines))}")
    with _stdin_again(stdin_place) as stdin, HeardStdout(pass_on=False) as stdout, tempfile.TemporaryFile() as stderr:
        variant = Variant(
            stdin=stdin,
            stdout=stdout.descriptor,
            stderr=stderr.fileno(),
            rows=lambda spool: _rows(seen, sites, spool, stdout.finish() == written),
            redirect=_plan(lines, not wanted, environment),
            params={"what_if": tuple(f"{file}:{line}" for file, line in lines), "what_if_of": before.run.id},
        )
        after = trace(variant)
        problem = f"with lines pinned {_how_it_ended(after.exit_code, stderr)}" if after.exit_code else None
    return Compared(before, after, problem)


def _place(site: Site) -> tuple[str, int]:
    """Its file, without links, and its line."""
    file = site.row["file"]
    return str(Path(file).resolve()) if file else "", site.row["line"]


def _short(line: tuple[str, int]) -> str:
    return f"{Path(line[0]).name}:{line[1]}"


def _chosen(seen: Seen) -> Iterator[Site]:
    """The first run's copies to the GPU that are to be pinned where no lines are asked for."""
    for site in seen.pageable:
        if site.row["direction"] == "h2d" and site.row["file"] and site.row["large_count"] > 1 and seen.is_worth(site):
            yield site


def _plan(lines: Sequence[tuple[str, int]], all_loaders: bool, environment: Environment) -> dict[str, Any]:
    return {
        "lines": lines,
        "libraries": library_folders(),
        "large_bytes": LARGE_BYTES,
        "all_loaders": all_loaders,
        "most_bytes": min(MOST_PINNED_BYTES, environment.limits.host_available_bytes // 4),
    }


def _how_it_ended(code: int, stderr: IO[bytes]) -> str:
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


def _place_in_stdin() -> int | None:
    """Where stdin stands, if it is a file: a pipe or terminal is read once."""
    with suppress(OSError):
        return os.lseek(0, 0, os.SEEK_CUR)
    return None


@contextmanager
def _stdin_again(place: int | None) -> Iterator[int | None]:
    """Stdin for a second run: ``None``, for our own, from where the first run began; else one with nothing in it."""
    if place is not None:
        os.lseek(0, place, os.SEEK_SET)
        yield None
        return
    with Path(os.devnull).open("rb") as nothing:
        yield nothing.fileno()


def _rows(seen: Seen, sites: Sequence[Site], spool: Path, is_same: bool) -> Iterator[TraceRow]:
    """What the second run's trace says beside its own records: the first run, and the account of each line.

    Args:
        seen: the first run.
        sites: of it, the copies to the GPU that the chosen lines made, those from pinned memory among them: the second
            run's are counted likewise.
        spool: of the second run.
        is_same: both wrote the same to stdout.
    """
    program = seen.program or {}
    kept = {name: program[name] for name in ("seconds", "active_seconds", "copies", "kernels")}
    yield unnumbered(kind="before", same_output=is_same, **kept, **_together(sites))
    of_lines = grouped(sites, lambda site: (site.row["file"], site.row["line"]))
    for repeat, ((file, line), of_line) in enumerate(of_lines.items()):
        yield TraceRow(kind="line_before", repeat=repeat, warmup=False, file=file, line=line, **_together(of_line))
    path = spool / ACCOUNT
    account = json.loads(path.read_bytes()) if path.exists() else {"lines": [], "loaders": []}
    lines = [(line, "{:,} copies: {}", None) for line in account["lines"]]
    loaders = [(loader, LEFT_BATCHES, PINNED_BATCHES) for loader in account["loaders"]]
    for repeat, (redirected, left, otherwise) in enumerate([*lines, *loaders]):
        yield TraceRow(
            kind="redirected",
            repeat=repeat,
            warmup=False,
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


def _together(sites: Sequence[Site]) -> dict[str, Any]:
    """Their copies, added up."""
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
