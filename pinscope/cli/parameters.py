"""What ``--set`` takes, in words, from the fields of an experiment's parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pinscope.experiments.contract import Inputs


def parameter_help(params: type[Inputs]) -> list[tuple[str, str]]:
    """One (name, explanation) a parameter, in the order of the fields."""
    fields = params.model_json_schema()["properties"]
    return [(name, _explanation(field)) for name, field in fields.items()]


def _explanation(field: Mapping[str, Any]) -> str:
    choices = field.get("enum") or field.get("items", {}).get("enum")
    allowed = f" One of: {', '.join(choices)}." if "enum" in field else ""
    if choices and not allowed:
        allowed = f" Any of: {', '.join(choices)}."
    unit = f" ({field['unit']})" if field.get("unit") in ("bytes", "seconds", "share") else ""
    return f"{field['title']}{unit}. {field['description']}{allowed}"
