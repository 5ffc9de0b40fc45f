"""Findings as texts with values: an experiment's table of texts, and functions that only give numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from string import Formatter
from typing import Any

from pinscope.analysis.conclusions import Costed, joined
from pinscope.records.finding import Quantity, Severity, finding
from pinscope.units import format_bandwidth, format_bytes, format_seconds, format_share

FORMS: Mapping[str, Callable[[Any], str]] = {
    "bytes": format_bytes,
    "rate": format_bandwidth,
    "seconds": format_seconds,
    "share": format_share,
    "and": joined,
    "times": lambda times: f"{times:.{1 if times >= 1.995 else 2}f} times",
    "threads": lambda count: f"{count} thread{'' if count == 1 else 's'}",
}
"""What may stand behind the colon of a value: ``{size:bytes}``; else Python's own forms."""
_CLAUSE = re.compile(r"\[([^\[\]]*)\]")


class _Words(Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        return FORMS[format_spec](value) if format_spec in FORMS else format(value, format_spec)


_WORDS = _Words()


@dataclass(frozen=True)
class Text:
    """What a finding says: sentences with places for values. A clause in brackets goes where a value of it is ``None``.

    Attributes:
        when: the rule in words, for the manual: "a pageable copy takes 1.25 times as long as a pinned one".
        title: the conclusion, with the number that decides; at most 20 words.
        detail: at most two sentences.
        advice: one action.
        severity: where it is always the same.
    """

    when: str
    title: str
    detail: str
    advice: str
    severity: Severity = "note"


Texts = Mapping[str, Text]
"""Rule → its text. Of a rule that says different things, each has a key of its own: ``rule/variant``."""


def fill(text: str, values: Mapping[str, Any]) -> str:
    """The text with its values."""

    def kept(clause: re.Match[str]) -> str:
        names = (name for _, name, _, _ in _WORDS.parse(clause[1]) if name)
        return "" if any(_value(name, values) is None for name in names) else clause[1]

    return _WORDS.vformat(_CLAUSE.sub(kept, text), (), values).strip()


def _value(name: str, values: Mapping[str, Any]) -> Any:
    """What stands at a place such as ``cell.seconds``; ``None`` also where there is no cell."""
    first, *rest = name.split(".")
    value = values[first]
    for part in rest:
        value = None if value is None else getattr(value, part)
    return value


def say(
    texts: Texts,
    key: str,
    *evidence: Quantity,
    cost: float = 1.0,
    severity: Severity | None = None,
    code: str | None = None,
    **values: Any,
) -> Costed:
    """The finding of that key.

    Args:
        texts: the experiment's.
        key: ``rule`` or ``rule/variant``.
        evidence: its numbers; the same one is shown once.
        cost: how many times as long, or as much, something takes for whom ignores it; ``{cost}`` in the text.
        severity: where the text does not say it.
        code: to paste.
        values: for the places in the text.
    """
    text, given = texts[key], {"cost": cost, **values}
    parts = {part: fill(getattr(text, part), given) for part in ("title", "detail", "advice")}
    rule = key.partition("/")[0]
    return cost, finding(severity or text.severity, rule, *dict.fromkeys(evidence), code=code, **parts)
