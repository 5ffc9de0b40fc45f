"""``pinscope fleet``: the same question on many hosts, and what their answers say together."""

from __future__ import annotations

import typer

app = typer.Typer(
    add_completion=False, help="Run experiments on many hosts, and compare the hosts.", rich_markup_mode=None
)
