"""``pinscope live --hosts``: the figures of several hosts, read from their exporters."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict

from pinscope.cli import terminal
from pinscope.monitoring.hosts import RemoteHost, addresses, read_hosts
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


COLUMNS = {
    "pinned": "pinned_bytes",
    "of memory": "memory_bytes",
    "available": "available_bytes",
    "without an owner": "other_bytes",
    "GPU memory no process has": "unattributed_bytes",
}


def _print(hosts: Sequence[RemoteHost]) -> None:
    known = sorted((host for host in hosts if not host.problem), key=lambda host: -(host.pinned_bytes or 0.0))
    if known:
        rows = [
            [
                host.address,
                *(format_value(getattr(host, field), "bytes") for field in COLUMNS.values()),
                "; ".join(host.slow_links) or "none",
            ]
            for host in known
        ]
        terminal.print_table(["host", *COLUMNS, "links below best"], rows, numbers=range(1, 6))
    holders = sorted(((host.address, held) for host in known for held in host.holders), key=lambda item: -item[1].bytes)
    if holders:
        terminal.print_table(
            ["holder", "pid", "user", "host", "pinned"],
            [
                [holder.name, holder.pid, holder.user, address, format_value(holder.bytes, "bytes")]
                for address, holder in holders[:MOST_HOLDERS]
            ],
            title="Who holds most",
            numbers=[4],
        )
    for host in hosts:
        if host.problem:
            terminal.complain(f"{host.address}: {host.problem}")
