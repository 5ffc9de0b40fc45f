"""``pinscope trace``: run a program and say which of its lines copy pageable memory."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pinscope.cli.main import Name, Tags, argument, duration, option, output_option, switch
from pinscope.cli.terminal import complain
from pinscope.cli.trace_summary import complain_of, print_summary, print_what_if, what_if_document
from pinscope.errors import BadInput, InvalidParameter
from pinscope.experiments.registry import checked_rows
from pinscope.probes.environment import capture_environment
from pinscope.report.facts import Document, open_document
from pinscope.report.write import run_document
from pinscope.runner.attach import Targets, targets_of, trace_attached
from pinscope.runner.jobs import open_store
from pinscope.runner.program import Program, find_program
from pinscope.runner.tracing import Traced, trace_program, write_traces
from pinscope.runner.what_if import Compared, Request, WhatIfRuns, parse_request
from pinscope.store.documents import checked_labels
from pinscope.store.new_file import check_new
from pinscope.store.store import Store
from pinscope.tracing.limits import Threshold, exceeded, parse_threshold
from pinscope.tracing.sites import seen_in
from pinscope.tracing.spool import Scope

ATTACHED_SECONDS = 10.0
"""So long a program that runs already is recorded by default."""
LONGEST_DAYS = 30
"""Of a wait before the recording, and of the recording."""


def trace(
    program: Annotated[
        str | None, argument("SCRIPT", "The program: a file, with -m a module, or another Python.")
    ] = None,
    arguments: Annotated[list[str] | None, argument("[ARGS]...", "Its arguments.")] = None,
    module: Annotated[bool, switch("-m", "SCRIPT is the name of a module, as in python -m.")] = False,
    stacks: Annotated[
        bool, switch("--stacks/--no-stacks", "Read the Python stack of each call, which names its line.")
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
        str | None, option("DURATION", "Record nothing before the program has run so long, such as 10s or 2m.")
    ] = None,
    for_: Annotated[
        str | None,
        option("DURATION", "How long to record, such as 5s or 1m; the program runs on. Default: to its end.", "--for"),
    ] = None,
    only_parts: Annotated[
        bool, switch("--only-parts", "Record only inside the program's own blocks 'with pinscope.trace(NAME):'.")
    ] = False,
    attach: Annotated[
        list[int] | None,
        option(
            "PID",
            "Instead of SCRIPT: record this Python process, which runs already and goes on afterwards, for the time "
            "of --for, 10s by default. May be given several times.",
        ),
    ] = None,
    attach_children: Annotated[
        bool, switch("--attach-children", "With --attach: also the processes that it has started, with CUDA.")
    ] = False,
    this_process_only: Annotated[
        bool, switch("--this-process-only", "Do not record the Python processes that the program starts.")
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
        ),
    ] = None,
    allow_unseen: Annotated[
        bool, switch("--allow-unseen", "Let --fail-on pass on children that were too brief to be looked at.")
    ] = False,
    what_if: Annotated[
        list[str] | None,
        option(
            "CHANGE",
            "Run the program a second time, changed. pin: with lines really copying "
            "from pinned memory, which measures what that saves: every line that copies pieces above 64 KiB "
            "from pageable memory more than once, and each DataLoader; pin:FILE:LINE: this line, and the "
            "DataLoader that is made on it or looped over in its function. wait: with a wait behind each asynchronous "
            "copy, or wait:FILE:LINE; other output, on stdout or of arrays that the program saves or names by "
            "pinscope.check, proves that data was used too early. May be given several times.",
        ),
    ] = None,
    name: Name = None,
    tag: Tags = None,
) -> int:
    """Run a Python program as python would, and say which of its lines copy from or to pageable memory, how long that
    holds the CPU and the GPU's compute, and what pinning would save. Ends with the program's own exit code.

    SCRIPT may be the interpreter of another environment, in which nothing is installed (/envs/train/bin/python
    train.py), or a script of one (/envs/train/bin/torchrun …): CPython 3.9 or later. CUPTI's library is taken from the
    program's packages of CUDA, else from PinScope's (extra trace13, CUDA 12: trace12), else from the toolkit."""
    without = {
        "a SCRIPT": program, "-m": module, "--start-after": start_after, "--only-parts": only_parts,
        "--this-process-only": this_process_only, "--what-if": what_if,
    }  # fmt: skip
    _check_attach(attach, attach_children, without)
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
        from pinscope.store.bundle import check_output

        check_output(output)
    if as_json is not None:
        check_new(as_json)
    if attach:
        targets = targets_of(attach, attach_children)
        scope = replace(scope, for_seconds=scope.for_seconds or ATTACHED_SECONDS, children=targets.is_all)
        record = partial(_of_running, targets, scope, labels)
    else:
        found = find_program([*(["-m"] if module else []), program or "", *(arguments or ())])
        record = partial(_of_program, found, parse_request(what_if or (), found.file), scope, labels)
    with open_store(to_write=True) as store:
        compared = record(store)
        if output is not None:
            write_traces(output, filter(None, (compared.before, compared.after)), store)
    traced = compared.before
    document = open_document(traced.run, traced.rows)
    if as_json is not None:
        answer = {**run_document(document), **what_if_document(compared)}
        as_json.write_text(json.dumps(answer, indent=2, allow_nan=False) + "\n", "ascii")
    print_summary(document, leads_on=compared.second is None)
    print_what_if(compared)
    complain_of(traced)
    if traced.exit_code is None and not attach:  # it could not be started
        return 1
    return _end_like(traced.exit_code or 0) or _check(traced, document, thresholds, allow_unseen=allow_unseen)


def _check_attach(attach: Sequence[int] | None, attach_children: bool, without: Mapping[str, object]) -> None:
    """Refuse what makes no sense.

    Args:
        attach: the processes.
        attach_children: those that they have started, too.
        without: what does not go with them.
    """
    if attach:
        if clash := next((name for name, value in without.items() if value), None):
            raise BadInput(f"--attach records a program that runs already: it goes without {clash}")
    elif attach_children:
        raise BadInput("--attach-children goes with --attach PID")
    elif not without["a SCRIPT"]:
        raise BadInput("trace needs a SCRIPT to run, or --attach PID of a program that runs")


def _of_running(targets: Targets, scope: Scope, labels: Mapping[str, Any], store: Store) -> Compared:
    return Compared(trace_attached(store, targets, capture_environment(), scope, complain, labels))


def _of_program(
    program: Program, request: Request | None, scope: Scope, labels: Mapping[str, Any], store: Store
) -> Compared:
    """Run it, twice where a change is asked for."""
    if request is not None:
        scope = _of_both_runs(scope)
    environment = capture_environment()
    traced_as = partial(trace_program, store, program, environment, scope, labels=labels)
    if request is None:
        return Compared(traced_as())
    return WhatIfRuns(store, traced_as, environment, complain).compare(request)


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
