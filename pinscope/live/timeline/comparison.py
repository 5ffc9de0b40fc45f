"""Timelines against others: what the hosts pinned together, and who held it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from pinscope.analysis.cells import Label, Value
from pinscope.analysis.comparison import Comparison, exact
from pinscope.analysis.read_rows import grouped
from pinscope.analysis.statistics import Summary
from pinscope.live.timeline.reading import MUCH, Watched, extreme, pinned_amounts
from pinscope.units import format_bytes


@dataclass(frozen=True)
class HostCell:
    """The host: pinned and driver memory."""

    peak_bytes: Annotated[Summary, Value("most pinned", "bytes", "less")]
    end_bytes: Annotated[Summary, Value("pinned at the end", "bytes", "less")]


@dataclass(frozen=True)
class HolderCell:
    """Processes of one name: the most that one of them pinned, and how many there were."""

    name: Annotated[str, Label("process")]
    peak_bytes: Annotated[Summary, Value("most pinned", "bytes", "less")]


def cells_of(seen: Watched) -> Iterator[HostCell | HolderCell]:
    """The host, if anything was seen of it, and who held much of it."""
    amounts, _ = pinned_amounts(seen)
    peak = extreme(amounts, max)
    if peak is not None:
        yield HostCell(_amount(peak[1]), _amount(amounts[-1][1]))
    for name, lives in grouped(seen.lives, lambda life: life.name).items():
        most = max((amount for life in lives for _, amount in life.pinned), default=0)
        if most >= MUCH:
            yield HolderCell(name, _amount(most))


def _amount(value: float) -> Summary:
    """A reading; one that is nearer than what is much is the same."""
    if value < MUCH:
        return exact(0.0)
    return Summary(1, value, value, value, (value - MUCH, value + MUCH), MUCH / value)


def verdict(comparison: Comparison) -> str:
    """How much more or less was pinned, and who came or went with most of it."""
    host = comparison.whole
    if host is None:
        return "Of one side nobody knows how much was pinned."
    a, b = (format_bytes(side.value) for side in (host.a, host.b))
    if not host.differs:
        return f"No difference: at most {b} was pinned, {a} on side {comparison.a.name}."
    change, holder = next(iter(comparison.causes(host)), (0.0, None))
    size, word = format_bytes(abs(change)), "more" if change > 0 else "less"
    cause = f": {holder.labels['name']} had {size} {word}" if holder and abs(change) >= MUCH else ""
    return f"At most {b} was pinned instead of {a}{cause}."
