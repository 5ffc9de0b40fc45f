"""What users write on their runs, to find them again and to tell them apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from pinscope.records.base import Record

NAME_CHARACTERS, TAG_CHARACTERS, TAGS, NOTE_CHARACTERS = 80, 40, 20, 2000


def _name(text: str) -> str:
    text = " ".join(text.split())
    if not 0 < len(text) <= NAME_CHARACTERS or not text.isprintable():
        raise ValueError(f"a name has 1 to {NAME_CHARACTERS} characters")
    return text


def _tag(text: str) -> str:
    if not 0 < len(text) <= TAG_CHARACTERS or not text.isprintable() or set(text) & set(" ,#"):
        raise ValueError(f"a tag has 1 to {TAG_CHARACTERS} characters, and no blank, comma or #")
    return text


def _note(text: str) -> str:
    if not text.strip() or len(text) > NOTE_CHARACTERS:
        raise ValueError(f"a note has 1 to {NOTE_CHARACTERS:,} characters")
    return text.strip()


class LabelFields(Record):
    """Fields of a run that may be changed at any time, by its user alone. A bundle carries them; an anonymous one does
    not."""

    name: Annotated[str, AfterValidator(_name)] | None = None
    """What its user calls it."""
    tags: Annotated[tuple[Annotated[str, AfterValidator(_tag)], ...], Field(max_length=TAGS)] = ()
    """Words by which its user finds it."""
    note: Annotated[str, AfterValidator(_note)] | None = None
    """What its user wrote about it."""
    baseline: bool = False
    """Whether its user starred it: others are compared with it."""


LABELS = frozenset(LabelFields.model_fields)
"""Their names."""
NO_LABELS: Mapping[str, Any] = {}
