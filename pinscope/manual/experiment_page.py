"""The page of an experiment: what its code says of itself, around what docs/experiments/ says of its results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pinscope.experiments.contract import AnyKind, Inputs
from pinscope.experiments.registry import EXPERIMENTS, find_reader, method

_UNITS = ("bytes", "seconds", "share")
"""Of a parameter; others stand in its description."""


def experiment_page(name: str, body: str, *, has_picture: bool) -> str:
    """Question, method and chart, the body, then the parameters and where the raw data is explained.

    Args:
        name: of the experiment.
        body: how to read it and what to do, as Markdown; may be empty.
        has_picture: whether ``pictures/NAME.png`` exists.
    """
    return "\n\n".join(part for part in _parts(find_reader(name).kind, body.strip(), has_picture) if part) + "\n"


def _parts(kind: AnyKind, body: str, has_picture: bool) -> Iterator[str]:
    yield f"# {kind.title}"
    yield f"**{kind.question}**"
    if has_picture:
        yield f"![{kind.title}: a recorded run](../pictures/{kind.name}.png)"
    yield body
    yield f"## Method\n\n{method(kind)}"
    labs = next((entry.experiment.labs for entry in EXPERIMENTS if entry.name == kind.name), {})
    yield "\n".join(f"It does not run on the host model: {reason}." for reason in [labs.get("host")] if reason)
    if labs:
        yield f"## Parameters\n\nSet one with `pinscope run {kind.name} --set NAME=VALUE`."
        yield _parameters(kind.Params)
    anchor = f"observations-of-{kind.name}"
    yield f"## Raw data\n\nThe keys of an observation are in the [JSON reference](../reference/json.md#{anchor})."


def _parameters(params: type[Inputs]) -> str:
    lines = ["| parameter | unit | meaning |", "| --- | --- | --- |"]
    for name, field in params.model_json_schema()["properties"].items():
        unit = field.get("unit", "")
        lines.append(f"| `{name}` | {unit if unit in _UNITS else ''} | {_meaning(field)} |")
    return "\n".join(lines)


def _meaning(field: Mapping[str, Any]) -> str:
    one, several = field.get("enum"), field.get("items", {}).get("enum")
    words = f"{field['title']}. {field['description']}".replace("|", r"\|")
    if one:
        words += f" One of: {', '.join(f'`{choice}`' for choice in one)}."
    if several:
        words += f" Any of: {', '.join(f'`{choice}`' for choice in several)}."
    return words
