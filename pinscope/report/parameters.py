"""The parameters of an experiment in words: what forms, help texts and documents say of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pinscope.experiments.contract import Inputs

_UNITS = ("bytes", "seconds", "share")
"""Units to be named; others stand in a parameter's description."""


@dataclass(frozen=True)
class Parameter:
    """One parameter.

    Attributes:
        name: as ``--set`` takes it.
        schema: its JSON schema.
    """

    name: str
    schema: Mapping[str, Any]

    @property
    def title(self) -> str:
        """As people read it."""
        return str(self.schema["title"])

    @property
    def description(self) -> str:
        """What it means."""
        return str(self.schema["description"])

    @property
    def unit(self) -> str:
        """``bytes``, ``seconds`` or ``share``; empty for any other."""
        unit = self.schema.get("unit", "")
        return unit if unit in _UNITS else ""

    @property
    def choices(self) -> tuple[str, ...]:
        """The words to choose from, if any."""
        return tuple(self.schema.get("enum") or self.items.get("enum") or ())

    @property
    def items(self) -> Mapping[str, Any]:
        """The JSON schema of each value of a parameter that takes several; else empty."""
        items: Mapping[str, Any] = self.schema.get("items", {})
        return items

    def meaning(self, quote: str = "") -> str:
        """Description and choices, each choice between two ``quote``."""
        if not self.choices:
            return self.description
        how_many = "One" if "enum" in self.schema else "Any"
        return f"{self.description} {how_many} of: {', '.join(f'{quote}{word}{quote}' for word in self.choices)}."


def parameters_of(params: type[Inputs]) -> list[Parameter]:
    """All parameters, in the order of the fields."""
    return [Parameter(name, schema) for name, schema in params.model_json_schema()["properties"].items()]
