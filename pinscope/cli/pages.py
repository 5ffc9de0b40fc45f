"""``pinscope dashboard`` and ``pinscope docs``: pages in the browser."""

from __future__ import annotations

import os
import sys
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import platformdirs
import typer

import pinscope
from pinscope.cli.terminal import console, print_json, print_line
from pinscope.errors import NotPossible
from pinscope.manual.site import Site, write_html
from pinscope.store.new_file import keep_private

if TYPE_CHECKING:
    from pinscope.manual.site import Site


def command_reference(root: Any) -> str:
    """All commands as Markdown.

    Args:
        root: the command ``pinscope``, as Typer made it.
    """
    parts = [_command("pinscope", root)]
    parts += [_command(name, command) for name, command in commands(root)]
    return "\n\n".join(parts)


def commands(root: Any, above: str = "pinscope") -> Iterator[tuple[str, Any]]:
    """Name, such as ``pinscope runs list``, and command: those that can be carried out."""
    for name, command in root.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{above} {name}")
        else:
            yield f"{above} {name}", command


def _command(name: str, command: Any) -> str:
    parameters = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
    lines = [f"## {name}", "", _one_line(command.help or ""), ""]
    lines += ["```text", " ".join([name, *_usage(command, parameters)]), "```"]
    if parameters:
        lines += ["", "| argument or option | meaning | default |", "| --- | --- | --- |"]
        lines += [
            f"| {_names(parameter)} | {_one_line(parameter.help or '')} | {_default(parameter)} |"
            for parameter in parameters
        ]
    return "\n".join(lines)


def _usage(command: Any, parameters: list[Any]) -> Iterator[str]:
    if any(parameter.param_type_name == "option" for parameter in parameters):
        yield "[OPTIONS]"
    if hasattr(command, "commands"):
        yield "COMMAND"
    for parameter in parameters:
        if parameter.param_type_name == "argument":
            name = (parameter.metavar or parameter.name.upper()) + ("…" if parameter.nargs == -1 else "")
            yield name if parameter.required else f"[{name}]"


def _names(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{_cell(parameter.metavar or parameter.name.upper())}`"
    takes = f" {parameter.metavar or parameter.type.name.upper()}" if not parameter.is_flag else ""
    names = [*parameter.opts, *parameter.secondary_opts]
    return ", ".join(f"`{_cell(name + takes)}`" for name in names)


def _default(parameter: Any) -> str:
    value = parameter.default
    if parameter.required:
        return "required"
    if value is None or value is False or value == [] or callable(value):
        return ""
    if value is True:
        return f"`{parameter.opts[0]}`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


def _one_line(text: str) -> str:
    return _cell(" ".join(text.split()))


_DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")
"""Variables that a desktop sets: without one, a browser would start in the terminal, or not at all."""


def docs(
    context: typer.Context,
    page: Annotated[
        str, typer.Argument(metavar="PAGE", help="A page, such as glossary, json or bandwidth.", show_default=False)
    ] = "index",
    as_text: Annotated[bool, typer.Option("--text", help="Print the page in the terminal.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON: the path of the page, and the names of all pages.")
    ] = False,
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
    elif not _opened(file):
        print_line(str(file))


def whole_site(root: Any) -> Site:
    """The documentation with the reference of the command line.

    Args:
        root: the command ``pinscope``.
    """
    return Site(lambda: command_reference(root))


def _written(site: Site, name: str) -> Path:
    """The page's file, in the folder for what can be made again.

    Raises:
        NotPossible: this user has no home folder.
    """
    try:
        cache = platformdirs.user_cache_path("pinscope", appauthor=False)
    except RuntimeError:
        raise NotPossible("there is no place for the pages, because this user has no home folder; use --text") from None
    keep_private(cache)
    folder = cache / f"docs-{pinscope.__version__}"
    write_html(site, folder)
    return folder / f"{name}.html"


def _opened(file: Path) -> bool:
    """True if a browser of this desktop shows the file."""
    return any(os.environ.get(name) for name in _DISPLAYS) and webbrowser.open(file.as_uri())


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
    # They import Starlette, which comes with the extra `dashboard`.
    from pinscope.dashboard.middleware import named_origins, origins_from_environment
    from pinscope.dashboard.serve import port_from_environment, serve

    named = named_origins(origin) if origin else origins_from_environment()

    def site() -> Site:

        return whole_site(context.find_root().command)

    return serve(port_from_environment() if port is None else port, open_browser, site, named)
