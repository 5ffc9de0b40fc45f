"""How a figure that is not exact bounds the true value, and why: data, which signs and sums are made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import PlainSerializer, computed_field, model_validator

from pinscope.records.base import Record

BoundKind = Literal["at_least", "at_most", "about"]
_WORDS: Mapping[BoundKind, str] = {"at_least": "at least", "at_most": "at most", "about": "about"}
_OLD_WORDS: Mapping[str, BoundKind] = {words: kind for kind, words in _WORDS.items()} | {"an estimate": "about"}
"""With these and a colon, PinScope 0.1.0 began the text of an estimate; one without them was ``about``."""


class Bound(Record):
    """A figure is no more than an estimate: the true value is at least that, at most that, or about that."""

    kind: BoundKind
    why: str

    @property
    def text(self) -> str:
        """``at most: not all of it is resident``."""
        return f"{self.words}: {self.why}"

    @property
    def words(self) -> str:
        """``at least``, ``at most`` or ``about``."""
        return _WORDS[self.kind]

    def plus(self, other: Bound | None) -> Bound:
        """The bound of the sum of this figure and another one, which is exact if it has none."""
        return bound_of_sum((self, other)) or self

    @classmethod
    def from_text(cls, text: str, kind: BoundKind | None = None) -> Bound:
        """The bound whose :attr:`text` this is.

        Args:
            text: as in JSON.
            kind: as JSON says it beside the text; JSON of PinScope 0.1.0 did not.
        """
        if kind is not None:
            return cls(kind=kind, why=text.removeprefix(f"{_WORDS[kind]}: "))
        words, separator, why = text.partition(": ")
        if separator and words in _OLD_WORDS:
            return cls(kind=_OLD_WORDS[words], why=why)
        return cls(kind="about", why=text)


def at_least(why: str) -> Bound:
    """The true value may be more."""
    return Bound(kind="at_least", why=why)


def at_most(why: str) -> Bound:
    """The true value may be less."""
    return Bound(kind="at_most", why=why)


def about(why: str) -> Bound:
    """The true value may be more or less."""
    return Bound(kind="about", why=why)


def bound_of_sum(parts: Iterable[Bound | None]) -> Bound | None:
    """The bound of a sum, from those of its parts; ``None`` if every part is exact.

    What may be too little for one reason and too much for another is ``about`` right.
    """
    known = [part for part in parts if part is not None]
    if not known:
        return None
    kinds = {part.kind for part in known}
    return Bound(
        kind=known[0].kind if len(kinds) == 1 else "about", why="; ".join(dict.fromkeys(part.why for part in known))
    )


def _texts(estimates: Mapping[str, Bound]) -> dict[str, str]:
    return {field: bound.text for field, bound in estimates.items()}


class Estimated(Record):
    """A record whose figures may be missing or estimates, by field.

    In JSON an estimate is a text, and its kind stands under the same name in ``bounds``.
    """

    missing: Mapping[str, str] = {}
    """Why a figure is ``None``."""
    estimates: Annotated[Mapping[str, Bound], PlainSerializer(_texts)] = {}
    """Which figures are not exact, and how; every other one is, as of the moment of reading."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def bounds(self) -> dict[str, BoundKind]:
        """Of each estimate: the true value is ``at_least``, ``at_most`` or ``about`` the figure."""
        return {field: bound.kind for field, bound in self.estimates.items()}

    @model_validator(mode="before")
    @classmethod
    def _read_texts(cls, data: Any) -> Any:
        """JSON's texts and kinds make bounds again."""
        if not isinstance(data, Mapping) or not isinstance(data.get("estimates"), Mapping):
            return data
        kinds = data["bounds"] if isinstance(data.get("bounds"), Mapping) else {}
        estimates = {
            field: Bound.from_text(bound, kinds.get(field)) if isinstance(bound, str) else bound
            for field, bound in data["estimates"].items()
        }
        return {**data, "estimates": estimates}

    def note(self, field: str) -> str | None:
        """Why a figure is missing or no more than an estimate; ``None`` of one that is exact."""
        if getattr(self, field) is None:
            return self.missing.get(field)
        return self.estimates[field].text if field in self.estimates else None
