"""Findings as texts with values: an experiment's table of texts, and functions that only give numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from string import Formatter
from typing import Any, Literal, get_args

from pinscope.analysis.statistics import Summary, ratio, together
from pinscope.records.run import (
    MOST_OFF,
    VARIES,
    Finding,
    LabKind,
    Quantity,
    Severity,
    costing,
    critical,
    finding,
    quantity,
)
from pinscope.units import (
    format_about,
    format_bandwidth,
    format_bytes,
    format_count,
    format_precision,
    format_seconds,
    format_share,
)

ROUGH = 0.05
"""A figure that is known to no better than ± this is said to be about so much."""
VERY_ROUGH = 0.2
"""From here on no more than one digit is said."""
HOST_MODEL = "Host model, no GPU: "
"""Begins a sentence that would else sound like one on a GPU."""
MOST_CHARACTERS, MOST_WORDS = 150, 20
"""Of a verdict of several clauses."""
MANY = 1.995
"""From so many times on a digit after the point is enough."""
Costed = tuple[float, Finding]
"""How many times as long, or as much, something takes if the finding is ignored; and the finding."""


def fits(sentence: str) -> bool:
    """Whether it is short enough for a verdict."""
    return len(sentence) <= MOST_CHARACTERS and len(sentence.split()) <= MOST_WORDS


def dearest_first(costed_findings: Iterable[Costed]) -> tuple[Finding, ...]:
    """The findings, the gravest first, and of those the most costly.

    Without those whose first figure, that of the title, varies too much to tell.
    """
    grave = get_args(Severity)
    known = [costed for costed in costed_findings if not costed[1].evidence or costed[1].evidence[0].reason != VARIES]
    ordered = sorted(known, key=lambda costed: (-grave.index(costed[1].severity), -costed[0]))
    return tuple(finding for _, finding in ordered)


@dataclass(frozen=True)
class Wrong:
    """Content that a run compared after its copies: where some did not arrive, no figure of the run is worth anything.

    Attributes:
        rule: of the finding that says so.
        what: a sentence without its end, such as ``Data arrived wrong``.
        unit: what is counted.
        cases: each that was compared, and how much of it did not arrive.
    """

    rule: str
    what: str
    unit: str
    cases: Sequence[tuple[str, int | None]]

    @property
    def verdict(self) -> str | None:
        """``None`` where all arrived."""
        return f"{self.what}: do not trust any figure of this run." if any(self.findings()) else None

    def findings(self) -> Iterator[Costed]:
        """One, or none."""
        if wrong := [(case, count) for case, count in self.cases if count]:
            total = quantity(f"Wrong {self.unit}", sum(count for _, count in wrong), "count")
            detail = f"The first of {len(wrong)} cases: {wrong[0][0]}."
            advice = (
                "Do not trust this machine's copies. Run it again; if it repeats, check ECC counters (nvidia-smi -q -d "
                "ECC), the kernel log and the link's replay counter."
            )
            yield 1.0, critical(self.rule, total, title=self.what, detail=detail, advice=advice)


NOTHING_WRONG = Wrong("", "", "", ())
"""Of an experiment that compares no content."""


def on_lab(lab: LabKind, sentence: str) -> str:
    """A sentence that says so where it is about the host model, and not about a GPU."""
    if lab != "host":
        return sentence
    first, rest = sentence[:1], sentence[1:]
    return HOST_MODEL + (first.lower() if rest[:1].islower() else first) + rest


def about(uncertainty: float) -> str:
    """``about ``, as it stands before a figure that is known only roughly; else empty."""
    return "about " if uncertainty > ROUGH else ""


def roughly(seconds: float, uncertainty: float) -> str:
    """A time with as many digits as are known: ``about 1 µs`` where it is known only roughly."""
    if uncertainty <= ROUGH:
        return format_seconds(seconds)
    return format_about(seconds, 1 if uncertainty > VERY_ROUGH else 2)


def times(ratio: float, *compared: Summary) -> str:
    """``6.5 times``, and how far that may be off where it is known only roughly: ``6.5 times (± 17 %)``."""
    return at_least(ratio, *compared) or f"{ratio:.1f} times{roughness(*compared)}"


def about_times(ratio: float, *compared: Summary) -> str:
    """The same for a sentence without room: ``about 6.5 times``."""
    return at_least(ratio, *compared) or f"{about(together(*compared))}{ratio:.1f} times"


def at_least(ratio: float, *compared: Summary) -> str | None:
    """``at least 1.4 times`` of a ratio that may be off by so much that it is no figure, and is more than 1 even then;
    else ``None``."""
    off = together(*compared)
    least = ratio * (1 - off)
    if off <= MOST_OFF or least <= 1 or any(summary.few for summary in compared):
        return None
    digits = 1 if least >= MANY else 2
    return f"at least {math.floor(least * 10**digits) / 10**digits:.{digits}f} times"


def part_of(share: float, *compared: Summary) -> str:
    """``99 %``, and how far that may be off where it is known only roughly: ``99 % (± 12 %)``."""
    return f"{share:.0%}".replace("%", " %") + roughness(*compared)


def roughness(*compared: Summary) -> str:
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


FORMS: Mapping[str, Callable[[Any], str]] = {
    "bytes": format_bytes,
    "rate": format_bandwidth,
    "seconds": format_seconds,
    "share": format_share,
    "and": joined,
    "times": lambda times: f"{times:.{1 if times >= MANY else 2}f} times",
    "threads": lambda count: format_count(count, "thread"),
    "repeats": lambda count: format_count(count, "repeat"),
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
    durations: tuple[Summary, Summary] | None = None,
    severity: Severity | Literal["by cost"] | None = None,
    code: str | None = None,
    **values: Any,
) -> Costed:
    """The finding of that key.

    Args:
        texts: the experiment's.
        key: ``rule`` or ``rule/variant``.
        evidence: its numbers; the same one is shown once.
        cost: how many times as long, or as much, something takes for whom ignores it; ``{cost}`` in the text.
        durations: two times, the longer first: it makes the cost, and ``{longer}`` in the text.
        severity: where the text does not say it.
        code: to paste.
        values: for the places in the text.
    """
    if durations:
        cost = ratio(*durations)
        values = {"longer": times(cost, *durations), **values}
    severity = costing(cost) if severity == "by cost" else severity
    text, given = texts[key], {"cost": cost, **values}
    parts = {part: fill(getattr(text, part), given) for part in ("title", "detail", "advice")}
    rule = key.partition("/")[0]
    return cost, finding(severity or text.severity, rule, *dict.fromkeys(evidence), code=code, **parts)


def saying(texts: Texts) -> Callable[..., Costed]:
    """:func:`say` of an experiment's own texts."""
    return partial(say, texts)
