"""A form made from the fields of an experiment's parameters: nothing here knows any experiment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import streamlit as st

from pinscope.charts.theme import words
from pinscope.experiments.contract import Inputs, Params
from pinscope.units import exact_bytes

Kind = Literal["switch", "choice", "choices", "sizes", "counts", "whole", "number", "text"]


@dataclass(frozen=True)
class Control:
    """One field as a form shows it.

    Attributes:
        name: the field's name.
        title: its label.
        description: what it means, for the tooltip.
        kind: which widget asks for it.
        unit: ``bytes``, ``seconds``, ``share``, ``count`` or nothing.
        choices: the words to choose from, if any.
        words: choices that read better in other words.
        least, most: bounds of a number, if any.
    """

    name: str
    title: str
    description: str
    kind: Kind
    unit: str
    choices: tuple[str, ...]
    words: Mapping[str, str]
    least: float | None
    most: float | None

    @property
    def label(self) -> str:
        """The title with the unit to type, where the title alone does not tell."""
        unit = {"share": "%", "seconds": "s"}.get(self.unit)
        return f"{self.title} ({unit})" if unit else self.title


def controls(params: type[Inputs]) -> tuple[Control, ...]:
    """The controls of an experiment's parameters: its own first, those common to all experiments last."""
    fields = params.model_json_schema()["properties"]
    ordered = [name for name in fields if name not in Params.model_fields]
    ordered += [name for name in fields if name in Params.model_fields]
    return tuple(_control(name, fields[name]) for name in ordered)


def _control(name: str, field: Mapping[str, Any]) -> Control:
    items = field.get("items", {})
    return Control(
        name=name,
        title=field["title"],
        description=field["description"],
        kind=_kind(field),
        unit=field.get("unit", ""),
        choices=tuple(field.get("enum") or items.get("enum") or ()),
        words=field.get("words", {}),
        least=field.get("minimum", field.get("exclusiveMinimum")),
        most=field.get("maximum", field.get("exclusiveMaximum")),
    )


def _kind(field: Mapping[str, Any]) -> Kind:
    if field["type"] == "boolean":
        return "switch"
    if field.get("unit") == "bytes":
        return "sizes"
    if field.get("items", {}).get("type") == "integer":
        return "counts"
    if "enum" in field:
        return "choice"
    if "enum" in field.get("items", {}):
        return "choices"
    kinds: Mapping[str, Kind] = {"integer": "whole", "number": "number", "string": "text"}
    return kinds[field["type"]]


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
    for control in controls(type(preset)):
        start = _shown(control, getattr(preset, control.name))
        with grid.cell():
            given = _ask(control, start, f"{key}-{control.name}")
        if given != start:
            overrides[control.name] = _meant(control, given)
    return overrides


def _shown(control: Control, value: Any) -> Any:
    """A field's value as its widget shows it."""
    if control.kind == "sizes":
        sizes = value if isinstance(value, tuple) else (value,)
        return ", ".join(exact_bytes(size) for size in sizes)
    if control.kind == "counts":
        return ", ".join(str(number) for number in value)
    if control.kind == "choices":
        return list(value)
    return round(value * 100, 6) if control.unit == "share" else value


def _meant(control: Control, given: Any) -> Any:
    """What a widget's value means as a field's value."""
    if control.kind == "choices":
        return tuple(given)
    if control.unit == "share" and given is not None:
        return round(given / 100, 8)
    return given


def _ask(control: Control, start: Any, key: str) -> Any:
    """Draw the widget and return what it says. Values stay while the user looks at other pages."""
    label, tip = control.label, control.description
    if control.kind == "switch":
        return st.toggle(label, value=start, help=tip, key=key, persist_state="session")
    if control.kind in ("sizes", "counts", "text"):
        return st.text_input(label, value=start, help=tip, key=key, persist_state="session")
    if control.kind == "choice":
        return st.selectbox(
            label, control.choices, index=control.choices.index(start),
            format_func=lambda choice: control.words.get(choice, words(choice)),
            help=tip, key=key, persist_state="session",
        )  # fmt: skip
    if control.kind == "choices":
        return st.pills(
            label, control.choices, selection_mode="multi", default=start, format_func=words,
            help=tip, key=key, persist_state="session", wrap=True,
        )  # fmt: skip
    scale = 100 if control.unit == "share" else 1
    number = int if control.kind == "whole" else float
    return st.number_input(
        label, value=start, help=tip, key=key, persist_state="session",
        min_value=None if control.least is None else number(control.least * scale),
        max_value=None if control.most is None else number(control.most * scale),
        step=1 if control.kind == "whole" else _step(start), format=None if control.kind == "whole" else "%.6g",
    )  # fmt: skip


def _step(start: float) -> float:
    """A step of the plus and minus buttons that suits the size of the number."""
    return 0.1 if start < 1 else 0.5
