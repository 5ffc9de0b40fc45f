"""``pinscope record``: keep the live view as a timeline, which is a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pinscope.cli.options import AsJson, Interval, Probe, checked_interval, checked_pids, duration
from pinscope.cli.progress import Stop, progress_shown, say_how_it_ended
from pinscope.cli.reading import print_outcome
from pinscope.cli.terminal import complain, print_json
from pinscope.errors import StoreFailed
from pinscope.live.source import open_source
from pinscope.live.timeline.kind import TimelineParams
from pinscope.probes.environment import capture_environment
from pinscope.report.document import open_document
from pinscope.report.json_report import run_document
from pinscope.runner.jobs import reconcile
from pinscope.runner.recording import Recorded, Recorder, check_output, prepare_timeline
from pinscope.store.safe_writer import saved_line
from pinscope.store.store import Store
from pinscope.units import format_seconds


def record(
    for_: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="DURATION",
            help="How long to record, such as 90s, 10m, 2h or 1d. Default: until Ctrl-C.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Also write a bundle to this file, which must not exist yet, such as night.pinscope.",
            show_default=False,
        ),
    ] = None,
    interval: Interval = 1.0,
    pid: Annotated[
        list[int] | None,
        typer.Option(
            metavar="PID", help="Record only this process among the holders; may be repeated.", show_default=False
        ),
    ] = None,
    probe: Probe = False,
    as_json: AsJson = False,
) -> int:
    """Record the live view as a timeline, which is stored as a run. Ctrl-C ends the timeline and keeps it."""
    params = TimelineParams(
        interval_seconds=checked_interval(interval),
        for_seconds=duration("--for", for_),
        probe=probe,
        pids=tuple(sorted(checked_pids(pid or ()))),
    )
    if output is not None:
        check_output(output, "timeline")
    run = prepare_timeline(params, capture_environment())
    store = Store()
    with Stop(hangup=True) as stop, store, open_source(probe=probe, interval_seconds=interval) as source:
        reconcile(store)
        if store.refusal:
            raise StoreFailed(f"nothing can be stored in {store.name}: {store.refusal}")
        complain(f"recording run {run.id}{f' for {for_}' if for_ else ''}; Ctrl-C ends it well")
        with progress_shown(endless=for_ is None) as show:
            recorded = Recorder(store, source.take, lambda: stop.asked, show, output).record(run)
        return _print_recorded(recorded, output, as_json)


def _print_recorded(recorded: Recorded, output: Path | None, as_json: bool) -> int:
    """Print what was recorded; the exit code that fits how it ended."""
    document = open_document(recorded.run, recorded.rows, with_charts=False)
    if as_json:
        print_json(run_document(document))
    else:
        print_outcome(document)
    if recorded.full_after_seconds is not None:
        long = format_seconds(recorded.full_after_seconds)
        complain(f"the timeline is {long} long and ended by itself: one timeline holds no more rows")
    if recorded.saved is not None:
        complain(saved_line(recorded.saved))
    if output is not None:
        complain(f"wrote {output}")
    return say_how_it_ended(recorded.run) or (StoreFailed.exit_code if recorded.saved is not None else 0)
