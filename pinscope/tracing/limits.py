"""Limits of a trace, which commands and tests hold: how they are written, and by what a trace exceeds them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pinscope.analysis.read_rows import Row
from pinscope.errors import InvalidParameter
from pinscope.text import quoted
from pinscope.tracing.sites import REPEATED, Seen
from pinscope.tracing.trace.failed_calls import UNNOTICED, alarming, failed_line
from pinscope.tracing.trace.unrecorded import children_words, unseen_words
from pinscope.units import format_bytes, format_seconds, format_share, parse_bytes, parse_seconds, parse_share

Figure = Literal["error", "pageable", "held", "idle"]
_FIGURES: Mapping[Figure, tuple[str, str, str]] = {
    "error": ("count", "returned an error", "error"),
    "pageable": (
        "bytes",
        "were copied from or to pageable memory",
        "pageable, or pageable=SIZE such as pageable=100MiB",
    ),
    "held": ("call_seconds", "the CPU was held", "held=PERCENT or held=DURATION, such as held=5% or held=0.5s"),
    "idle": ("idle_seconds", "GPU compute stood idle", "idle=PERCENT or idle=DURATION, such as idle=5% or idle=0.5s"),
}
"""Figure → the value of a line that it sums, what that is, and how its limit is written."""


@dataclass(frozen=True)
class Threshold:
    """The most that one figure of a trace may be.

    Attributes:
        figure: ``error`` (calls of CUDA that failed), ``pageable`` (bytes of lines with pageable copies above 64 KiB),
            ``held`` (seconds for which these copies held the CPU) or ``idle`` (seconds for which GPU compute stood idle
            for them).
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
        field, measure, _ = _FIGURES[self.figure]
        if self.figure == "error":
            return self._failed(alarming(seen))
        amount = float(sum(site.row[field] or 0 for site in seen.pageable))
        again = [seen.seconds_from_first(site.row) for site in seen.pageable if site.row["count"] >= REPEATED]
        whole = max(again, default=seen.seconds)
        if not seen.pageable or amount <= (self.most * whole if self.is_share else self.most):
            return None
        if self.figure == "pageable":
            what = f"{format_bytes(amount)} {measure}"
        else:
            share = f", {format_share(amount / whole)} of {format_seconds(whole)}" if whole else ""
            what = f"{measure} {format_seconds(amount)} for pageable copies{share}"
        return f"--fail-on {self.text}: {what} ({seen.pageable[0].name}{_and_more(len(seen.pageable) - 1)})"

    def _failed(self, rows: Sequence[Row]) -> str | None:
        if not rows:
            return None
        count, first = sum(row["count"] for row in rows), rows[0]
        calls = "a call of CUDA" if count == 1 else f"{count:,} calls of CUDA"
        where = f"{failed_line(first)}: {first['call']}, {first['error']}"
        return f"--fail-on error: {calls} returned an error ({where}{_and_more(len(rows) - 1)})"


def _and_more(lines: int) -> str:
    return f" and {lines:,} more line{'s' if lines > 1 else ''}" if lines else ""


def parse_threshold(text: str) -> Threshold:
    """A threshold as the command line has it. A number but 0 needs its unit: ``idle=5``, written for ``idle=5%``, would
    be a check that never fails.

    Raises:
        InvalidParameter: it is none; the message says what there is.
    """
    name, given, amount = (part.strip() for part in text.partition("="))
    figure = next((known for known in _FIGURES if known == name), None)
    if figure is None:
        forms = "; ".join(form for _, _, form in _FIGURES.values())
        raise InvalidParameter(f"--fail-on {quoted(text)}: the limits are {forms}")
    if figure == "error":
        if given:
            raise _refused(text, "has an amount", figure)
        return Threshold(figure, 0.0, False, name)
    is_share = figure != "pageable" and amount.endswith("%")
    parse = parse_bytes if figure == "pageable" else parse_share if is_share else parse_seconds
    try:
        most = 0.0 if figure == "pageable" and not given else parse(amount)
    except InvalidParameter:
        raise _refused(text, f"has no {'size' if figure == 'pageable' else 'percentage or duration'}", figure) from None
    if most and not (is_share or amount[-1].isalpha()):
        raise _refused(text, "has no unit", figure)
    if most < 0:
        raise InvalidParameter(f"--fail-on {quoted(text)}: the limit must be 0 or more")
    return Threshold(figure, most, is_share, text.replace(" ", ""))


def _refused(text: str, why: str, figure: Figure) -> InvalidParameter:
    return InvalidParameter(f"--fail-on {quoted(text)} {why}: write {_FIGURES[figure][2]}")


def exceeded(seen: Seen, thresholds: Sequence[Threshold], *, allow_unseen: bool = False) -> Iterator[str]:
    """A line for each threshold that a trace exceeds, and one if that cannot be known.

    Args:
        seen: the trace.
        thresholds: what is checked.
        allow_unseen: children that were too brief to be looked at are taken not to have copied.
    """
    yield from filter(None, (threshold.exceeded(seen) for threshold in thresholds))
    if thresholds and (missing := children_words(seen)):
        yield f"--fail-on: not recorded: {missing}"
    if thresholds and not allow_unseen and (brief := unseen_words(seen)):
        yield f"--fail-on: {brief} whether they use CUDA; --allow-unseen lets them pass"
    asks_errors = any(threshold.figure == "error" for threshold in thresholds)
    if asks_errors and seen.has_ended and seen.program["failed_calls"] is None:
        yield f"--fail-on error: {UNNOTICED}"
    lost = seen.program["lost_bytes"]
    if thresholds and lost:
        yield f"--fail-on: {format_bytes(lost)} of CUPTI's records could not be read, so that copies may be missing"
    if any(threshold.figure == "idle" for threshold in thresholds) and any(
        site.row["idle_seconds"] is None for site in seen.pageable
    ):
        yield "--fail-on idle: the program ran no kernel, so that nothing can be said of idle compute; held can"
    if thresholds and seen.program["sites_left_out"] and len(seen.pageable) == len(seen.sites):
        yield "--fail-on: the program copies in more lines than are kept, so that pageable copies may be missing"
