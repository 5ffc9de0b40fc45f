"""``pinscope runs``: list, show and delete stored runs and recordings."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pinscope.cli.opened_store import store_to_read
from pinscope.cli.terminal import complain, print_json, print_line, print_long_json, print_table
from pinscope.errors import BadInput, StoreFailed
from pinscope.text import visible

if TYPE_CHECKING:
    from pinscope.records.run import Run
    from pinscope.store.damage import DamagedRun

app = typer.Typer(help="List, show or delete runs.", rich_markup_mode=None)

RUN_LIST_FIELDS = {
    "id", "kind", "experiment", "lab", "device", "status", "quick", "recording", "observations",
    "created_at", "finished_at", "error",
}  # fmt: skip
"""Fields of a run that ``runs list --json`` prints, beside ``host``."""

_PLACE_CHARACTERS = 80
"""Of a GPU's name in the list."""
DAMAGED = "damaged"
"""Shown as the status of a run that cannot be read."""

_AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_RunId = Annotated[str, typer.Argument(metavar="ID", help="A run's id, or its beginning.", show_default=False)]


@app.command("list", short_help="List all runs, newest first.")
def list_runs(as_json: _AsJson = False) -> None:
    """List all runs, newest first, then the recordings that ship with PinScope."""
    from pinscope.report.facts import place
    from pinscope.store.damage import DamagedRun

    with store_to_read() as store:
        if as_json:
            print_json(
                [_damaged_object(run) if isinstance(run, DamagedRun) else run_object(run) for run in store.each()]
            )
            return
        rows = []
        for run in store.each():
            if isinstance(run, DamagedRun):
                complain(str(run))
                rows.append((run.id, "?", "?", DAMAGED, "?", "?"))
                continue
            status = f"{run.status}, recording" if run.recording else run.status
            started = f"{run.created_at:%Y-%m-%d %H:%M}"
            rows.append(
                (run.id, run.experiment, place(run)[:_PLACE_CHARACTERS], status, started, f"{run.observations:,}")
            )
    if not rows:
        print_line("No runs yet. Start one: pinscope run bandwidth --quick")
        return
    print_table(("id", "experiment", "on", "status", "started (UTC)", "rows"), rows, numbers=(5,))


@app.command("show")
def show(run_id: _RunId, as_json: _AsJson = False) -> None:
    """Show one run: parameters, headline, tables, findings. With --json also every observation."""
    from pinscope.cli.reading import print_run
    from pinscope.report.document import open_document
    from pinscope.report.json_report import run_without_rows

    with store_to_read() as store:
        run = store.run(run_id)
        document = open_document(run, store.observations(run.id), with_charts=False)
        if as_json:  # the observations come from the database while they are printed
            print_long_json(run_without_rows(document), "observations", document.rows)
            return
    print_run(document)


@app.command("delete")
def delete(
    run_id: _RunId,
    yes: Annotated[bool, typer.Option("--yes", help="Delete without asking.")] = False,
    as_json: _AsJson = False,
) -> None:
    """Delete one run and its observations. A run that still measures, and a recording, stay."""
    from pinscope.runner.jobs import reconcile
    from pinscope.store.store import Store

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


def run_object(run: Run) -> dict[str, Any]:
    """A run in ``runs list --json``: flat, without its environment and observations; null where its kind has no such
    field."""
    fields = run.model_dump(mode="json", include=RUN_LIST_FIELDS)
    return {**fields, **dict.fromkeys(sorted(RUN_LIST_FIELDS - set(fields))), "host": run.environment.host}


def _damaged_object(run: DamagedRun) -> dict[str, Any]:
    """A run that cannot be read, in the same shape: what is not known is null."""
    return {**dict.fromkeys([*RUN_LIST_FIELDS, "host"]), "id": run.id, "status": DAMAGED, "error": run.why}


def _ask(run_id: str, what: str) -> None:
    if not sys.stdin.isatty():
        raise BadInput(f"run {run_id} would be deleted for good; add --yes to do so without being asked")
    sys.stderr.write(visible(f"Delete run {run_id} ({what}) for good? [y/N] "))
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise BadInput(f"run {run_id} was not deleted")
