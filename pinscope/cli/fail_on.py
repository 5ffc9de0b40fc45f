"""What a trace may show at most, for checks without a reader: ``pinscope trace --fail-on``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pinscope.errors import InvalidParameter
from pinscope.text import quoted
from pinscope.tracing.sites import REPEATED, Seen
from pinscope.tracing.trace.reading import not_recorded
from pinscope.units import format_bytes, format_seconds, format_share, parse_bytes, parse_seconds, parse_share

Figure = Literal["pageable", "held", "idle"]
_MEASURES: Mapping[Figure, str] = {
    "pageable": "were copied from or to pageable memory",
    "held": "the CPU was held",
    "idle": "GPU compute stood idle",
}
_FORMS: Mapping[Figure, str] = {
    "pageable": "pageable, or pageable=SIZE such as pageable=100MiB",
    "held": "held=PERCENT or held=DURATION, such as held=5% or held=0.5s",
    "idle": "idle=PERCENT or idle=DURATION, such as idle=5% or idle=0.5s",
}


@dataclass(frozen=True)
class Threshold:
    """The most that one figure of a trace may be.

    Attributes:
        figure: ``pageable`` (bytes of lines with pageable copies above 64 KiB), ``held`` (seconds for which these
            copies held the CPU) or ``idle`` (seconds for which GPU compute stood idle for them).
        most: in bytes or seconds, or as a share of the time from the first copy of those lines that copy again and
            again; where none does, from the first copy or kernel.
        is_share: which of them.
        text: as it was written.
    """

    figure: Figure
    most: float
    is_share: bool
    text: str

    def exceeded(self, seen: Seen) -> str | None:
        """By what the trace exceeds it, one line; ``None`` if it does not."""
        amount = _measured(seen, self.figure)
        most = self.most * _whole(seen) if self.is_share else self.most
        if not seen.pageable or amount <= most:
            return None
        first, more = seen.pageable[0].name, len(seen.pageable) - 1
        where = f"{first} and {more} more lines" if more > 1 else f"{first} and 1 more line" if more else first
        return f"--fail-on {self.text}: {self._amount(seen, amount)} ({where})"

    def _amount(self, seen: Seen, amount: float) -> str:
        measure = _MEASURES[self.figure]
        if self.figure == "pageable":
            return f"{format_bytes(amount)} {measure}"
        whole = _whole(seen)
        share = f", {format_share(amount / whole)} of {format_seconds(whole)}" if whole else ""
        return f"{measure} {format_seconds(amount)} for pageable copies{share}"


def parse_threshold(text: str) -> Threshold:
    """A threshold as the command line has it. A number but 0 needs its unit: ``idle=5``, written for ``idle=5%``, would
    be a check that never fails.

    Raises:
        InvalidParameter: it is none; the message says what there is.
    """
    name, given, amount = (part.strip() for part in text.partition("="))
    figure = next((known for known in _MEASURES if known == name), None)
    if figure is None:
        raise InvalidParameter(f"--fail-on {quoted(text)}: the limits are {'; '.join(_FORMS.values())}")
    missing = f"has no {'size' if figure == 'pageable' else 'percentage or duration'}"
    if bool(given) != bool(amount) or (figure != "pageable" and not given):
        raise _refused(text, missing, figure)
    is_share = figure != "pageable" and amount.endswith("%")
    try:
        most = 0.0 if not given else _amount(figure, amount)
    except InvalidParameter:
        raise _refused(text, missing, figure) from None
    if most and not (is_share or amount[-1].isalpha()):
        raise _refused(text, "has no unit", figure)
    if most < 0:
        raise InvalidParameter(f"--fail-on {quoted(text)}: the limit must be 0 or more")
    return Threshold(figure, most, is_share, text.replace(" ", ""))


def _refused(text: str, why: str, figure: Figure) -> InvalidParameter:
    return InvalidParameter(f"--fail-on {quoted(text)} {why}: write {_FORMS[figure]}")


def _amount(figure: Figure, text: str) -> float:
    if figure == "pageable":
        return parse_bytes(text)
    return parse_share(text) if text.endswith("%") else parse_seconds(text)


def exceeded(seen: Seen, thresholds: Sequence[Threshold]) -> Iterator[str]:
    """A line for each threshold that a trace exceeds, and one if that cannot be known."""
    yield from filter(None, (threshold.exceeded(seen) for threshold in thresholds))
    if thresholds and seen.program and (missing := not_recorded(seen.program)):
        yield f"--fail-on: {missing}"
    lost = seen.program["lost_bytes"] if seen.program else 0
    if thresholds and lost:
        yield f"--fail-on: {format_bytes(lost)} of CUPTI's records could not be read, so that copies may be missing"
    if any(threshold.figure == "idle" for threshold in thresholds) and any(
        site.row["idle_seconds"] is None for site in seen.pageable
    ):
        yield "--fail-on idle: the program ran no kernel, so that nothing can be said of idle compute; held can"
    if thresholds and seen.program and seen.program["sites_left_out"] and len(seen.pageable) == len(seen.sites):
        yield "--fail-on: the program copies in more lines than are kept, so that pageable copies may be missing"


def _whole(seen: Seen) -> float:
    """Seconds of which shares are."""
    again = [seen.seconds_from_first(site.row) for site in seen.pageable if site.row["count"] >= REPEATED]
    return max(again, default=seen.seconds)


def _measured(seen: Seen, figure: Figure) -> float:
    field = {"pageable": "bytes", "held": "call_seconds", "idle": "idle_seconds"}[figure]
    return float(sum(site.row[field] or 0 for site in seen.pageable))
