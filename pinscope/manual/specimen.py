"""A record in which everything is known, of made-up values: it shows what is made of a record's fields."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from pinscope.records.base import Record

_Made = TypeVar("_Made", bound=Record)
_VALUES: Mapping[Any, Any] = {
    bool: True, int: 1, float: 1.0, str: "x", datetime: datetime(2026, 1, 1, tzinfo=UTC), Any: "x",
}  # fmt: skip


def specimen(record: type[_Made]) -> _Made:
    """Every field has a value, and every list one entry."""
    return record(**{name: _value(field.annotation) for name, field in record.model_fields.items()})


def _value(kind: Any) -> Any:
    if kind in _VALUES:
        return _VALUES[kind]
    if inspect.isclass(kind) and issubclass(kind, Record):
        return specimen(kind)
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return parts[0]
    if origin in (Union, types.UnionType, typing.Annotated):
        return _value(next(part for part in parts if part is not type(None)))
    return (_value(parts[0]),) if origin is tuple else {}  # what is left is a mapping
