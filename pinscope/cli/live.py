"""``pinscope live`` and ``pinscope exporter``: who holds pinned memory now, for people and for programs."""

from __future__ import annotations

import queue
import select
import sys
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.resources import files
from typing import Annotated

import typer

from pinscope.cli.live_view import Line, View, tail, whole
from pinscope.cli.main import PROBE_HELP, Gpus, Interval, Pids, Probe, checked_pids
from pinscope.cli.outcome import print_findings
from pinscope.cli.screen import LiveScreen
from pinscope.cli.terminal import (
    LOOK_SECONDS,
    Stop,
    complain,
    is_steerable,
    print_json,
    print_line,
    print_prose,
    styled,
    terminal_columns,
)
from pinscope.errors import BadInput
from pinscope.live.findings import snapshot_findings
from pinscope.live.sampler import History, Sampler
from pinscope.live.series import growing
from pinscope.live.source import LiveSource, open_source
from pinscope.records.snapshot import Snapshot
from pinscope.records.timeline import Event, Sample
from pinscope.report.facts import by_severity
from pinscope.report.write import snapshot_document
from pinscope.text import visible


def print_once(as_json: bool, view: View) -> None:
    """One moment, with all that is to be said of it."""
    if as_json:
        print_json(snapshot_document(view.snapshot, view.findings))
        return
    print_lines(whole(view, terminal_columns()))
    print_line()
    for gap in view.snapshot.unreadable:
        print_prose(f"Cannot be read: {gap.what}: {gap.reason}.", hanging="  ")
        if gap.advice:
            print_prose(f"→ {gap.advice}", "  ", "    ")
    if view.snapshot.unreadable:
        print_line()
    print_findings(view.findings)


def print_lines(lines: Sequence[Line]) -> None:
    """Lines, in their styles in a terminal."""
    for line in lines:
        sys.stdout.write(styled(visible(line.text), line.style) + "\n")


def _print_table(view: View) -> None:
    room = terminal_columns()
    print_lines([*whole(view, room), *tail(view, room)])
    print_line()


def _print_json_line(view: View) -> None:
    pids = {holder.pid for holder in view.snapshot.holders}
    more = {
        "events": [event.model_dump(mode="json") for event in view.events],
        "growing": sorted(pids & set(view.growing)),
    }
    print_json(snapshot_document(view.snapshot, view.findings) | more, on_one_line=True)


GROWTH_SAMPLES = 300
"""Over so many samples a holder must grow, and give nothing back, to be marked."""
WAITING_SNAPSHOTS = 16
"""Beyond these the sampler waits for the reader of our output."""


def live(
    once: Annotated[bool, typer.Option("--once", help="Print one snapshot and exit.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON: one document with --once, otherwise one on each line.")
    ] = False,
    interval: Interval = 1.0,
    pid: Pids = None,
    probe: Annotated[
        bool, typer.Option("--probe", help=f"{PROBE_HELP} With --once: trace for one --interval, then print.")
    ] = False,
    gpus: Gpus = True,
) -> int:
    """Show which processes hold pinned memory, and what it costs each GPU, until Ctrl-C."""
    pids = checked_pids(pid)
    with Stop() as stop, open_source(probe=probe, gpus=gpus, interval_seconds=interval) as source:
        if once:
            _show_once(source, stop, as_json, pids, interval if probe else 0.0)
        else:
            _follow(source, stop, as_json, pids, interval)
    return 0


def _only(seen: Snapshot, pids: Collection[int]) -> Snapshot:
    """The snapshot with these holders alone, or all if no pid is given; totals are always the host's."""
    if not pids:
        return seen
    return seen.model_copy(update={"holders": tuple(holder for holder in seen.holders if holder.pid in pids)})


def _show_once(source: LiveSource, stop: Stop, as_json: bool, pids: Collection[int], seconds: float) -> None:
    """One moment; with ``seconds``, after the probe has listened for so long."""
    seen = source.take()
    if seconds:
        complain(f"tracing registered memory for {seconds:g} s")
        end = time.monotonic() + seconds
        while not stop.asked and (left := end - time.monotonic()) > 0:
            time.sleep(min(LOOK_SECONDS, left))
        seen = source.take()
    print_once(as_json, _view(seen, pids))


def _follow(source: LiveSource, stop: Stop, as_json: bool, pids: Collection[int], seconds: float) -> None:
    with Sampler(source.take, interval_seconds=seconds) as sampler:
        if not as_json and is_steerable():
            screen = LiveScreen(sampler, lambda seen, history: _view(seen, pids, history, history.events))
            screen.run(stop)
            if screen.view is not None:  # the last one is left behind, whole
                print_lines(whole(replace(screen.view, note=""), terminal_columns()))
        else:
            _stream(sampler, stop, as_json, pids)


def _view(seen: Snapshot, pids: Collection[int], history: History | None = None, events: Sequence[Event] = ()) -> View:
    """What is to be shown of a snapshot. Findings are those of the whole host."""
    return View(
        snapshot=_only(seen, pids),
        findings=by_severity(snapshot_findings(seen)),
        growing=growing(history.samples[-GROWTH_SAMPLES:]) if history else (),
        events=[event for event in events if not pids or event.pid in pids],
        trouble=history.trouble if history else None,
        chosen=bool(pids),
        note=f"every {history.interval_seconds:g} s" if history and is_steerable() else "",
    )


class _Feed:
    """Hands each snapshot from the sampler's thread to the one that prints; waits where that one is slow."""

    def __init__(self) -> None:
        self.waiting: queue.Queue[tuple[Snapshot, tuple[Event, ...]]] = queue.Queue(WAITING_SNAPSHOTS)
        self.closed = False

    def offer(self, seen: Snapshot, sample: Sample, events: tuple[Event, ...]) -> None:
        del sample
        while not self.closed:
            with suppress(queue.Full):
                self.waiting.put((seen, events), timeout=LOOK_SECONDS)
                return


def _stream(sampler: Sampler, stop: Stop, as_json: bool, pids: Collection[int]) -> None:
    """Every snapshot, one after the other, until somebody stops it or nobody reads any more."""
    feed, show, reported = _Feed(), _print_json_line if as_json else _print_table, False
    sampler.subscribe(feed.offer)
    try:
        while not stop.asked and not _reader_is_gone():
            history = sampler.history()
            if history.trouble is not None and not reported:
                complain(history.trouble)
            reported = history.trouble is not None
            with suppress(queue.Empty):
                seen, events = feed.waiting.get(timeout=LOOK_SECONDS)
                show(_view(seen, pids, history, events))
                sys.stdout.flush()
    finally:
        feed.closed = True
        sampler.unsubscribe(feed.offer)


def _reader_is_gone() -> bool:
    """True if stdout is a pipe that nobody reads: with a long interval the next write would notice too late."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(state & select.POLLERR for _, state in poll.poll(0))
    except (OSError, ValueError):  # no file
        return False


ALERTS, DASHBOARD = "alerts.yaml", "dashboard.json"
"""Files in pinscope/monitoring/."""


def exporter(
    address: Annotated[str, typer.Option(metavar="ADDRESS", help="IP address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="PORT", help="Port to listen on; 0 takes any free one.")] = 10435,
    interval: Interval = 5.0,
    probe: Probe = False,
    gpus: Gpus = True,
    print_rules: Annotated[
        bool, typer.Option("--print-rules", help="Print alert rules for Prometheus and exit.")
    ] = False,
    print_dashboard: Annotated[
        bool, typer.Option("--print-dashboard", help="Print a dashboard for Grafana and exit.")
    ] = False,
) -> int:
    """Serve the live figures to Prometheus until Ctrl-C. Only this machine reaches them, unless --address is given."""
    if print_rules and print_dashboard:
        raise BadInput("--print-rules and --print-dashboard exclude each other")
    if print_rules or print_dashboard:
        name = ALERTS if print_rules else DASHBOARD
        sys.stdout.write((files("pinscope.monitoring") / name).read_text(encoding="utf-8"))
        return 0
    # Here, as a live view needs not wait for an HTTP server.
    from pinscope.monitoring.server import MetricsServer, SnapshotCollector, is_loopback

    with Stop() as stop, open_source(probe=probe, gpus=gpus, interval_seconds=interval) as source:
        sampler = Sampler(source.take, interval_seconds=interval, history_seconds=0.0)
        with MetricsServer(SnapshotCollector(sampler.history), address, port) as server, sampler:
            if not is_loopback(address):
                complain(f"everyone who can reach {address} can read which processes and users hold memory here")
            print_line(f"PinScope's metrics are at {server.url} (Ctrl-C stops it)")
            sys.stdout.flush()
            _serve(sampler, stop)
    return 0


def _serve(sampler: Sampler, stop: Stop) -> None:
    """Until somebody stops it; says what cannot be read, each line once."""
    said = {""}
    while not stop.asked:
        history = sampler.history()
        gaps = history.latest.unreadable if history.latest else ()
        for line in (*(f"cannot be read: {gap.what}: {gap.reason}" for gap in gaps), history.trouble or ""):
            if line not in said:
                complain(line)
                said.add(line)
        time.sleep(LOOK_SECONDS)
