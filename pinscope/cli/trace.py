"""``pinscope trace``: run a program and say which of its lines copy pageable memory."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from pinscope.analysis.read_rows import Row
from pinscope.cli.main import Name, Tags, duration, option, output_option
from pinscope.cli.terminal import complain
from pinscope.cli.trace_summary import print_summary, print_what_if, what_if_document
from pinscope.errors import BadInput, InvalidParameter, StoreFailed
from pinscope.experiments.registry import checked_rows
from pinscope.probes.environment import capture_environment
from pinscope.report.facts import Document, open_document
from pinscope.report.write import run_document
from pinscope.runner.jobs import reconcile
from pinscope.runner.traced_program import check_program
from pinscope.runner.tracing import Compared, Traced, parse_request, run_twice, trace_program, write_traces
from pinscope.store.new_file import check_new
from pinscope.store.safe_writer import saved_line
from pinscope.store.store import Store
from pinscope.store.tables import checked_labels
from pinscope.text import quoted
from pinscope.tracing.sites import REPEATED, Seen, seen_in
from pinscope.tracing.spool import Scope
from pinscope.tracing.trace.failed_calls import UNNOTICED, alarming, failed_line
from pinscope.tracing.trace.unrecorded import children_words, unseen_words
from pinscope.units import format_bytes, format_seconds, format_share, parse_bytes, parse_seconds, parse_share

Figure = Literal["error", "pageable", "held", "idle"]
_FIGURES: Mapping[Figure, tuple[str, str, str]] = {
    "error": ("count", "returned an error", "error"),
    "pageable": (
        "bytes",
        "were copied from or to pageable memory",
        "pageable, or pageable=SIZE such as pageable=100MiB",
    ),
    "held": ("call_seconds", "the CPU was held", "held=PERCENT or held=DURATION, such as held=5% or held=0.5s"),
    "idle": ("idle_seconds", "GPU compute stood idle", "idle=PERCENT or idle=DURATION, such as idle=5% or idle=0.5s"),
}
"""Figure → the value of a line that it sums, what that is, and how its limit is written."""


@dataclass(frozen=True)
class Threshold:
    """The most that one figure of a trace may be.

    Attributes:
        figure: ``error`` (calls of CUDA that failed), ``pageable`` (bytes of lines with pageable copies above 64 KiB),
            ``held`` (seconds for which these copies held the CPU) or ``idle`` (seconds for which GPU compute stood idle
            for them).
        most: in bytes or seconds, or as a share of the time from the first copy of those lines that copy again and
            again; where none does, from the first copy or kernel.
        is_share: which of them.
        text: as it was written.
    """

    figure: Figure
    most: float
    is_share: bool
    text: str

    def exceeded(self, seen: Seen) -> str | None:
        """By what the trace exceeds it, one line; ``None`` if it does not."""
        field, measure, _ = _FIGURES[self.figure]
        if self.figure == "error":
            return self._failed(alarming(seen))
        amount = float(sum(site.row[field] or 0 for site in seen.pageable))
        again = [seen.seconds_from_first(site.row) for site in seen.pageable if site.row["count"] >= REPEATED]
        whole = max(again, default=seen.seconds)
        if not seen.pageable or amount <= (self.most * whole if self.is_share else self.most):
            return None
        if self.figure == "pageable":
            what = f"{format_bytes(amount)} {measure}"
        else:
            share = f", {format_share(amount / whole)} of {format_seconds(whole)}" if whole else ""
            what = f"{measure} {format_seconds(amount)} for pageable copies{share}"
        return f"--fail-on {self.text}: {what} ({seen.pageable[0].name}{_and_more(len(seen.pageable) - 1)})"

    def _failed(self, rows: Sequence[Row]) -> str | None:
        if not rows:
            return None
        count, first = sum(row["count"] for row in rows), rows[0]
        calls = "a call of CUDA" if count == 1 else f"{count:,} calls of CUDA"
        where = f"{failed_line(first)}: {first['call']}, {first['error']}"
        return f"--fail-on error: {calls} returned an error ({where}{_and_more(len(rows) - 1)})"


def _and_more(lines: int) -> str:
    return f" and {lines:,} more line{'s' if lines > 1 else ''}" if lines else ""


def parse_threshold(text: str) -> Threshold:
    """A threshold as the command line has it. A number but 0 needs its unit: ``idle=5``, written for ``idle=5%``, would
    be a check that never fails.

    Raises:
        InvalidParameter: it is none; the message says what there is.
    """
    name, given, amount = (part.strip() for part in text.partition("="))
    figure = next((known for known in _FIGURES if known == name), None)
    if figure is None:
        forms = "; ".join(form for _, _, form in _FIGURES.values())
        raise InvalidParameter(f"--fail-on {quoted(text)}: the limits are {forms}")
    if figure == "error":
        if given:
            raise _refused(text, "has an amount", figure)
        return Threshold(figure, 0.0, False, name)
    is_share = figure != "pageable" and amount.endswith("%")
    parse = parse_bytes if figure == "pageable" else parse_share if is_share else parse_seconds
    try:
        most = 0.0 if figure == "pageable" and not given else parse(amount)
    except InvalidParameter:
        raise _refused(text, f"has no {'size' if figure == 'pageable' else 'percentage or duration'}", figure) from None
    if most and not (is_share or amount[-1].isalpha()):
        raise _refused(text, "has no unit", figure)
    if most < 0:
        raise InvalidParameter(f"--fail-on {quoted(text)}: the limit must be 0 or more")
    return Threshold(figure, most, is_share, text.replace(" ", ""))


def _refused(text: str, why: str, figure: Figure) -> InvalidParameter:
    return InvalidParameter(f"--fail-on {quoted(text)} {why}: write {_FIGURES[figure][2]}")


def exceeded(seen: Seen, thresholds: Sequence[Threshold], *, allow_unseen: bool = False) -> Iterator[str]:
    """A line for each threshold that a trace exceeds, and one if that cannot be known.

    Args:
        seen: the trace.
        thresholds: what is checked.
        allow_unseen: children that were too brief to be looked at are taken not to have copied.
    """
    yield from filter(None, (threshold.exceeded(seen) for threshold in thresholds))
    if thresholds and (missing := children_words(seen)):
        yield f"--fail-on: not recorded: {missing}"
    if thresholds and not allow_unseen and (brief := unseen_words(seen)):
        yield f"--fail-on: {brief} whether they use CUDA; --allow-unseen lets them pass"
    asks_errors = any(threshold.figure == "error" for threshold in thresholds)
    if asks_errors and seen.program and seen.program["failed_calls"] is None:
        yield f"--fail-on error: {UNNOTICED}"
    lost = seen.program["lost_bytes"] if seen.program else 0
    if thresholds and lost:
        yield f"--fail-on: {format_bytes(lost)} of CUPTI's records could not be read, so that copies may be missing"
    if any(threshold.figure == "idle" for threshold in thresholds) and any(
        site.row["idle_seconds"] is None for site in seen.pageable
    ):
        yield "--fail-on idle: the program ran no kernel, so that nothing can be said of idle compute; held can"
    if thresholds and seen.program and seen.program["sites_left_out"] and len(seen.pageable) == len(seen.sites):
        yield "--fail-on: the program copies in more lines than are kept, so that pageable copies may be missing"


LONGEST_DAYS = 30
"""Of a wait before the recording, and of the recording."""


def trace(
    program: Annotated[
        str, typer.Argument(metavar="SCRIPT", help="The program: a file, or with -m a module.", show_default=False)
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[ARGS]...", help="Its arguments.", show_default=False)
    ] = None,
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is the name of a module, as in python -m.")] = False,
    stacks: Annotated[
        bool, typer.Option("--stacks/--no-stacks", help="Read the Python stack of each call, which names its line.")
    ] = True,
    output: Annotated[
        Path | None,
        output_option("Also write a bundle to this file, which must not exist yet, such as train.pinscope."),
    ] = None,
    as_json: Annotated[
        Path | None,
        option(
            "FILE",
            "Also write the result as JSON to this file, which must not exist yet. Stdout is the program's.",
            "--json",
        ),
    ] = None,
    start_after: Annotated[
        str | None,
        option("DURATION", "Record nothing before the program has run so long, such as 10s or 2m.", "--start-after"),
    ] = None,
    for_: Annotated[
        str | None,
        option("DURATION", "How long to record, such as 5s or 1m; the program runs on. Default: to its end.", "--for"),
    ] = None,
    only_parts: Annotated[
        bool,
        typer.Option("--only-parts", help="Record only inside the program's own blocks 'with pinscope.trace(NAME):'."),
    ] = False,
    this_process_only: Annotated[
        bool, typer.Option("--this-process-only", help="Do not record the Python processes that the program starts.")
    ] = False,
    fail_on: Annotated[
        list[str] | None,
        option(
            "LIMIT",
            "End with exit code 1 where the trace exceeds this limit and "
            "the program itself ended well. error: a call of CUDA failed; pageable: any line with pageable copies "
            "above 64 KiB; pageable=100MiB: such lines copy more than 100 MiB in all; idle=5% or idle=0.5s: GPU "
            "compute stood idle longer for them, as a share of the time or in all; held=5% or held=0.5s: they held "
            "the CPU longer. A number needs its unit. May be given several times.",
            "--fail-on",
        ),
    ] = None,
    allow_unseen: Annotated[
        bool, typer.Option("--allow-unseen", help="Let --fail-on pass on children that were too brief to be looked at.")
    ] = False,
    what_if: Annotated[
        list[str] | None,
        option(
            "CHANGE",
            "Run the program a second time, with lines really copying "
            "from pinned memory, and measure what that saves. pin: every line that copies pieces above 64 KiB "
            "from pageable memory more than once, and each DataLoader; pin:FILE:LINE: this line, and the "
            "DataLoader that is made on it or looped over in its function. May be given several times.",
            "--what-if",
        ),
    ] = None,
    name: Name = None,
    tag: Tags = None,
) -> int:
    """Run a Python program as python would, and say which of its lines copy from or to pageable memory, how long that
    holds the CPU and the GPU's compute, and what pinning would save. Ends with the program's own exit code.

    PinScope must be installed in the program's own environment, with its extra trace13 (CUDA 13) or trace12."""
    scope = Scope(
        stacks=stacks,
        start_after=_seconds("--start-after", start_after) or 0.0,
        for_seconds=_seconds("--for", for_),
        only_parts=only_parts,
        children=not this_process_only,
    )
    thresholds = [parse_threshold(text) for text in fail_on or ()]
    labels = checked_labels(name=name, tags=tag or ())
    if output is not None:
        from pinscope.runner.timeline import check_output

        check_output(output, "trace")
    if as_json is not None:
        check_new(as_json)
    check_program(program, module)
    command = [*(["-m"] if module else []), program, *(arguments or ())]
    request = parse_request(what_if or (), program)
    if request is not None:
        scope = _of_both_runs(scope)
    with Store() as store:
        reconcile(store)
        if store.refusal:
            raise StoreFailed(f"nothing can be stored in {store.name}: {store.refusal}")
        environment = capture_environment()
        if request is None:
            compared = Compared(trace_program(store, command, environment, scope, labels=labels))
        else:
            traced_as = partial(trace_program, store, command, environment, scope, labels=labels)
            compared = run_twice(traced_as, request, environment, complain)
        if output is not None:
            write_traces(output, filter(None, (compared.before, compared.after)), store)
    traced = compared.before
    document = open_document(traced.run, traced.rows, with_charts=False)
    if as_json is not None:
        answer = {**run_document(document), **what_if_document(compared)}
        as_json.write_text(json.dumps(answer, indent=2, allow_nan=False) + "\n", "ascii")
    print_summary(document, leads_on=compared.second is None)
    print_what_if(compared)
    if traced.run.error:
        complain(f"the trace failed: {traced.run.error}")
    if traced.saved is not None:
        complain(saved_line(traced.saved))
    if traced.exit_code is None:  # it could not be started
        return 1
    return _end_like(traced.exit_code) or _check(traced, document, thresholds, allow_unseen=allow_unseen)


def _of_both_runs(scope: Scope) -> Scope:
    """What is recorded where a program runs twice: its own process, in which alone copies are redirected."""
    if not scope.stacks:
        raise BadInput("--what-if needs the lines that --no-stacks leaves out")
    if scope.start_after or scope.for_seconds is not None:
        raise BadInput("--what-if compares the same work in both runs, and --start-after and --for cut it by time")
    return replace(scope, children=False)


def _seconds(option: str, text: str | None) -> float | None:
    seconds = duration(option, text)
    if seconds is not None and not 0 < seconds <= LONGEST_DAYS * 86400:
        raise InvalidParameter(f"{option}: {text} is not possible; write more than 0s, and at most {LONGEST_DAYS}d")
    return seconds


def _check(traced: Traced, document: Document, thresholds: Sequence[Threshold], *, allow_unseen: bool) -> int:
    """The exit code of what the trace shows: 1 with a line for each limit that it exceeds, or that it cannot answer."""
    if not thresholds:
        return 0
    seen = seen_in(document.run, checked_rows(document.run.experiment, document.rows))
    lines = list(exceeded(seen, thresholds, allow_unseen=allow_unseen))
    if gap := traced.gap or traced.run.error:
        lines.append(f"--fail-on: not all of the program was recorded: {gap}")
    for line in lines:
        complain(line)
    return 1 if lines else 0


def _end_like(code: int) -> int:
    """The exit code of the program, or its end by a signal."""
    if code >= 0:
        return code
    sys.stdout.flush()
    sys.stderr.flush()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program's core, if any, is its own
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
    return 128 - code  # the signal is blocked
