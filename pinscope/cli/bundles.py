"""``pinscope export`` and ``pinscope import``: carry runs to another machine in one file."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from pinscope.cli.opened_store import store_to_read
from pinscope.cli.terminal import print_json, print_line

_AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def export_runs(
    run_ids: Annotated[list[str], typer.Argument(metavar="ID…", help="Runs, by id or its beginning.")],
    output: Annotated[
        Path,
        typer.Option("-o", "--output", metavar="FILE", help="A file that is not there yet, such as runs.pinscope.",
                     show_default=False),
    ],
    as_json: _AsJson = False,
) -> None:  # fmt: skip
    """Write runs with all their observations into one bundle."""
    from pinscope.store.bundle import write_bundle
    from pinscope.units import format_bytes

    with store_to_read() as store:
        runs = [store.run(run_id) for run_id in dict.fromkeys(run_ids)]
        write_bundle(output, [(run, store.observations(run.id)) for run in runs], store.parts)
    size = output.stat().st_size
    if as_json:
        print_json({"file": str(output), "bytes": size, "runs": [run.id for run in runs]})
    else:
        print_line(f"Wrote {output} ({format_bytes(size)}): {', '.join(run.id for run in runs)}.")


def import_runs(
    bundle: Annotated[Path, typer.Argument(metavar="FILE", help="A bundle that `pinscope export` wrote.")],
    as_json: _AsJson = False,
) -> None:
    """Take all runs of a bundle into the database, or none if one of them cannot be taken."""
    from pinscope.runner.jobs import reconcile
    from pinscope.store.bundle import open_bundle
    from pinscope.store.store import Store

    with open_bundle(bundle) as opened, Store() as store:
        reconcile(store)  # a run that the bundle completes may not have been marked as interrupted yet
        imported = store.import_runs(opened.items(), opened.parts)
    outcome = asdict(imported)
    if as_json:
        print_json(outcome)
        return
    words = {"added": "Imported", "completed": "Completed", "skipped": "Already here"}
    for key, ids in outcome.items():
        if ids:
            print_line(f"{words[key]}: {', '.join(ids)}.")
