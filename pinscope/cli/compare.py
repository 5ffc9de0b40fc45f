"""The command ``compare``: runs against other runs."""

from __future__ import annotations

from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Annotated

from pinscope.cli.main import AsJson, argument, output_option, switch
from pinscope.cli.outcome import print_parts, store_to_read
from pinscope.cli.terminal import complain, print_json, print_line
from pinscope.experiments.registry import verdict_of
from pinscope.report import comparison as report
from pinscope.units import format_bytes


def compare(
    sides: Annotated[list[str], argument("A B...", "Runs, bundles or folders of bundles; several by comma.")],
    everything: Annotated[bool, switch("--all", "Show also what is the same.")] = False,
    output: Annotated[Path | None, output_option("Write a report to a new file: .html, .md or .json.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare runs: what differs in the machines, which cells are better or worse, which findings came and went.

    A run goes by its id or a word such as latest. The runs of a side count together, and each side is set against the
    first. Differences that the runs cannot tell from chance are no differences. Several runs a side tell smaller ones:
    `pinscope compare A1,A2,A3 B1,B2,B3`.
    """
    with ExitStack() as stack:
        compared = report.compare_named(cache(lambda: stack.enter_context(store_to_read())), sides)
    if output is not None:
        report.write_comparison(output, compared)
        print_line(f"Wrote {output} ({format_bytes(output.stat().st_size)}).")
    elif as_json:
        print_json(report.comparison_document(compared))
    else:
        for each in compared.comparisons:
            parts = (*report.machines(each, everything), *report.cells(each, everything))
            print_parts(each.experiment, each.a.runs[0].run.lab, verdict_of(each), parts)
        for words in compared.left_out:
            complain(words)
        if not everything:
            print_line("Also what is the same: --all.")
