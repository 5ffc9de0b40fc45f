"""Commands over stored runs: list, show, cancel and delete, reports, and bundles to other machines."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, cast, get_args

import typer

from pinscope.cli.group import Group
from pinscope.cli.options import AsJson, RunId, RunIds
from pinscope.cli.perfetto_stretch import PerfettoStretch
from pinscope.cli.reading import print_run
from pinscope.cli.run_list import print_runs
from pinscope.cli.terminal import complain, print_json, print_line, print_long_json
from pinscope.errors import BadInput, InvalidParameter, StoreFailed
from pinscope.experiments.registry import GONE, find_reader, readers
from pinscope.records.run import LAB_TITLES, Origin, Run, Status
from pinscope.report.document import open_document
from pinscope.report.json_report import run_without_rows
from pinscope.report.write import write_report
from pinscope.runner.jobs import cancel, reconcile
from pinscope.store.anonymous import ANONYMOUS, AnonymousStore
from pinscope.store.bundle import open_bundle, write_bundle
from pinscope.store.damage import DamagedRun
from pinscope.store.store import Store, Wanted
from pinscope.text import quoted, visible
from pinscope.units import format_bytes

app = typer.Typer(
    cls=Group, add_completion=False, help="List, show, cancel or delete stored runs.", rich_markup_mode=None
)

RUN_LIST_FIELDS = {
    "id",
    "kind",
    "experiment",
    "lab",
    "device",
    "status",
    "quick",
    "recording",
    "observations",
    "created_at",
    "finished_at",
    "error",
    "verdict",
}
"""Fields of a run that ``runs list --json`` prints, beside ``host``."""
STATUSES: tuple[Status, ...] = get_args(Status)
Anonymous = Annotated[bool, typer.Option("--anonymous", help=ANONYMOUS)]
DAMAGED = "damaged"
"""Status of a run that cannot be read."""


def kind_names() -> list[str]:
    """Of everything that a stored run can be: for the shell's completion."""
    return [reader.name for reader in readers()]


@contextmanager
def store_to_read() -> Iterator[Store]:
    """The store, with runs marked whose child is gone. Says in one line if nothing can be stored in it."""
    with Store() as store:
        reconcile(store)
        if store.refusal:
            complain(f"nothing can be stored in {store.name}: {store.refusal}")
        yield store


@app.command("list", short_help="List runs, the newest first.")
def list_runs(
    experiment: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Only runs of this experiment; timeline: those of `pinscope record`; "
            "trace: those of `pinscope trace`.",
            autocompletion=kind_names,
        ),
    ] = None,
    lab: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(LAB_TITLES),
            help="Only runs on a GPU, on the host model, of the live view, or of a traced program.",
            autocompletion=lambda: list(LAB_TITLES),
        ),
    ] = None,
    status: Annotated[
        str | None,
        typer.Option(
            metavar="STATUS", help=f"Only runs that are: {', '.join(STATUSES)}.", autocompletion=lambda: list(STATUSES)
        ),
    ] = None,
    recordings: Annotated[
        bool, typer.Option("--recordings/--no-recordings", help="Also list the recorded runs that ship with PinScope.")
    ] = True,
    limit: Annotated[int | None, typer.Option(metavar="N", help="List the first N of these only.")] = None,
    as_json: AsJson = False,
) -> None:
    """List runs, the newest first, then the recorded runs that ship with PinScope."""
    wanted = checked_filters(experiment, lab, status, recordings)
    if limit is not None and limit < 1:
        raise InvalidParameter(f"--limit {limit}: it must be 1 or more")
    with store_to_read() as store:
        found = islice(store.each(**wanted), limit)
        if as_json:
            print_json([run_object(run) for run in found])
            return
        there = print_runs(found)
    if there:
        return
    if experiment or lab or status:
        print_line("No run matches.")
    else:
        print_line("No runs yet. Start one: pinscope run bandwidth --quick")


def checked_filters(experiment: str | None, lab: str | None, status: str | None, recordings: bool) -> Wanted:
    """What to ask the store for.

    Raises:
        BadInput: no runs can be of that experiment, on that lab or in that state.
    """
    if experiment is not None and experiment not in GONE:
        find_reader(experiment)
    for option, given, known in (("--lab", lab, tuple(LAB_TITLES)), ("--status", status, STATUSES)):
        if given is not None and given not in known:
            raise InvalidParameter(f"{option} {quoted(given)}: it must be one of {', '.join(known)}")
    return Wanted(
        experiment=experiment,
        lab=cast("Origin | None", lab),
        status=cast("Status | None", status),
        recordings=recordings,
    )


@app.command("show", short_help="Show one run and what was concluded from it.")
def show(run_id: RunId, as_json: AsJson = False) -> None:
    """Show one run: parameters, headline, tables, findings; with --json, every observation too."""
    with store_to_read() as store:
        run = store.run(run_id)
        document = open_document(run, store.observations(run.id), with_charts=False)
        if as_json:  # the observations come from the database while they are printed
            print_long_json(run_without_rows(document), "observations", document.rows)
            return
    print_run(document)
    if run.experiment in GONE:  # nothing is read from its rows
        for row in document.rows:
            print_line(json.dumps({name: value for name, value in row.items() if value is not None}))


@app.command("cancel", short_help="Stop a run that is still going.")
def cancel_run(run_id: RunId, as_json: AsJson = False) -> None:
    """Stop a run that is still going, wherever it was started; what it measured is kept."""
    with Store() as store:
        reconcile(store)
        cancel(store, run_id)
        run = store.run(run_id)
    if run.status != "cancelled" and run.lab not in ("live", "traced"):
        raise BadInput(f"run {run.id} ended before it could be cancelled; it is {run.status}")
    if as_json:
        print_json({"cancelled": run.id, "status": run.status})
    else:
        print_line(f"Stopped run {run.id}; it is {run.status}. What it measured: pinscope runs show {run.id}")


@app.command("delete", short_help="Delete a run and its observations.")
def delete(
    run_id: RunId,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete a run and its observations. A run that is still going must be cancelled first. The recorded runs that ship
    with PinScope cannot be deleted."""
    with Store() as store:
        reconcile(store)
        try:
            run = store.run(run_id)
        except StoreFailed:
            run = None  # this very run cannot be read: its whole id will do
        whole_id = run.id if run else run_id
        if not yes:
            _ask(whole_id, f"{run.experiment}, {run.observations} observations" if run else "cannot be read")
        store.delete(whole_id)
    if as_json:
        print_json({"deleted": whole_id})
    else:
        print_line(f"Deleted run {whole_id}.")


def report(
    run_ids: RunIds,
    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="File to write, which must not exist yet. Its suffix is "
            "the format: .html, .md, .csv, .parquet, .json, .perfetto.json (timeline of overlap or of "
            "a trace).",
            show_default=False,
        ),
    ],
    start_after: Annotated[
        str | None,
        typer.Option(
            "--start-after",
            metavar="DURATION",
            help="Of a trace for Perfetto: leave out what came before the program had run so long, such as 10s.",
            show_default=False,
        ),
    ] = None,
    for_: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="DURATION",
            help="Of a trace for Perfetto: how long a stretch, such as 500ms. Default: to the end.",
            show_default=False,
        ),
    ] = None,
    anonymous: Anonymous = False,
    as_json: AsJson = False,
) -> None:
    """Write a report of one or more runs to a file."""
    stretch = PerfettoStretch(start_after, for_, output)
    drawn = output.suffix.lower() in (".html", ".md")
    with store_to_read() as store:
        source = AnonymousStore(store) if anonymous else store
        runs = _chosen(source, run_ids)
        documents = [
            stretch.of(
                open_document(run, source.observations(run.id), with_charts=drawn, attached=source.attached(run))
            )
            for run in runs
        ]
        write_report(output, documents)
    _say_written(output, runs, as_json)


def export_runs(
    run_ids: RunIds,
    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="File to write, which must not exist yet, such as runs.pinscope.",
            show_default=False,
        ),
    ],
    anonymous: Anonymous = False,
    as_json: AsJson = False,
) -> None:
    """Write runs with all their observations into a bundle, which `pinscope import` reads on another machine."""
    with store_to_read() as store:
        source = AnonymousStore(store) if anonymous else store
        runs = _chosen(source, run_ids)
        write_bundle(output, [(run, source.observations(run.id)) for run in runs], source.parts)
    _say_written(output, runs, as_json)


def import_runs(
    bundle: Annotated[Path, typer.Argument(metavar="FILE", help="A bundle that `pinscope export` wrote.")],
    as_json: AsJson = False,
) -> None:
    """Read the runs of a bundle into the database: all of them, or none if one is damaged."""
    with open_bundle(bundle) as opened, Store() as store:
        reconcile(store)  # a run that the bundle completes may not have been marked as interrupted yet
        outcome = asdict(store.import_runs(opened.items(), opened.parts))
    if as_json:
        print_json(outcome)
        return
    words = {"added": "Imported", "completed": "Completed", "skipped": "Already here"}
    for key, ids in outcome.items():
        if ids:
            print_line(f"{words[key]}: {', '.join(ids)}.")


def run_object(run: Run | DamagedRun) -> dict[str, Any]:
    """A run in ``runs list --json``: flat, without its environment and observations.

    What its kind has not, or what is not known of a run that cannot be read, is null.
    """
    if isinstance(run, DamagedRun):
        return {**dict.fromkeys([*RUN_LIST_FIELDS, "host"]), "id": run.id, "status": DAMAGED, "error": run.why}
    fields = run.model_dump(mode="json", include=RUN_LIST_FIELDS)
    return {**fields, **dict.fromkeys(sorted(RUN_LIST_FIELDS - set(fields))), "host": run.environment.host}


def _chosen(source: Store | AnonymousStore, run_ids: list[str]) -> list[Run]:
    return [source.run(run_id) for run_id in dict.fromkeys(run_ids)]


def _say_written(file: Path, runs: list[Run], as_json: bool) -> None:
    size = file.stat().st_size
    if as_json:
        print_json({"file": str(file), "bytes": size, "runs": [run.id for run in runs]})
    else:
        print_line(f"Wrote {file} ({format_bytes(size)}): {', '.join(run.id for run in runs)}.")


def _ask(run_id: str, what: str) -> None:
    if not sys.stdin.isatty():
        raise BadInput(f"run {run_id} would be deleted for good; add --yes to do so without being asked")
    sys.stderr.write(visible(f"Delete run {run_id} ({what}) for good? [y/N] "))
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise BadInput(f"run {run_id} was not deleted")
