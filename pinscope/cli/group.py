"""A group of commands that knows where those of the other groups stand."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

from pinscope.errors import UnknownName


class Group(TyperGroup):
    """Refuses a command that stands elsewhere with the words that reach it."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the first argument names.

        Raises:
            UnknownName: there is one of that name, but not here.
        """
        if args[0] not in self.commands and not ctx.resilient_parsing:
            right = place_of(ctx.find_root().command, args[0])
            if right is not None:
                raise UnknownName(f"{ctx.command_path} has no command {args[0]}; use: {right}")
        return super().resolve_command(ctx, args)


def place_of(root: Any, name: str) -> str | None:
    """What to type for a command or an experiment of that name; ``None`` if there is neither.

    Args:
        root: the command ``pinscope``.
        name: what somebody typed.
    """
    from pinscope.experiments.registry import EXPERIMENTS

    places = {f"pinscope {own}": own for own in root.commands}
    places |= {f"pinscope runs {own}": own for own in root.commands["runs"].commands}
    places |= {f"pinscope run {entry.name}": entry.name for entry in EXPERIMENTS}
    return next((place for place, own in places.items() if own == name), None)
