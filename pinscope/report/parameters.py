"""The parameters of an experiment in words: what forms, help texts and documents say of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pinscope.experiments.contract import Params
from pinscope.records.parameters import Inputs
from pinscope.units import exact_bytes

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

    @property
    def takes(self) -> str:
        """How a value is written, as a sentence."""
        if self.choices:
            how_many, comma = ("One", "") if "enum" in self.schema else ("Any", ", by comma")
            named = all(f"{word}:" in self.description for word in self.choices)
            return f"{how_many} of {'these' if named else ', '.join(self.choices)}{comma}."
        return _TAKES.get((self.schema.get("type", ""), self.unit), "")

    def default(self, value: Any) -> str:
        """The same, for a value that is shown rather than set."""
        return "all of these" if len(self.choices) > 1 and tuple(value) == self.choices else self.written(value)

    def written(self, value: Any) -> str:
        """A value as ``--set`` takes it."""
        if isinstance(value, tuple | list):
            return ",".join(map(self.written, value))
        if isinstance(value, bool):
            return "on" if value else "off"
        if self.unit == "bytes":
            return exact_bytes(value).replace(" ", "")
        return f"{value * 100:g}%" if self.unit == "share" else f"{value:g}s" if self.unit == "seconds" else str(value)


_TAKES: Mapping[tuple[str, str], str] = {
    ("integer", "bytes"): "A size, such as 64MiB.",
    ("array", "bytes"): "Sizes by comma, such as 64KiB,1MiB.",
    ("number", "share"): "A percentage, such as 5%.",
    ("number", "seconds"): "A time, such as 2s.",
    ("integer", ""): "A whole number.",
    ("array", ""): "Whole numbers by comma.",
    ("boolean", ""): "on or off.",
}
"""JSON type and unit → how a value is written."""


def form_parameters(params: type[Inputs]) -> list[Parameter]:
    """The experiment's own first, those common to all experiments last."""
    return sorted(parameters_of(params), key=lambda parameter: parameter.name in Params.model_fields)


def parameters_of(params: type[Inputs]) -> list[Parameter]:
    """All parameters, in the order of the fields."""
    return [Parameter(name, schema) for name, schema in params.model_json_schema()["properties"].items()]
