"""``pinscope report``: runs as a file for people or for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pinscope.cli.opened_store import store_to_read
from pinscope.cli.terminal import print_json, print_line


def report(
    run_ids: Annotated[list[str], typer.Argument(metavar="ID…", help="Runs, by id or its beginning.")],
    output: Annotated[
        Path,
        typer.Option("-o", "--output", metavar="FILE", help="A file that is not there yet; its suffix is the kind: "
                     ".html, .md, .csv, .parquet, .json, .perfetto.json (timeline).", show_default=False),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:  # fmt: skip
    """Write a report of one or several runs."""
    from pinscope.report.document import open_document
    from pinscope.report.write import write_report
    from pinscope.units import format_bytes

    drawn = output.suffix.lower() in (".html", ".md")
    with store_to_read() as store:
        runs = [store.run(run_id) for run_id in dict.fromkeys(run_ids)]
        documents = [open_document(run, store.observations(run.id), with_charts=drawn) for run in runs]
        write_report(output, documents)
    size = output.stat().st_size
    if as_json:
        print_json({"file": str(output), "bytes": size, "runs": [run.id for run in runs]})
    else:
        print_line(f"Wrote {output} ({format_bytes(size)}).")
