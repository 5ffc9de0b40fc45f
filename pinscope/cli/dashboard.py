"""``pinscope dashboard``: the pages, in the browser."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pinscope.dashboard.gate import named_origins, origins_from_environment
from pinscope.dashboard.serve import port_from_environment, serve

if TYPE_CHECKING:
    from pinscope.manual.site import Site


def dashboard(
    context: typer.Context,
    port: Annotated[
        int | None,
        typer.Option(metavar="PORT", help="Port to listen on. Default: PINSCOPE_PORT, else 8501.", show_default=False),
    ] = None,
    origin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help="Another address under which browsers reach the dashboard, such as http://localhost:9000 for a "
            "forwarded port; may be repeated. Overrides PINSCOPE_ORIGINS.",
            show_default=False,
        ),
    ] = None,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the dashboard in this machine's browser.")] = False,
) -> int:
    """Serve the dashboard on 127.0.0.1 until Ctrl-C."""
    named = named_origins(origin) if origin else origins_from_environment()

    def site() -> Site:
        from pinscope.cli.docs import whole_site

        return whole_site(context.find_root().command)

    return serve(port_from_environment() if port is None else port, open_browser, site, named)
