"""Amounts over time in one line of text."""

from __future__ import annotations

from collections.abc import Sequence

_LEVELS = "▁▂▃▄▅▆▇█"
_UNKNOWN, _STEADY = "·", "─"


def sparkline(amounts: Sequence[float | None]) -> str:
    """A bar for each amount, from none to the largest of them; a line if it stays the same, a dot where not known."""
    known = [amount for amount in amounts if amount is not None]
    most = max(known, default=0.0)
    if most > 0 and most == min(known):
        return "".join(_UNKNOWN if amount is None else _STEADY for amount in amounts)
    return "".join(_UNKNOWN if amount is None else _bar(amount, most) for amount in amounts)


def _bar(amount: float, most: float) -> str:
    return _LEVELS[round(amount / most * (len(_LEVELS) - 1))] if most > 0 else _LEVELS[0]
