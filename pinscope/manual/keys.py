"""The keys of a record as the reference shows them: name, type, unit, meaning, all taken from the record's class."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from itertools import pairwise
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import AwareDatetime, BaseModel

from pinscope.records.figure import figures

UNITS: Mapping[str, str] = {
    "bytes_per_second": "bytes/second",
    "bytes": "bytes",
    "seconds": "seconds",
    "hertz": "hertz",
    "celsius": "°C",
    "share": "share, 0 to 1",
}
"""End of a key → the unit of its value."""
EVERYWHERE: Mapping[str, str] = {
    "missing": "Key → why it is `null` or empty.",
    "estimates": "Key → why the figure is not exact, and how it may be wrong.",
}
"""Keys that mean the same in every record, and need no words of their own there."""
_PLAIN: Mapping[Any, str] = {
    int: "integer",
    float: "number",
    str: "text",
    bool: "true or false",
    Any: "any",
    datetime: "time (ISO 8601)",
    AwareDatetime: "time (ISO 8601)",
}


@dataclass(frozen=True)
class Key:
    """One key of a JSON object.

    Attributes:
        name: as it stands in the document.
        type: of its value, as Markdown; a record is a link to its own table.
        meaning: one or two sentences, as Markdown.
    """

    name: str
    type: str
    meaning: str

    @property
    def unit(self) -> str:
        """Of its value; empty where it has none."""
        return next((unit for end, unit in UNITS.items() if re.search(rf"(^|_){end}$", self.name)), "")


def keys_of(record: type) -> list[Key]:
    """All keys of a record's JSON, in the order in which they are written."""
    meanings = _meanings(record)
    return [Key(name, _type(kind), meanings.get(name, "")) for name, kind in _fields(record)]


def records_in(record: type) -> Iterator[type]:
    """The records that stand in a record's JSON, at any depth, each once and in order."""
    seen: list[type] = []

    def walk(kind: Any) -> Iterator[type]:
        if _is_record(kind) and kind not in seen:
            seen.append(kind)
            yield kind
            for _, inner in _fields(kind):
                yield from walk(inner)
        for part in () if _is_mapping(kind) else get_args(kind):  # its keys are names, as of missing figures
            yield from walk(part)

    for _, kind in _fields(record):
        yield from walk(kind)


def table(keys: Sequence[Key]) -> str:
    """The keys as a table in Markdown."""
    lines = ["| key | type | unit | meaning |", "| --- | --- | --- | --- |"]
    lines += [f"| `{key.name}` | {key.type} | {key.unit} | {key.meaning} |" for key in keys]
    return "\n".join(lines)


def meaning(docstring: str) -> str:
    """A docstring as one line of Markdown that fits into a cell: of JSON, ``None`` is ``null``."""
    text = " ".join(docstring.split())
    text = re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", r"`\1`", text)
    text = text.replace("``None``", "`null`").replace("``", "`").replace("|", r"\|")
    return text[:1].upper() + text[1:]


def _is_mapping(kind: Any) -> bool:
    origin = get_origin(kind)
    return inspect.isclass(origin) and issubclass(origin, Mapping)


def _is_record(kind: Any) -> bool:
    return inspect.isclass(kind) and (issubclass(kind, BaseModel) or dataclasses.is_dataclass(kind))


def _fields(record: Any) -> list[tuple[str, Any]]:
    if issubclass(record, BaseModel):
        computed = [(name, field.return_type) for name, field in record.model_computed_fields.items()]
        return [*((name, field.annotation) for name, field in record.model_fields.items()), *computed]
    kinds = typing.get_type_hints(record)
    return [(field.name, kinds[field.name]) for field in dataclasses.fields(record)]


def _type(kind: Any) -> str:
    if kind in _PLAIN:
        return _PLAIN[kind]
    if _is_record(kind):
        return f"[{kind.__name__}](#{kind.__name__.lower()})"
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return ", ".join(f"`{word}`" for word in parts)
    if origin in (Union, types.UnionType):
        some = " or ".join(_type(part) for part in parts if part is not type(None))
        return f"{some} or null" if type(None) in parts else some
    if origin is typing.Annotated:
        return _type(parts[0])
    return f"list of {_type(parts[0])}" if origin is tuple else "object"  # what is left is a mapping


def _meanings(record: type) -> dict[str, str]:
    """Field → what its docstring says; a field that a class takes over keeps the words it had there."""
    found = dict(EVERYWHERE)
    for part in reversed(record.__mro__):
        if part.__module__.split(".")[0] == "pinscope":
            found |= _own_meanings(part)
    if issubclass(record, BaseModel):
        described: dict[str, Any] = {**record.model_fields, **record.model_computed_fields}
        found |= {name: meaning(field.description) for name, field in described.items() if field.description}
        found |= {figure.field: meaning(figure.help) for figure in figures(record)}
    return found


@cache
def _own_meanings(record: type) -> dict[str, str]:
    """Of a pydantic record: the string after each field. Of a dataclass: its docstring's ``Attributes``, too."""
    definition = ast.parse(textwrap.dedent(inspect.getsource(record))).body[0]
    body = definition.body if isinstance(definition, ast.ClassDef) else []
    found = {name: meaning(text) for name, text in _listed_attributes(record)}
    for field, words in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(words, ast.Expr):
            text = words.value.value if isinstance(words.value, ast.Constant) else None
            if isinstance(text, str):
                found[field.target.id] = meaning(text)
    return found


def _listed_attributes(record: type) -> list[tuple[str, str]]:
    _, _, listed = inspect.cleandoc(record.__doc__ or "").partition("Attributes:\n")
    return [(name, text) for name, text in re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", listed, re.MULTILINE)]
