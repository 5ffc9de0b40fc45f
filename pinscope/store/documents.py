"""Runs and their observations as databases and bundles hold them: what may be stored, and how."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from pinscope.errors import InvalidParameter
from pinscope.records import base
from pinscope.records.labels import LabelFields
from pinscope.records.run import Run
from pinscope.text import mask_code, mask_text, mask_value, quoted

RUN_ID_LENGTH = 100
NAME_LENGTH = 100
"""Longest name of an experiment."""
StoredRow = dict[str, Any]
"""A stored observation: a flat mapping of labels and values in SI units."""
ANY_ROW: TypeAdapter[StoredRow] = TypeAdapter(dict[str, Any])
"""Parses JSON."""


class RowSource(Protocol):
    """Observations of one run, in order. They may come from a file or a database a few at a time, each time anew."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[StoredRow]: ...


RunWithRows = tuple[Run, RowSource]
RunT = TypeVar("RunT", bound=Run)

_RUN_ID = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{RUN_ID_LENGTH - 1}}}")
_NAME = re.compile(rf"[^\x00-\x1f\x7f]{{1,{NAME_LENGTH}}}")
_TEXTS = ("params", "notes", "error", "verdict", "name", "note")
"""Fields of a run that may repeat a command line."""
_CODE = frozenset({"source_line"})
"""Fields of an observation that are source code."""
_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))
_SHOWN = 60
"""Characters of a wrong value that a message repeats."""


def storable(run: RunT) -> RunT:
    """The run as databases and bundles hold it: secrets in its texts are masked.

    Raises:
        InvalidParameter: an id that could not name a file, a name with control characters, NaN in the parameters, a
            number of more than 64 bits, a record that is too large.
    """
    run = run.model_copy(update={field: mask_value(getattr(run, field)) for field in _TEXTS})
    if not is_run_id(run.id):
        raise InvalidParameter(
            f"{quoted(run.id)} cannot be a run's id: letters, digits, dot, hyphen and underscore, "
            f"at most {RUN_ID_LENGTH}"
        )
    if len({attachment.name for attachment in run.attachments}) < len(run.attachments):
        raise InvalidParameter(f"run {run.id} has two attachments of the same name")
    if not _NAME.fullmatch(run.experiment):
        raise InvalidParameter(f"{quoted(run.experiment)} cannot be the name of an experiment")
    try:
        written = run.model_dump(mode="json", exclude={"figures"})  # whose bounds are their own
        dump_json(dict(run.params))  # pydantic writes NaN as null
        text = dump_json(written)
    except (TypeError, ValueError) as error:
        raise InvalidParameter(f"run {run.id}: the parameters cannot be stored: {error}") from None
    if (size := len(text)) > base.RUN_BYTES:
        raise InvalidParameter(
            f"the record of run {run.id}, without its observations, is {size >> 10:,} KiB; "
            f"at most {base.RUN_BYTES >> 10} KiB are allowed"
        )
    if field := next((field for field, value in written.items() if not _fits(value)), None):
        raise InvalidParameter(f"run {run.id}: {field}: a number in it has more than 64 bits")
    return run


def is_run_id(text: str) -> bool:
    """Whether a run's id could be, or begin, like this."""
    return _RUN_ID.fullmatch(text) is not None


def changed_run(run: RunT, changes: Mapping[str, Any]) -> RunT:
    """The run with some fields replaced, validated anew.

    Raises:
        InvalidParameter: a value that does not fit.
    """
    try:
        changed = type(run).model_validate({**dict(run), **changes})
    except ValidationError as error:
        raise InvalidParameter(f"run {run.id}: {first_complaint(error)}") from None
    return storable(changed)


def checked_labels(**labels: Any) -> dict[str, Any]:
    """What a run is to be called, as it will be stored.

    Raises:
        InvalidParameter: a name, tag or note that cannot be.
    """
    try:
        return LabelFields.model_validate(labels).model_dump(include=set(labels))
    except ValidationError as error:
        raise InvalidParameter(first_complaint(error).replace("Value error, ", "")) from None


def checked(rows: Iterable[Mapping[str, Any]]) -> Iterator[StoredRow]:
    """The rows as plain flat dicts that JSON carries exactly, one after the other, with secrets masked.

    Raises:
        InvalidParameter: a row that is not flat, not finite, too large, or lacks ``repeat`` or ``warmup``.
    """
    for number, row in enumerate(rows):
        masked = _masked(row) if isinstance(row, Mapping) else row
        complaint = _complaint(masked)
        if complaint:
            raise InvalidParameter(f"observation {number}: {complaint}")
        yield masked


def _masked(row: Mapping[str, Any]) -> StoredRow:
    """The row, a dict of its own, in which no text shows a secret."""
    return {field: _mask(field, value) if isinstance(value, str) else value for field, value in row.items()}


@lru_cache(maxsize=4096)
def _mask(field: str, text: str) -> str:
    """Cached: millions of observations repeat a few texts."""
    return mask_code(text) if field in _CODE else mask_text(text)


def _complaint(row: Mapping[str, Any]) -> str | None:
    """What is wrong with a row; ``None`` if nothing is."""
    if not isinstance(row, Mapping):
        return f"a {type(row).__name__} is no observation"
    if not isinstance(row.get("repeat"), int) or isinstance(row["repeat"], bool):
        return "repeat must be a whole number"
    if not isinstance(row.get("warmup"), bool):
        return "warmup must be true or false"
    if len(row) > base.ROW_FIELDS:
        return f"it has {len(row):,} fields; an observation has at most {base.ROW_FIELDS}"
    return _field_complaint(row)


def _field_complaint(row: Mapping[Any, Any]) -> str | None:
    text = 0
    for key, value in row.items():
        if not isinstance(key, str) or len(key) > base.NAME_CHARACTERS or not (key.isascii() or _is_text(key)):
            return f"{key!r:.60} cannot be a label"
        if value is None or (type(value) is float and math.isfinite(value)):
            continue  # most are, and a million observations have twenty million values
        if wrong := _value_complaint(value):
            return f"{key[:_SHOWN]}: {wrong}"
        text += len(value) if isinstance(value, str) else 0
    if text > base.TEXT_CHARACTERS:
        return f"it has {text:,} characters of text; an observation has at most {base.TEXT_CHARACTERS:,}"
    return None


def _value_complaint(value: Any) -> str | None:
    if isinstance(value, float):
        return None if math.isfinite(value) else f"{value} is not a number that can be stored"
    if isinstance(value, str):
        return None if _is_text(value) else "the text is not valid Unicode"
    if isinstance(value, int):
        return None if _fits(value) else "the number has more than 64 bits"
    return f"a {type(value).__name__} cannot be stored; an observation is flat"


def _fits(value: Any) -> bool:
    """Whether every whole number in a JSON value has at most 64 bits."""
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return all(map(_fits, inner))


def _is_text(text: str) -> bool:
    """Whether UTF-8 can carry it (a lone surrogate, as in an undecodable file name, it cannot)."""
    return text.isascii() or not any("\ud800" <= sign <= "\udfff" for sign in text)


def dump_json(value: Any) -> str:
    """JSON text on one line. Python writes the shortest digits that give back the same float.

    Raises:
        ValueError: NaN or infinity.
    """
    return _ENCODER.encode(value)


def first_complaint(error: ValidationError) -> str:
    """What pydantic found wrong first, as one line."""
    first = error.errors(include_url=False)[0]
    where = ".".join(" ".join(str(part).split())[:_SHOWN] for part in first["loc"][:_SHOWN])
    message = " ".join(str(first["msg"]).split())[:200]
    return f"{where[:200]}: {message}" if where else message


@dataclass(frozen=True)
class Damage:
    """Stands in the place of a document that cannot be read."""

    why: str


@dataclass(frozen=True)
class DamagedRun:
    """A run in the database that cannot be read."""

    id: str
    why: str

    def __str__(self) -> str:
        return f"run {self.id} in the database cannot be read ({self.why}); `pinscope runs delete {self.id}` removes it"


def load_json(text: Any) -> Any:
    """A stored document; a :class:`Damage` if it is no JSON."""
    if not isinstance(text, str | bytes):
        return text  # SQLite keeps what looks like a number as one
    with suppress(ValueError):
        return from_json(text)  # three times as fast; what it refuses need not be damaged
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        return Damage(f"it is not JSON: {error}")
