"""``pinscope exporter``: the live figures for Prometheus."""

from __future__ import annotations

import sys
import time
from importlib.resources import files
from typing import Annotated

import typer

from pinscope.cli.options import Gpus, Interval, Probe, checked_interval
from pinscope.cli.progress import LOOK_SECONDS, Stop
from pinscope.cli.terminal import complain, print_line
from pinscope.errors import BadInput
from pinscope.live.sampler import Sampler
from pinscope.live.source import open_source
from pinscope.monitoring.metrics import SnapshotCollector
from pinscope.monitoring.server import MetricsServer, is_loopback

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
    seconds = checked_interval(interval)
    with Stop(hangup=True) as stop, open_source(probe=probe, gpus=gpus, interval_seconds=seconds) as source:
        sampler = Sampler(source.take, interval_seconds=seconds, history_seconds=0.0)
        with MetricsServer(SnapshotCollector(sampler.history), address, port) as server, sampler:
            if not is_loopback(address):
                complain(f"everyone who can reach {address} can read which processes and users hold memory here")
            print_line(f"PinScope's metrics are at {server.url} (Ctrl-C stops it)")
            sys.stdout.flush()
            _serve(sampler, stop)
    return 0


def _serve(sampler: Sampler, stop: Stop) -> None:
    """Until somebody stops it; says once what cannot be read, and when readings begin to fail."""
    gaps_are_said, trouble = False, None
    while True:
        history = sampler.history()
        if history.latest is not None and not gaps_are_said:
            gaps_are_said = True
            for gap in history.latest.unreadable:
                complain(f"cannot be read: {gap.what}: {gap.reason}")
        if history.trouble is not None and trouble is None:
            complain(history.trouble)
        trouble = history.trouble
        if stop.asked:
            return
        time.sleep(LOOK_SECONDS)
