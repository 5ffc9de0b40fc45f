"""A form made from the fields of an experiment's parameters: nothing here knows any experiment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import streamlit as st

from pinscope.charts.theme import words
from pinscope.records.parameters import Inputs
from pinscope.report.facts import Parameter, form_parameters
from pinscope.units import exact_bytes

Kind = Literal["switch", "choice", "choices", "sizes", "counts", "whole", "number", "text"]
_KINDS: Mapping[str, Kind] = {"boolean": "switch", "integer": "whole", "number": "number", "string": "text"}
_TYPED: Mapping[str, str] = {"share": " (%)", "seconds": " (s)"}
"""Unit of a number → what its label says of it."""


def parameter_form(preset: Inputs, key: str) -> dict[str, Any]:
    """Draw the form, filled with ``preset``.

    Args:
        preset: the values to start from.
        key: makes the widgets of this form its own; another key starts from the preset again.

    Returns:
        The fields whose value differs from the preset, as the widgets gave them: not validated.
    """
    overrides = {}
    grid = st.grid(2, min_column_width=280, gap=("small", "large"))
    for parameter in form_parameters(type(preset)):
        start = _widget_value(parameter, getattr(preset, parameter.name))
        with grid.cell():
            given = _ask(parameter, start, f"{key}-{parameter.name}")
        if given != start:
            overrides[parameter.name] = _field_value(parameter, given)
    return overrides


def _kind(parameter: Parameter) -> Kind:
    """Which widget asks for it."""
    if parameter.unit == "bytes":
        return "sizes"
    if parameter.choices:
        return "choice" if "enum" in parameter.schema else "choices"
    return "counts" if parameter.items else _KINDS[parameter.schema["type"]]


def _widget_value(parameter: Parameter, value: Any) -> Any:
    """A field's value as its widget shows it."""
    match _kind(parameter):
        case "sizes":
            return ", ".join(exact_bytes(size) for size in (value if isinstance(value, tuple) else (value,)) if size)
        case "counts":
            return ", ".join(map(str, value))
        case "choices":
            return list(value)
    return round(value * 100, 6) if parameter.unit == "share" else value


def _field_value(parameter: Parameter, given: Any) -> Any:
    """What a widget's value means as a field's value: ``None`` for nothing, where the field takes that."""
    if given == "" and {"type": "null"} in parameter.schema.get("anyOf", ()):
        return None
    if _kind(parameter) == "choices":
        return tuple(given)
    return round(given / 100, 8) if parameter.unit == "share" and given is not None else given


def _ask(parameter: Parameter, start: Any, key: str) -> Any:
    """Draw the widget and return what it says. Values stay while the user looks at other pages."""
    label = parameter.title + _TYPED.get(parameter.unit, "")
    common: Any = {"help": parameter.description, "key": key, "persist_state": "session"}
    match _kind(parameter):
        case "switch":
            return st.toggle(label, value=start, **common)
        case "sizes" | "counts" | "text":
            return st.text_input(label, value=start, **common)
        case "choice":
            choices, better = parameter.choices, parameter.schema.get("words", {})
            return st.selectbox(
                label,
                choices,
                index=choices.index(start),
                **common,
                format_func=lambda choice: better.get(choice, words(choice)),
            )
        case "choices":
            return st.pills(
                label, parameter.choices, selection_mode="multi", default=start, format_func=words, wrap=True, **common
            )
        case "whole":
            return _ask_number(label, parameter, start, 1, format=None, **common)
    return _ask_number(label, parameter, float(start), 0.1 if start < 1 else 0.5, format="%.6g", **common)


def _ask_number(label: str, parameter: Parameter, start: float, step: float, **common: Any) -> Any:
    """Between the bounds of the field, in the unit of the form."""
    scale, kind = 100 if parameter.unit == "share" else 1, type(start)
    least, most = (
        next((kind(parameter.schema[name] * scale) for name in names if name in parameter.schema), None)
        for names in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum"))
    )
    return st.number_input(label, value=start, min_value=least, max_value=most, step=step, **common)
