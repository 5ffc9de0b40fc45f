"""``pinscope dashboard``: the pages, in the browser."""

from __future__ import annotations

from typing import Annotated

import typer


def dashboard(
    port: Annotated[
        int | None, typer.Option(metavar="PORT", help="Instead of PINSCOPE_PORT, or 8501.", show_default=False)
    ] = None,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> int:
    """Serve the dashboard on 127.0.0.1 until Ctrl-C."""
    from pinscope.dashboard.serve import port_from_environment, serve

    return serve(port_from_environment() if port is None else port, open_browser)
