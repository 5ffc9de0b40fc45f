"""What one setting of a loader changes: the steps with it against those without, for each number of workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pinscope.experiments.dataloader.arithmetic import Combination, speedup
from pinscope.experiments.dataloader.steady_state import Estimate
from pinscope.records.finding import Finding, Quantity, note, quantity, warning


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
        "pinned-batches", "pin_memory and non_blocking", (True, True), (False, False),
        "DataLoader(..., pin_memory=True) and batch.to(device, non_blocking=True).",
    ),
    Setting("pin-memory-alone", "pin_memory alone", (True, False), (False, False),
            "DataLoader(..., pin_memory=True)."),
    Setting("non-blocking-pinned", "non_blocking copies of pinned batches", (True, True), (True, False),
            "batch.to(device, non_blocking=True)."),
    Setting("non-blocking-alone", "non_blocking copies of pageable batches", (False, True), (False, False),
            "batch.to(device, non_blocking=True)."),
)  # fmt: skip


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


def effect_findings(found: Sequence[Combination], fastest: Combination) -> Iterator[Finding]:
    """For each setting, what it does with the workers of the fastest loop; one more where it makes a loop slower."""
    for setting in SETTINGS:
        measured = effects(found, setting)
        slower = [effect for effect in measured if effect.verdict == "slower"]
        leading = min(measured, key=lambda effect: abs(effect.workers - fastest.workers), default=None)
        shown = leading is not None and leading not in slower
        if leading is not None and shown:
            yield _finding(setting, leading, measured)
        if slower:
            yield _slower(setting, slower, slower if shown else measured)


def _finding(setting: Setting, leading: Effect, measured: Sequence[Effect]) -> Finding:
    value, workers = f"{leading.ratio.value:.2f}", workers_title(leading.workers)
    slower = [effect for effect in measured if effect.verdict == "slower"]
    if leading.verdict == "faster":
        title = f"{value} times the steps with {setting.name}, {workers}"
        advice = setting.code + (f" Not with {_workers_list(slower)}, where it is slower." if slower else "")
    elif leading.verdict == "measured once":
        title = f"{value} times the steps with {setting.name}, {workers}, measured once"
        advice = "Measure it in several rounds before you act on it: pinscope run dataloader"
    else:
        title = f"No difference measured: {setting.name}, {workers}"
        advice = f"With {workers} either is as good here."
    return note(
        setting.rule,
        *_evidence(measured),
        title=title,
        detail=_detail(leading, measured),
        advice=advice,
    )


def _slower(setting: Setting, slower: Sequence[Effect], measured: Sequence[Effect]) -> Finding:
    """``measured``: what it says beside them; the slower ones alone where a finding of its own has all."""
    worst = min(slower, key=lambda effect: effect.ratio.value)
    return warning(
        f"{setting.rule}-slower",
        *_evidence(measured),
        title=f"{worst.ratio.value:.2f} times the steps with {setting.name}, {workers_title(worst.workers)}: slower",
        detail=_detail(worst, measured),
        advice=f"Leave it off with {_workers_list(slower)}.",
    )


def _detail(leading: Effect, measured: Sequence[Effect]) -> str:
    """The leading ratio's interval, then every other number of workers with its verdict."""
    others = [effect for effect in measured if effect is not leading]
    low, high = leading.ratio.low, leading.ratio.high
    first = "Without an interval." if low is None or high is None else f"95 % interval {low:.2f} to {high:.2f}."
    if not others:
        return first
    return f"{first} With {'; '.join(f'{workers_title(one.workers)} {one.times}, {one.verdict}' for one in others)}."


def _evidence(measured: Sequence[Effect]) -> tuple[Quantity, ...]:
    return tuple(
        quantity(
            f"With ÷ without, {workers_title(one.workers)}", one.ratio.value, "ratio", spread=one.ratio.uncertainty
        )
        for one in measured
    )


def _workers_list(some: Sequence[Effect]) -> str:
    return " or ".join(workers_title(one.workers) for one in some)
