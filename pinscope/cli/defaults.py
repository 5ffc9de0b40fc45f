"""Defaults of options, from the file ``pinscope.toml`` in the user's own folder for settings.

No other place is looked at: a working folder that somebody else filled changes nothing of what a command does.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import platformdirs

from pinscope.errors import BadInput
from pinscope.text import error_line, quoted


def settings_file() -> Path:
    """Where the defaults are, on Linux ``~/.config/pinscope/pinscope.toml``; there need be none.

    Raises:
        RuntimeError: there is no home folder.
    """
    return platformdirs.user_config_path("pinscope", appauthor=False).absolute() / "pinscope.toml"


def defaults(root: Any, called: str | None) -> dict[str, Any]:
    """What the options of the command that is called are where they are not given, as its parser takes them.

    Args:
        root: the command ``pinscope``.
        called: first word of the command line.

    Raises:
        BadInput: the file cannot be read, or names no command or option.
    """
    with suppress(RuntimeError, FileNotFoundError, PermissionError):  # what this user may not read is not theirs
        file = settings_file()
        try:
            tables = tomllib.loads(file.read_text("utf-8"))
            if unknown := set(tables) - set(root.commands):
                raise ValueError(f"there is no command {quoted(min(unknown))}")
            return {called: _of(root.commands[called], tables[called], called)} if called in tables else {}
        except (FileNotFoundError, PermissionError):
            raise
        except (OSError, ValueError) as error:  # what is no TOML among them
            raise BadInput(f"{file}: {error_line(str(error))}") from None
    return {}


def _of(command: Any, table: Any, name: str) -> dict[str, Any]:
    """A table of the file, with the parameters' own names; ``name``: of the command."""
    if not isinstance(table, Mapping):
        raise ValueError(f"{name} must be a table: [{name}]")
    inner = getattr(command, "commands", {})
    options = {
        word.removeprefix("--"): option.name for option in command.params for word in option.opts if word[:2] == "--"
    }
    made = {}
    for key, value in table.items():
        if key in inner:
            made[key] = _of(inner[key], value, f"{name}.{key}")
        elif key in options and not inner:
            made[options[key]] = value
        else:
            raise ValueError(f"[{name}] has no {quoted(key)}; there are: {', '.join(inner or options)}")
    return made
