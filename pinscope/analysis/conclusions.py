"""What verdicts and findings of several experiments share: how sure a figure is, and which finding comes first."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import get_args

from pinscope.analysis.statistics import Summary
from pinscope.records.finding import COSTLY, Finding, Severity
from pinscope.records.run import LabKind
from pinscope.units import format_precision, format_seconds, format_share

ROUGH = 0.05
"""A figure that is known to no better than ± this is said to be about so much."""
VERY_ROUGH = 0.2
"""From here on no more than one digit is said."""
HOST_MODEL = "Host model, no GPU: "
"""Begins a sentence that would else sound like one on a GPU."""
Costed = tuple[float, Finding]
"""How many times as long, or as much, something takes if the finding is ignored; and the finding."""


def dearest_first(costed_findings: Iterable[Costed]) -> tuple[Finding, ...]:
    """The findings, the gravest first, and of those the most costly."""
    grave = get_args(Severity)
    ordered = sorted(costed_findings, key=lambda costed: (-grave.index(costed[1].severity), -costed[0]))
    return tuple(finding for _, finding in ordered)


def on_lab(lab: LabKind, sentence: str) -> str:
    """A sentence that says so where it is about the host model, and not about a GPU."""
    if lab != "host":
        return sentence
    first, rest = sentence[:1], sentence[1:]
    return HOST_MODEL + (first if rest[:1].isupper() else first.lower()) + rest


def known_within(summary: Summary) -> float:
    """How far the median may be off, relative to it; infinite where that is not known."""
    return math.inf if summary.known_within is None else summary.known_within


def together(*summaries: Summary) -> float:
    """How far the ratio of two medians may be off, relative to it: their errors do not depend on one another."""
    return math.hypot(*(known_within(summary) for summary in summaries))


def is_distinct(ratio: float, uncertainty: float) -> bool:
    """Whether a ratio is farther from 1 than it may be off; where that is not known, whether it is far from 1."""
    if math.isinf(uncertainty):
        return max(ratio, 1 / ratio) >= COSTLY if ratio > 0 else True
    return ratio * (1 - uncertainty) > 1 or ratio * (1 + uncertainty) < 1


def about(uncertainty: float) -> str:
    """``about ``, as it stands before a figure that is known only roughly; else empty."""
    return "about " if uncertainty > ROUGH else ""


def roughly(seconds: float, uncertainty: float) -> str:
    """A time with as many digits as are known: ``about 1 µs`` where it is known only roughly."""
    if uncertainty <= ROUGH:
        return format_seconds(seconds)
    digits = 1 if uncertainty > VERY_ROUGH else 2
    number, unit = format_seconds(float(f"{seconds:.{digits}g}")).split()
    return f"about {float(number):g} {unit}"


def exceeds(first: Summary, second: Summary) -> bool:
    """Whether the first is more than the second, by more than both may be off; else there is nothing to advise."""
    return first.median > second.median > 0 and is_distinct(first.median / second.median, together(first, second))


def times(ratio: float, *compared: Summary) -> str:
    """``6.5 times``, and how far that may be off where it is known only roughly: ``6.5 times (± 17 %)``."""
    return f"{ratio:.1f} times{_roughness(compared)}"


def part_of(share: float, *compared: Summary) -> str:
    """``99.8 %``; no finer than it is known: ``99 % (± 12 %)``."""
    fine = together(*compared) < 0.005
    return f"{format_share(share) if fine else f'{share:.0%}'.replace('%', ' %')}{_roughness(compared)}"


def _roughness(compared: Sequence[Summary]) -> str:
    """`` (± 17 %)`` of a ratio that is known only roughly, `` (3 repeats)`` of one of too few repeats; else empty."""
    if few := [summary.few for summary in compared if summary.few]:
        return f" {format_precision(None, min(few))}"
    off = together(*compared)
    return f" (± {off:.0%})".replace("%", " %") if ROUGH < off < math.inf else ""


def part_words(share: float) -> str:
    """A part of a whole: ``all``, ``none`` or per cent. Noise may make it more than all, or less than nothing."""
    if share >= 0.9995:
        return "all"
    return format_share(share) if share > 0 else "none"


def possible_share(share: float) -> float:
    """A measured part of a whole without the noise that makes it more than all, or less than nothing."""
    return min(max(share, 0.0), 1.0)


def joined(parts: Sequence[str]) -> str:
    """``a``, ``a and b`` or ``a, b and c``."""
    return f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else "".join(parts)
