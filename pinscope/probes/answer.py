"""What a probe gives back: a value, or why there is none."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """A value, or the reason why it is missing; never both, never neither."""

    value: T | None
    reason: str | None = None

    def __post_init__(self) -> None:
        if (self.value is None) == (self.reason is None):
            raise ValueError("an answer has either a value or a reason")

    @classmethod
    def missing(cls, reason: str) -> Answer[T]:
        """No value, because of ``reason``."""
        return cls(None, reason)

    def then(self, read: Callable[[T], U | None], otherwise: str = "") -> Answer[U]:
        """What ``read`` makes of the value; missing because of ``otherwise`` if it makes nothing of it."""
        if self.value is None:
            return Answer(None, self.reason)
        made = read(self.value)
        return Answer.missing(otherwise) if made is None else Answer(made)

    def ask(self, probe: Callable[[T], Answer[U]]) -> Answer[U]:
        """What ``probe`` answers about the value; missing for the same reason as this."""
        return Answer(None, self.reason) if self.value is None else probe(self.value)

    def note(self, missing: MutableMapping[str, str], field: str) -> T | None:
        """The value; if there is none, the reason is entered in ``missing`` under ``field``."""
        if self.reason is not None:
            missing[field] = self.reason
        return self.value


def all_of(*answers: Answer[T]) -> Answer[tuple[T, ...]]:
    """The values of all; missing for the reason of the first that is missing."""
    for answer in answers:
        if answer.reason is not None:
            return Answer.missing(answer.reason)
    return Answer(tuple(answer.value for answer in answers if answer.value is not None))
