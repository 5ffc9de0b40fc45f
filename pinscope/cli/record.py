"""``pinscope record``: keep the live view as a timeline, which is a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pinscope.cli.following import Stop, progress_shown
from pinscope.cli.live import checked_interval, checked_pids
from pinscope.cli.terminal import complain, print_json
from pinscope.errors import Cancelled, InvalidParameter, MeasurementFailed, StoreFailed
from pinscope.text import one_line

if TYPE_CHECKING:
    from pinscope.experiments.timeline.experiment import TimelineParams
    from pinscope.records.run import Run
    from pinscope.runner.recording import Recorded


def record(  # noqa: PLR0917 - typer calls it by keyword
    duration: Annotated[
        str | None,
        typer.Option("--for", metavar="DURATION", help="How long: 90s, 10m, 2h, 1d. Without it: until Ctrl-C.",
                     show_default=False),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Also write a bundle: a file that is not there yet, such "
                     "as night.pinscope.", show_default=False),
    ] = None,
    interval: Annotated[float, typer.Option(metavar="SECONDS", help="From one sample to the next, 0.1 to 3600.")] = 1.0,
    pid: Annotated[
        list[int] | None,
        typer.Option(metavar="PID", help="Keep only this process among the holders; may be repeated.",
                     show_default=False),
    ] = None,
    probe: Annotated[
        bool,
        typer.Option("--probe", help="Follow what programs register or take from the driver, from now on; needs root."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document with every sample.")] = False,
) -> int:  # fmt: skip
    """Keep a timeline of who holds pinned memory. Ctrl-C ends it well; every sample is stored as it comes."""
    from pinscope.live.source import open_source
    from pinscope.probes.environment import capture_environment
    from pinscope.runner.jobs import reconcile
    from pinscope.runner.recording import Recorder, check_output, prepare_timeline
    from pinscope.store.store import Store

    params = _params(duration, interval, pid or (), probe)
    if output is not None:
        check_output(output)
    run = prepare_timeline(params, capture_environment())
    with Store() as store, Stop(hangup=True) as stop, open_source(probe=probe, interval_seconds=interval) as source:
        reconcile(store)
        if store.refusal:
            raise StoreFailed(f"nothing can be stored in {store.name}: {store.refusal}")
        complain(f"recording run {run.id}{f' for {duration}' if duration else ''}; Ctrl-C ends it well")
        with progress_shown(endless=duration is None) as show:
            recorded = Recorder(store, source.take, lambda: stop.asked, show, output).record(run)
    return _tell(recorded, output, as_json)


def _params(duration: str | None, interval: float, pids: Sequence[int], probe: bool) -> TimelineParams:
    from pinscope.experiments.timeline.experiment import TimelineParams
    from pinscope.units import parse_seconds

    try:
        seconds = None if duration is None else parse_seconds(duration)
    except InvalidParameter as error:
        raise InvalidParameter(f"--for: {error}") from None
    return TimelineParams(
        interval_seconds=checked_interval(interval), for_seconds=seconds, pids=tuple(sorted(checked_pids(pids))),
        probe=probe,
    )  # fmt: skip


def _tell(recorded: Recorded, output: Path | None, as_json: bool) -> int:
    """Print what was recorded; the exit code that fits how it ended."""
    from pinscope.cli.reading import print_outcome
    from pinscope.report.document import open_document
    from pinscope.report.json_report import run_document
    from pinscope.store.rescue import saved_line
    from pinscope.units import format_seconds

    run = recorded.run
    document = open_document(run, recorded.rows, with_charts=False)
    if as_json:
        print_json(run_document(document))
    else:
        print_outcome(document)
    if recorded.full_after_seconds is not None:
        long = format_seconds(recorded.full_after_seconds)
        complain(f"the recording is {long} long and ended by itself: one timeline holds no more rows")
    if recorded.saved is not None:
        complain(saved_line(recorded.saved))
    elif output is not None:
        complain(f"wrote {output}")
    return _exit_code(run, lost=recorded.saved is not None)


def _exit_code(run: Run, lost: bool) -> int:
    if run.status == "done":
        return StoreFailed.exit_code if lost else 0
    reason = f": {one_line(run.error)}" if run.error else ""
    complain(f"run {run.id} {'failed' if run.status == 'failed' else f'was {run.status}'}{reason}")
    return Cancelled.exit_code if run.status == "cancelled" else MeasurementFailed.exit_code
