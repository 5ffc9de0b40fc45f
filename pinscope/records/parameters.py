"""Parameters, and the types from which forms and command-line options are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Annotated, Any, Self, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import PydanticUndefined

from pinscope.errors import InvalidParameter
from pinscope.records.run import LabKind
from pinscope.text import quoted
from pinscope.units import parse_bytes, parse_seconds, parse_share

MOST_CHARACTERS = 4096
"""Of a parameter as text: hundreds of sizes."""


def _by_comma(value: Any) -> Any:
    """Lists come as text from the command line: ``4KiB,1MiB``."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


def _size(value: Any) -> int:
    try:
        return parse_bytes(value)
    except InvalidParameter as error:
        raise ValueError(str(error)) from None


def _distinct(values: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(values))


def _ascending(values: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(set(values)))


def _multiple_of_8(value: int) -> int:
    if value % 8:
        raise ValueError("a size must be a multiple of 8 bytes")
    return value


_Item = TypeVar("_Item")
_IN_BYTES = Field(json_schema_extra={"unit": "bytes"})
Bytes = Annotated[int, BeforeValidator(_size), Field(gt=0), AfterValidator(_multiple_of_8), _IN_BYTES]
"""A size in bytes; takes ``64KiB``, ``1e9`` …"""
Ascending = Annotated[tuple[_Item, ...], BeforeValidator(_by_comma), Field(min_length=1), AfterValidator(_ascending)]
"""One or more numbers, each once, the least first; takes a list by comma."""
Sizes = Annotated[Ascending[Bytes], _IN_BYTES]
"""Sizes in bytes, ascending; takes a list by comma."""
Counts = Annotated[Ascending[Annotated[int, Field(ge=1, le=64)]], Field(json_schema_extra={"unit": "count"})]
"""Whole numbers from 1 to 64, ascending; takes a list by comma."""
Several = Annotated[tuple[_Item, ...], BeforeValidator(_by_comma), Field(min_length=1), AfterValidator(_distinct)]
"""One or more of a set of words; takes a list by comma."""


def _read_by(parse: Callable[[str], float]) -> BeforeValidator:
    """``2%`` is 0.02, ``10m`` is 600; anything else is for the type to take or refuse."""

    def read(value: Any) -> Any:
        if isinstance(value, str):
            with suppress(InvalidParameter):
                return parse(value)
        return value

    return BeforeValidator(read)


Share = Annotated[float, _read_by(parse_share), Field(json_schema_extra={"unit": "share"})]
"""A part of something: 0.02 or ``2%``."""
Seconds = Annotated[float, _read_by(parse_seconds), Field(json_schema_extra={"unit": "seconds"})]
"""A length of time: 2 or ``2s``."""


def sizes(text: str) -> tuple[int, ...]:
    """Sizes of a preset: ``4KiB 1MiB``."""
    return tuple(map(parse_bytes, text.split()))


def parameter(
    title: str, description: str, default: Any = PydanticUndefined, *, unit: str | None = None, **limits: Any
) -> Any:
    """A field of a parameter model, as form and command line show it; ``limits`` are pydantic's, such as ``ge=1``."""
    if unit:
        limits["json_schema_extra"] = {"unit": unit}
    return Field(default, title=title, description=description, **limits)


class Inputs(BaseModel):
    """Checked values. The form and the command-line options are generated from the fields: see :func:`parameter`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @classmethod
    def preset(cls, lab: LabKind, quick: bool) -> Self:
        """Defaults for a lab, in full or quick size."""
        raise NotImplementedError(f"{cls.__name__} has no preset for {lab}, quick={quick}")

    def smaller(self) -> Self | None:
        """The next smaller variant, for a preset that is more than a machine can hold; ``None`` if there is none."""
        return None

    def with_overrides(self, overrides: Mapping[str, Any]) -> Self:
        """These parameters with some replaced, validated anew.

        Raises:
            InvalidParameter: unknown name or value out of range, in one line.
        """
        unknown = sorted(set(overrides) - set(type(self).model_fields))
        if unknown:
            known = ", ".join(type(self).model_fields)
            raise InvalidParameter(f"no parameter {quoted(unknown[0])}; there are: {known}")
        for name, value in overrides.items():
            if isinstance(value, str) and len(value) > MOST_CHARACTERS:
                raise InvalidParameter(f"{name}: {len(value):,} characters are too many; at most {MOST_CHARACTERS:,}")
        try:
            return type(self).model_validate({**self.model_dump(), **overrides})
        except ValidationError as error:
            raise InvalidParameter(_one_line(error)) from None


_PLAINER = {
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_parsing": "must be a number",
    "bool_parsing": "must be yes or no",
    "too_short": "needs at least one value",
}
"""What pydantic would say of a value in its own terms, by its kind of complaint."""


def _one_line(error: ValidationError) -> str:
    """The first complaint of pydantic as one line: what was wrong and what is allowed."""
    first = error.errors()[0]
    name = ".".join(str(part) for part in first["loc"][:1])
    message = _PLAINER.get(first["type"]) or first["msg"].removeprefix("Value error, ")
    message = message.replace("Input should be", "must be")
    if first["type"] == "literal_error":
        message = message.replace("'", "")  # names: a list of many stays short
    given = first.get("input")
    value = f" (given: {quoted(given)})" if isinstance(given, str | int | float) else ""
    if value and quoted(given) in message:
        value = ""  # said already
    return f"{name}: {message}{value}" if name else f"{message}{value}"  # no name: several fields do not fit together
