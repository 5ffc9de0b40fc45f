"""``pinscope live --hosts``: the figures of several hosts, read from their exporters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from pinscope.cli import terminal
from pinscope.cli.outcome import print_reading_table
from pinscope.monitoring.hosts import FIGURES, RemoteHost, addresses, read_hosts
from pinscope.records.run import table

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
            if once:
                return int(any(host.problem for host in hosts))
            stop.wait(interval)
            if stop.asked:
                return 0


def _print(hosts: Sequence[RemoteHost]) -> None:
    known = sorted((host for host in hosts if not host.problem), key=lambda host: -(host.pinned_bytes or 0.0))
    columns = {"host": "text", **{figure.metadata["title"]: "bytes" for figure in FIGURES}, "links below best": "text"}
    figures = [[getattr(host, figure.name) for figure in FIGURES] for host in known]
    links = ["; ".join(host.slow_links) or "none" for host in known]
    rows = [(host.address, *own, link) for host, own, link in zip(known, figures, links, strict=True)]
    held = [(of.name, of.pid, of.user, host.address, of.bytes) for host in known for of in host.holders]
    held.sort(key=lambda row: -row[-1])
    holders = {"holder": "text", "pid": "text", "user": "text", "host": "text", "pinned": "bytes"}
    for each in (table("", columns, rows), table("Who holds most", holders, held[:MOST_HOLDERS])):
        if each.rows:
            print_reading_table(each)
    for host in hosts:
        if host.problem:
            terminal.complain(f"{host.address}: {host.problem}")
