"""``pinscope dashboard`` and ``pinscope docs``: pages in the browser."""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path
from typing import Annotated, Any

import platformdirs
import typer

import pinscope
from pinscope.cli.main import argument, option, switch
from pinscope.cli.terminal import console, print_json, print_line
from pinscope.manual.reference import command_reference
from pinscope.manual.site import Site, write_html
from pinscope.store.new_file import keep_private

_DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")
"""Variables that a desktop sets: without one, a browser would start in the terminal, or not at all."""


def docs(
    context: typer.Context,
    page: Annotated[str, argument("PAGE", "A page, such as glossary, json or bandwidth.")] = "index",
    as_text: Annotated[bool, switch("--text", "Print the page in the terminal.")] = False,
    as_json: Annotated[bool, switch("--json", "Print JSON: the path of the page, and the names of all pages.")] = False,
) -> None:
    """Open the documentation in the browser, or print the path of the page where there is no browser."""
    site = whole_site(context.find_root().command)
    name = site.find(page)
    if as_text and not as_json:
        _print(site.markdown(name))
        return
    file = _written(site, name)
    if as_json:
        print_json({"page": name, "file": str(file), "pages": list(site.names)})
    elif not (any(os.environ.get(name) for name in _DISPLAYS) and webbrowser.open(file.as_uri())):
        print_line(str(file))


def whole_site(root: Any) -> Site:
    """The documentation with the reference of the command line.

    Args:
        root: the command ``pinscope``.
    """
    return Site(lambda: command_reference(root))


def _written(site: Site, name: str) -> Path:
    """The page's file, in the folder for what can be made again."""
    cache = platformdirs.user_cache_path("pinscope", appauthor=False)
    keep_private(cache)
    folder = cache / f"docs-{pinscope.__version__}"
    write_html(site, folder)
    return folder / f"{name}.html"


def _print(markdown: str) -> None:
    """The page, laid out for a terminal; as it is written where stdout goes elsewhere."""
    if not sys.stdout.isatty():
        sys.stdout.write(markdown)
        return
    from rich.markdown import Markdown

    console(sys.stdout).print(Markdown(markdown))


def dashboard(
    context: typer.Context,
    port: Annotated[
        int, typer.Option(min=1, max=65535, metavar="PORT", envvar="PINSCOPE_PORT", help="Port to listen on.")
    ] = 8501,
    origin: Annotated[
        list[str] | None,
        option(
            "URL",
            "Another address under which browsers reach the dashboard, such as http://localhost:9000 for a "
            "forwarded port; may be repeated. Overrides PINSCOPE_ORIGINS.",
        ),
    ] = None,
) -> int:
    """Serve the dashboard on 127.0.0.1 until Ctrl-C."""
    # They import Starlette, which comes with the extra `dashboard`.
    from pinscope.dashboard.middleware import named_origins, origins_from_environment
    from pinscope.dashboard.routes import serve

    named = named_origins(origin) if origin else origins_from_environment()

    root = context.find_root().command
    return serve(port, lambda: whole_site(root), named)
