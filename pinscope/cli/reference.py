"""The reference of the command line: every command with its arguments and options, as the commands declare them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


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
    shown = [parameter for parameter in command.params if not getattr(parameter, "hidden", False)]
    lines = [f"## {name}", "", _one_line(command.help or ""), ""]
    lines += ["```text", " ".join([name, *_usage(command, shown)]), "```"]
    if shown:
        lines += ["", "| argument or option | meaning | default |", "| --- | --- | --- |"]
        lines += [f"| {_names(one)} | {_one_line(one.help or '')} | {_default(one)} |" for one in shown]
    return "\n".join(lines)


def _usage(command: Any, shown: list[Any]) -> Iterator[str]:
    if any(one.param_type_name == "option" for one in shown):
        yield "[OPTIONS]"
    if hasattr(command, "commands"):
        yield "COMMAND"
    for one in shown:
        if one.param_type_name == "argument":
            name = (one.metavar or one.name.upper()) + ("…" if one.nargs == -1 else "")
            yield name if one.required else f"[{name}]"


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
