"""The commands ``check write`` and ``check against``: a baseline of this machine, and whether it is still as good."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from pinscope.analysis import check as gate
from pinscope.analysis.comparison import Measured, change_words
from pinscope.analysis.machine_keys import key_words, machine_keys
from pinscope.analysis.read_rows import grouped
from pinscope.cli.main import AsJson, argument, group, option, output_option, switch
from pinscope.cli.outcome import store_to_read
from pinscope.cli.run import Device, Lab, Quick, Settings, measure, parse_settings, several_experiments
from pinscope.cli.terminal import Stop, complain, print_json, print_line, print_prose
from pinscope.errors import BadInput, Cancelled, MeasurementFailed, NotPossible, StoreFailed
from pinscope.experiments.registry import measured_run
from pinscope.probes.environment import capture_environment
from pinscope.records.run import ExperimentRun, Run
from pinscope.report import comparison as report
from pinscope.runner.jobs import Request, prepare
from pinscope.runner.program import find_program
from pinscope.runner.tracing import trace_program
from pinscope.store.new_file import check_new
from pinscope.store.store import Store
from pinscope.text import quoted
from pinscope.tracing.spool import Scope
from pinscope.units import format_count, parse_share

BASELINE_RUNS = 8
"""Of which a baseline is made."""
CHECK_RUNS = 2
"""That are held against it."""
AGAIN = 3
"""Times as many are made where something fell out: what is blamed rests on them."""
GATES = (gate.TOLERANCE, 0.02)
"""The changes of which a written baseline says how many runs it takes to see."""


class _Check(TyperGroup):
    """``check FILE`` is ``check against FILE``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The name of the command, where the first word is none."""
        is_named = not args or args[0] in self.commands or args[0] in ctx.help_option_names
        return super().parse_args(ctx, args if is_named else ["against", *args])


app = group("Write a baseline of this machine, and check against it: pinscope check FILE.", _Check)
Names = Annotated[list[str] | None, several_experiments("The experiments to run; none with --runs or --trace.")]
File = Annotated[Path, argument("FILE", "The baseline, a JSON file.")]
Runs = Annotated[list[str] | None, option("ID", "Take these runs, bundles or folders of bundles in place of new runs.")]
Count = Annotated[int, typer.Option(min=1, metavar="N", help="How many runs; a check may make 3 N more.")]
Tolerance = Annotated[str, typer.Option(metavar="SHARE", help="What is worse by less is no regression, such as 2%.")]
Trace = Annotated[str | None, option("COMMAND", "Trace this Python program, such as 'train.py --steps 20'.")]


@app.command("write", short_help="Make a baseline from several runs on this machine.")
def write(
    file: File,
    experiments: Names = None,
    count: Count = BASELINE_RUNS,
    runs: Runs = None,
    trace: Trace = None,
    lab: Lab = None,
    device: Device = 0,
    quick: Quick = False,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Make a baseline from several runs on this machine: of each figure the median and how far the runs lie apart.

    Keep the file beside your code. It has the environment, a line a cell, and the parameters for the runs to come."""
    check_new(file)
    wanted: list[Request | str] = [trace] if trace else []
    wanted += [Request(name, lab, device, quick, parse_settings(settings or ())) for name in experiments or ()]
    with store_to_read() as store:
        measured = _taken(store, runs)
        for what in wanted:
            measured += _made(store, what, count)
    keep_baseline(file, gate.baseline_of(measured), as_json)


def keep_baseline(file: Path, baseline: gate.Baseline, as_json: bool, further: str = "") -> None:
    """Write a baseline and say what is in it; ``further``: options with which it is to be checked."""
    report.write_baseline(file, baseline)
    if as_json:
        print_json({"file": str(file), "runs": [run_id for kept in baseline.experiments for run_id in kept.runs]})
        return
    for kept in baseline.experiments:
        counts = f"{format_count(len(kept.runs), 'run')}, {format_count(len(kept.cells), 'cell')}"
        print_prose(f"{kept.run.experiment}: {counts}{_needed(kept)}.")
    print_line(f"Wrote {file}. Check against it: pinscope check {shlex.quote(str(file))}{further}")


def _needed(kept: gate.KeptRuns) -> str:
    spread, before, now = gate.deviation(kept), len(kept.runs), CHECK_RUNS * (1 + AGAIN)
    if spread is None:
        return ""
    least = change_words(gate.least_change(spread, before, now))
    needed = ", ".join(
        f"{gate.runs_needed(spread, change) or 'over 1,000'} for {change_words(change)}" for change in GATES
    )
    return (
        f"; runs differ by {change_words(spread)} (median standard deviation): {now} runs against these {before} show "
        f"a change of {least}; runs a side that a gate needs: {needed}"
    )


@app.command("against", short_help="Run again, or take runs, and say what is worse; check FILE is the same.")
def against(
    file: File,
    runs: Runs = None,
    trace: Trace = None,
    count: Count = CHECK_RUNS,
    tolerance: Tolerance = f"{gate.TOLERANCE:.0%}",
    only: Annotated[
        list[str] | None,
        option("LABEL=VALUE", "Only cells such as memory=pinned,mapped or figure=issue_seconds; may be repeated."),
    ] = None,
    other_machine: Annotated[bool, switch("--other-machine", "Check also on another machine.")] = False,
    output: Annotated[Path | None, output_option("Also write the result to a new file: .xml (JUnit) or .json.")] = None,
    as_json: AsJson = False,
) -> int:
    """Check this machine against a baseline: run what it has again, and say what is worse.

    What falls out is measured once more before it is blamed. Exit code 0: nothing is worse; 1: something is, a line
    each; 3: the baseline is of another machine, and --other-machine was not given."""
    baseline = report.read_baseline(file)
    limit, wanted = parse_share(tolerance), gate.parse_only(only or ())
    if output is not None:
        check_new(output, *report.RESULT_SUFFIXES)
    with store_to_read() as store:
        taken = grouped(_taken(store, runs), lambda measured: gate.subject(measured.run))
        checked = []
        for kept in baseline.experiments:
            if names := gate.lacking(kept, wanted):
                complain(f"not checked: {kept.run.experiment}, whose cells have no label {quoted(names[0])}")
                continue
            subject, what = gate.subject(kept.run), "" if runs else _subject(kept.run, trace)
            given = taken.get(subject, [])
            if not (given or what):
                complain(f"not checked: {' '.join(subject)}, of which there is no run")
                continue
            here = kept.run.model_copy(update={"environment": capture_environment()})
            machines = machine_keys([kept.run], [measured.run for measured in given] or [here])
            if not (other_machine or machines.is_one_machine):
                changed = key_words(machines.different)
                raise NotPossible(f"the baseline is of another machine: {changed}; --other-machine checks all the same")
            make = partial(_made, store, what, count)
            checked.append(gate.check(kept, given or make(), None if given else make, limit, wanted))
    if not checked:
        raise BadInput(f"nothing was checked of what {file} has")
    if output is not None:
        report.write_result(output, checked)
    if as_json:
        print_json(report.check_document(checked))
    else:
        _print(checked)
    return 1 if any(result.regressions for result in checked) else 0


def _print(checked: Sequence[gate.Checked]) -> None:
    for result in checked:
        experiment, keys = result.comparison.experiment, result.comparison.machines.different
        if keys:
            print_prose(f"{experiment}: changed since the baseline: {key_words(keys)}")
        for line in report.regression_lines(result):
            print_line(line)
        print_prose(f"{experiment}: {_result_words(result)}.")


def _result_words(result: gate.Checked) -> str:
    """How many regressions; where none, in how many cells one would have shown."""
    cells, telling = format_count(len(result.cells), "cell"), sum(map(result.tells, result.cells))
    worse = f"a figure worse by {change_words(result.tolerance)}"
    once = f"; {result.once} fell out once and not again" if result.once else ""
    if result.regressions:
        return f"{format_count(len(result.regressions), 'regression')} in {cells}{once}"
    if not telling:
        seen = result.comparison.tellable
        more = f"; {change_words(seen)} would in half of them" if seen else ""
        return f"no regression in {cells}, but {worse} would not show{more}: take more runs (--count){once}"
    shows = f"; {worse} would show in {telling} of them" if telling < len(result.cells) else ""
    return f"no regression in {cells}{shows}{once}"


def _taken(store: Store, runs: Sequence[str] | None) -> list[Measured]:
    return [measured for name in runs or () for measured in report.measured_runs(lambda: store, name)]


def _subject(run: Run, trace: str | None) -> Request | str:
    """What is run again: the experiment with the parameters of the baseline, or the program that somebody named; empty
    where that is nothing."""
    if isinstance(run, ExperimentRun):
        return Request(run.experiment, run.lab, run.device, run.quick, run.params)
    return trace or "" if run.kind == "trace" else ""


def _made(store: Store, what: Request | str, count: int, fallen: int = 0) -> list[Measured]:
    """So many runs of an experiment, or traces of a program, one after the other; more where so much fell out."""
    if fallen:
        complain(f"{fallen} fell out: measured once more before they are blamed")
        count *= AGAIN
    made = []
    for number in range(count):
        complain(f"{'trace' if isinstance(what, str) else 'run'} {number + 1} of {count}")
        made.append(_measured(store, what))
    return made


def _measured(store: Store, what: Request | str) -> Measured:
    """One of them.

    Raises:
        MeasurementFailed: it did not end by itself.
        Cancelled: somebody stopped it.
        StoreFailed: a trace could not be stored.
    """
    environment = capture_environment()
    if isinstance(what, str):
        traced = trace_program(store, find_program(shlex.split(what)), environment, Scope())
        if traced.exit_code or traced.run.error:
            raise MeasurementFailed(f"{what}: {traced.run.error or f'ended with {traced.exit_code}'}")
        if traced.saved is not None:
            raise StoreFailed(f"the trace could not be stored; it is in {traced.saved}")
        return measured_run(traced.run, traced.rows)
    with Stop() as stop:
        run, rows, code = measure(store, prepare(what, environment), None, stop)
        if code == Cancelled.exit_code or stop.asked:
            raise Cancelled(f"run {run.id} was stopped; nothing is concluded")
        if code:
            raise MeasurementFailed(f"run {run.id} did not end well; nothing is concluded")
        return measured_run(run, rows)
