"""``pinscope live --hosts``: the figures of several hosts, read from their exporters."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict

from pinscope.cli import terminal
from pinscope.monitoring.hosts import FIGURES, RemoteHost, addresses, read_hosts
from pinscope.units import format_value

MOST_HOLDERS = 10


def show_hosts(text: str, once: bool, as_json: bool, interval: float) -> int:
    """One reading, or one each interval until Ctrl-C; 1 where a host gave no figures."""
    names = addresses(text)
    with terminal.Stop() as stop:
        while True:
            hosts = read_hosts(names)
            if as_json:
                terminal.print_json([asdict(host) for host in hosts])
            else:
                _print(hosts)
            end = time.monotonic() + interval
            while not (once or stop.asked) and time.monotonic() < end:
                time.sleep(min(terminal.LOOK_SECONDS, interval))
            if once or stop.asked:
                return int(once and any(host.problem for host in hosts))


def _print(hosts: Sequence[RemoteHost]) -> None:
    known = sorted((host for host in hosts if not host.problem), key=lambda host: -(host.pinned_bytes or 0.0))
    if known:
        heads = ["host", *(figure.metadata["title"] for figure in FIGURES), "links below best"]
        rows = []
        for host in known:
            figures = (format_value(getattr(host, figure.name), "bytes") for figure in FIGURES)
            rows.append([host.address, *figures, "; ".join(host.slow_links) or "none"])
        terminal.print_table(heads, rows, numbers=range(1, 1 + len(FIGURES)))
    holders = sorted(((holder, host) for host in known for holder in host.holders), key=lambda held: -held[0].bytes)
    if holders:
        rows = [
            [holder.name, holder.pid, holder.user, host.address, format_value(holder.bytes, "bytes")]
            for holder, host in holders[:MOST_HOLDERS]
        ]
        terminal.print_table(["holder", "pid", "user", "host", "pinned"], rows, title="Who holds most", numbers=[4])
    for host in hosts:
        if host.problem:
            terminal.complain(f"{host.address}: {host.problem}")
