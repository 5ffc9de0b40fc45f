"""What a database holds that cannot be read: it is named, and hides nothing else."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


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
    try:
        return json.loads(text.decode() if isinstance(text, bytes) else text)
    except UnicodeDecodeError as error:
        return Damage(f"it is not UTF-8: {error.reason} at byte {error.start}")
    except (ValueError, RecursionError) as error:
        return Damage(f"it is not JSON: {error}")


def load_text(text: bytes) -> str | bytes:
    """A stored text; its bytes if they are not UTF-8: one such text must not end the reading of all others."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return text
