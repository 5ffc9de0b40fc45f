"""Whether something works on this machine, and if not, why not and what to do."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from pinscope.records.base import Record


class Capability(Record):
    """One thing that PinScope can use here, or cannot."""

    name: str
    """Stable name, such as ``cuda-lab``."""
    title: str
    """The same for people, such as ``GPU experiments (CUDA lab)``."""
    works: bool
    """Whether it can be used here."""
    reason: str | None = None
    """Why it does not work; ``None`` if it does."""
    advice: str | None = None
    """What to do about it, where something can be done."""

    @model_validator(mode="after")
    def _says_why_not(self) -> Self:
        if self.works != (self.reason is None):
            raise ValueError("a capability that does not work needs a reason, one that works has none")
        return self
