"""What one setting of a loader changes: the steps with it against those without, for each number of workers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pinscope.analysis.conclusions import Costed, joined
from pinscope.analysis.rows import grouped
from pinscope.experiments.dataloader.arithmetic import Combination, speedup
from pinscope.experiments.dataloader.steady_state import MOST_RUNS, Estimate
from pinscope.records.finding import Quantity, costing, finding, note, quantity
from pinscope.units import format_share


@dataclass(frozen=True)
class Setting:
    """Something to turn on.

    Attributes:
        rule: stable name of its findings.
        name: for people.
        on, off: (pin_memory, non_blocking) with it and without.
        code: what to write, where it makes the loop faster.
    """

    rule: str
    name: str
    on: tuple[bool, bool]
    off: tuple[bool, bool]
    code: str


SETTINGS = (
    Setting(
        "pinned-batches",
        "pin_memory with non_blocking",
        (True, True),
        (False, False),
        "DataLoader(..., pin_memory=True) and batch.to(device, non_blocking=True).",
    ),
    Setting("pin-memory-alone", "pin_memory alone", (True, False), (False, False), "DataLoader(..., pin_memory=True)."),
    Setting(
        "non-blocking-pinned",
        "non_blocking copies of pinned batches",
        (True, True),
        (True, False),
        "batch.to(device, non_blocking=True).",
    ),
    Setting(
        "non-blocking-alone",
        "non_blocking copies of pageable batches",
        (False, True),
        (False, False),
        "batch.to(device, non_blocking=True).",
    ),
)


@dataclass(frozen=True)
class Effect:
    """A setting with one number of workers.

    Attributes:
        workers: how many.
        ratio: steps with the setting over steps without.
    """

    workers: int
    ratio: Estimate

    @property
    def verdict(self) -> str:
        """``faster``, ``slower``, ``no difference measured``, or ``measured once``: without an interval."""
        if self.ratio.low is None or self.ratio.high is None:
            return "measured once"
        if self.ratio.low > 1:
            return "faster"
        return "slower" if self.ratio.high < 1 else "no difference measured"

    @property
    def times(self) -> str:
        """The ratio with its interval."""
        value = f"{self.ratio.value:.2f}"
        if self.ratio.low is None or self.ratio.high is None:
            return value
        return f"{value} ({self.ratio.low:.2f} to {self.ratio.high:.2f})"


def effects(found: Sequence[Combination], setting: Setting) -> list[Effect]:
    """By the number of workers, where both were measured and became steady."""
    pairs = [(with_it, without) for with_it in found for without in found if _differ(with_it, without, setting)]
    ratios = [(with_it.workers, speedup(with_it, without)) for with_it, without in pairs]
    return sorted((Effect(workers, ratio) for workers, ratio in ratios if ratio), key=lambda effect: effect.workers)


def _differ(with_it: Combination, without: Combination, setting: Setting) -> bool:
    settings = tuple((one.pin_memory, one.non_blocking) for one in (with_it, without))
    alike = (with_it.workers, with_it.batch_bytes) == (without.workers, without.batch_bytes)
    return alike and settings == (setting.on, setting.off)


def workers_title(workers: int) -> str:
    """How many workers, in words."""
    return f"{workers} worker{'' if workers == 1 else 's'}"


def effect_findings(found: Sequence[Combination]) -> Iterator[Costed]:
    """Each setting that makes a loop faster or slower, and one finding on all that make no measured difference."""
    alike: dict[Setting, list[Effect]] = {}
    for setting in SETTINGS:
        measured = effects(found, setting)
        by_verdict = grouped(measured, lambda effect: effect.verdict)
        for verdict in ("faster", "slower", "measured once"):
            if some := by_verdict.get(verdict):
                yield _effect(setting, verdict, some, measured)
        if measured and set(by_verdict) == {"no difference measured"}:
            alike[setting] = measured
    if alike:
        yield _no_difference(alike)


def _effect(setting: Setting, verdict: str, some: Sequence[Effect], measured: Sequence[Effect]) -> Costed:
    """Of ``measured`` those with this verdict in the title, the others in the detail."""
    most = max(some, key=lambda effect: abs(math.log(effect.ratio.value)))
    factors = joined(
        [f"{effect.ratio.value:.2f} times as fast with {workers_title(effect.workers)}" for effect in some]
    )
    # The cost is taken at the end of the interval that is nearer to none.
    cost, rule, more = (most.ratio.low or 1.0), setting.rule, ""
    advice = f"With {workers_list(some)}: {setting.code}"
    if verdict == "slower":
        cost, rule, more = 1 / (most.ratio.high or 1.0), f"{setting.rule}-slower", ": slower"
        advice = f"Leave it off with {workers_list(some)}."
    elif verdict == "measured once":
        cost, more = 1.0, ", measured once"
        advice = "Measure it in several rounds before you act on it: pinscope run dataloader"
    elif slower := [effect for effect in measured if effect.verdict == "slower"]:
        advice += f" Not with {workers_list(slower)}, where it is slower."
    return cost, finding(
        costing(cost),
        rule,
        *_evidence(measured),
        title=f"{setting.name} makes the loop {factors}{more}",
        detail=_detail(some, measured),
        advice=advice,
    )


def _no_difference(alike: Mapping[Setting, Sequence[Effect]]) -> Costed:
    """What the run cannot tell from its absence, and how large a difference it would not have seen."""
    every = [effect.ratio for measured in alike.values() for effect in measured]
    unseen = max(max((ratio.high or 1) - 1, 1 - (ratio.low or 1)) for ratio in every)
    listed = [f"{setting.name}: {_intervals(measured)}" for setting, measured in alike.items()]
    return 1.0, note(
        "no-difference-measured",
        *(each for setting, measured in alike.items() for each in _evidence(measured, f"{setting.name}, ")),
        title=f"No difference measured for {joined([setting.name for setting in alike])}",
        detail=f"Speed with ÷ without, 95 % intervals. {'; '.join(listed)}. A difference of up to "
        f"{format_share(unseen)} would not have been seen.",
        advice=f"Choose by the other findings. For smaller differences take more rounds: pinscope run dataloader --set "
        f"rounds={MOST_RUNS}",
    )


def _detail(some: Sequence[Effect], measured: Sequence[Effect]) -> str:
    """The intervals of what the title names, then every other number of workers with its verdict."""
    others = [effect for effect in measured if effect not in some]
    known = [effect for effect in some if effect.ratio.low is not None]
    first = f"Speed with ÷ without, 95 % interval: {_intervals(known)}." if known else "Without an interval."
    if not others:
        return first
    beside = "; ".join(f"{workers_title(one.workers)} {one.times}, {one.verdict}" for one in others)
    return f"{first} With {beside}."


def _intervals(measured: Sequence[Effect]) -> str:
    return ", ".join(f"{one.times} with {workers_title(one.workers)}" for one in measured)


def _evidence(measured: Sequence[Effect], name: str = "") -> Iterator[Quantity]:
    for one in measured:
        words = f"Speed with ÷ without, {name}{workers_title(one.workers)}"
        yield quantity(words, one.ratio.value, "ratio", spread=one.ratio.uncertainty)


def workers_list(some: Sequence[Effect]) -> str:
    """``2 workers or 8 workers``."""
    return " or ".join(workers_title(one.workers) for one in some)
