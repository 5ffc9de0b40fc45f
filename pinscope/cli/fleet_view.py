"""``pinscope fleet show``, ``outliers`` and ``baseline write``: what the runs of many hosts say together."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from pinscope.analysis.outliers import NEWEST, Fleet
from pinscope.cli.main import AsJson, duration, option, output_option
from pinscope.cli.outcome import print_reading_table
from pinscope.cli.run import several_experiments
from pinscope.cli.terminal import complain, print_json, print_line, print_prose
from pinscope.errors import BadInput, NotPossible
from pinscope.experiments.registry import find
from pinscope.records.run import LAB_TITLES, LabKind
from pinscope.report.comparison import write_baseline
from pinscope.report.fleet import (
    TYPES,
    fleet_baseline,
    fleet_document,
    gpu_table,
    outlier_table,
    read_fleet,
    render,
    spread_table,
    verdict,
)
from pinscope.store.figures import experiments_with_figures
from pinscope.store.new_file import check_new, write_new
from pinscope.store.store import Store
from pinscope.units import format_bytes, format_count

Names = Annotated[list[str] | None, several_experiments("Whose runs; without one, all that have runs.")]
Lab = Annotated[LabKind, option("cuda|host", "Runs on GPUs, or of the host model.", "--lab")]
Runs = Annotated[int, typer.Option("--runs", min=1, metavar="N", help="The newest N runs of each GPU.")]
Since = Annotated[
    str | None, option("AGE", "Only runs of the last so many days, hours or minutes, such as 90d.", "--since")
]
baseline = typer.Typer(add_completion=False, rich_markup_mode=None, help="Keep the fleet's own figures, for check.")


def show(
    experiments: Names = None,
    label: Annotated[
        str | None, option("NAME", "Map by this label: rack, where runs have tags such as rack=r7; or host.", "--label")
    ] = None,
    lab: Lab = "cuda",
    runs: Runs = NEWEST,
    since: Since = None,
    everything: Annotated[bool, typer.Option("--all", help="Show also each figure and each GPU.")] = False,
    output: Annotated[
        Path | None, output_option("Write a report to this file, which must not exist yet: .html, .csv or .json.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the runs of many hosts together: of each GPU its newest runs, held against those of GPUs like it."""
    if output is not None:
        check_new(output, *TYPES)
    fleets = _fleets(experiments, lab, runs, since)
    if output is not None:
        if len(fleets) > 1:
            raise BadInput(
                f"a report is of one experiment; there are {', '.join(fleet.experiment for fleet in fleets)}"
            )
        write_new(output, [render(fleets[0], output.suffix.lower(), label)])
        print_line(f"Wrote {output} ({format_bytes(output.stat().st_size)}).")
    elif as_json:
        print_json([fleet_document(fleet) for fleet in fleets])
    else:
        for fleet in fleets:
            _print(fleet, label, everything)
        if not everything:
            print_line("Also every figure and every GPU: --all.")


def _print(fleet: Fleet, label: str | None, everything: bool) -> None:
    print_line(f"{fleet.experiment}, {LAB_TITLES[fleet.lab]}")  # type: ignore[index]
    print_prose(verdict(fleet), style="bold")
    print_line()
    tables = [outlier_table(fleet, label)]
    if everything:
        tables += [spread_table(fleet), gpu_table(fleet, label)]
    for table in tables:
        if table.rows:
            print_reading_table(table)


def outliers(
    experiments: Names = None, lab: Lab = "cuda", runs: Runs = NEWEST, since: Since = None, as_json: AsJson = False
) -> int:
    """Name the GPUs that are worse than others like them, a line each, with what explains it.

    A GPU is named where at least two of its runs agree. Exit code 0: there is none; 1: there are some; 3: too few are
    alike to tell. So cron, which mails what a command writes, tells when one comes."""
    fleets = _fleets(experiments, lab, runs, since)
    if as_json:
        print_json([{key: document[key] for key in _BRIEF} for document in map(fleet_document, fleets)])
    else:
        for fleet in fleets:
            for outlier in fleet.outliers:
                print_line(f"{fleet.experiment}: {outlier.line}")
            for suspect in fleet.suspects:
                complain(f"seen once, run it again: {fleet.experiment}: {suspect.line}")
    if any(fleet.outliers for fleet in fleets):
        return 1
    untold = [fleet for fleet in fleets if len(fleet.alone) == len(fleet.gpus)]
    if untold:
        raise NotPossible("; ".join(f"{fleet.experiment}, {verdict(fleet).removesuffix('.')}" for fleet in untold))
    return 0


_BRIEF = ("format", "experiment", "lab", "verdict", "outliers", "suspects")


@baseline.command("write", short_help="Write the fleet's own figures as a baseline of check.")
def write(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The baseline, a JSON file.", show_default=False)],
    experiments: Names = None,
    lab: Lab = "cuda",
    runs: Runs = NEWEST,
    since: Since = None,
    as_json: AsJson = False,
) -> None:
    """Write the figures of GPUs that are alike and not worse than others: what this fleet's hardware does.

    How far these GPUs lie apart is in the file: a host that is checked against it may differ as much."""
    check_new(file)
    fleets = _fleets(experiments, lab, runs, since)
    with Store() as store:
        kept = fleet_baseline(store, fleets)
    write_baseline(file, kept)
    if as_json:
        print_json({"file": str(file), "runs": [run_id for of in kept.experiments for run_id in of.runs]})
        return
    for of in kept.experiments:
        print_prose(f"{of.run.experiment}: {format_count(len(of.runs), 'GPU')}, {format_count(len(of.cells), 'cell')}.")
    print_line(f"Wrote {file}. Check a host: pinscope check {shlex.quote(str(file))} --other-machine")


def _fleets(experiments: list[str] | None, lab: LabKind, runs: int, since: str | None) -> list[Fleet]:
    age = duration("--since", since)
    begin = None if age is None else datetime.now(UTC) - timedelta(seconds=age)
    for name in experiments or ():
        find(name)
    with Store() as store:
        names = experiments or [name for name, of, _ in experiments_with_figures(store) if of == lab]
        if not names:
            others = sorted({of for _, of, _ in experiments_with_figures(store)})
            there = f"there are some of --lab {', '.join(others)}" if others else "name an experiment, or import runs"
            raise BadInput(f"no finished run on {LAB_TITLES[lab]} with figures; {there}")
        return [read_fleet(store, name, lab, runs, begin, _show_old) for name in names]


def _show_old(done: int, of: int) -> None:
    if done % 100 == 0:
        complain(f"reading runs that an older PinScope stored: {done:,} of {of:,}")
