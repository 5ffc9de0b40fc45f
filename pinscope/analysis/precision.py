"""Whether the repeats of a run reached the precision that was asked for: one finding for all experiments."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pinscope.analysis.statistics import LEAST_VALUES, Summary
from pinscope.records.finding import Finding, note, quantity
from pinscope.records.run import ExperimentRun
from pinscope.units import format_share

MOST_REPEATS = 10_000
"""More cannot be asked for (:class:`pinscope.experiments.contract.Params`)."""
PATIENCE = 60.0
"""Seconds for one combination beyond which no longer run is advised: one waits a minute for it."""
SPARE = 1.5
"""How many times the repeats that the width of an interval asks for are advised: the next run varies too."""


@dataclass(frozen=True)
class Repeated:
    """One combination that a run repeated until its median was known, or a limit was reached.

    Attributes:
        words: which one, as it follows "The worst:".
        summary: of the value that was repeated.
        settings: the parameters that measure little more than this combination, such as ``sizes=4KiB``.
        headline: whether a figure of the headline rests on it; ``None`` where the experiment does not say.
    """

    words: str
    summary: Summary
    settings: tuple[str, ...] = ()
    headline: bool | None = None


def within(uncertainty: float) -> str:
    """``± 17.1 %``; beyond 100 % it is not said how far."""
    return f"± {format_share(uncertainty)}" if uncertainty <= 1 else "± more than 100 %"


def _repeats(summary: Summary) -> str:
    return f"{summary.count} repeat{'' if summary.count == 1 else 's'}"


def precision_not_reached(run: ExperimentRun, repeated: Sequence[Repeated]) -> Iterator[Finding]:
    """One finding on the combinations whose median is known less well than asked for; none where all are.

    Its parameter ``precision`` says what was asked for; a run without it asked for nothing. While a run goes on its
    repeats are still to come.
    """
    asked = run.params.get("precision")
    if asked is None or run.status == "running":
        return
    late = [one for one in repeated if one.summary.uncertainty > asked]
    if not late:
        return
    shown = [one for one in late if one.headline]
    last = max(shown or late, key=lambda one: (one.summary.uncertainty, -one.summary.count))
    worst = last.summary
    known = math.isfinite(worst.uncertainty)
    where = " of the headline" if shown else ""
    yield note(
        "precision-not-reached",
        quantity(
            f"Worst precision{where}, ±",
            worst.uncertainty if worst.uncertainty <= 1 else None,
            "share",
            reason="more than 100 %" if known else f"an interval takes {LEAST_VALUES} repeats",
        ),
        quantity("Precision asked for, ±", asked, "share"),
        quantity("Its repeats", worst.count, "count"),
        title=f"{len(late)} of {len(repeated)} combinations did not reach the precision asked for, ± "
        f"{format_share(asked)}",
        detail=f"{_reach(shown, late)} The worst{where}: {last.words}, ".lstrip()
        + (
            f"{within(worst.uncertainty)} after {_repeats(worst)}."
            if known
            else f"with {_repeats(worst)}, too few for an interval."
        ),
        advice=f"Let the machine idle, and repeat that combination for longer{_longer(run, asked, last)}",
    )


def _reach(shown: Sequence[Repeated], late: Sequence[Repeated]) -> str:
    """Whether the headline rests on any of them."""
    if len(shown) == 1:
        return "One of them is behind a figure of the headline."
    if shown:
        return f"{len(shown)} of them are behind figures of the headline."
    return "" if any(one.headline is None for one in late) else "None of them is behind a figure of the headline."


def _longer(run: ExperimentRun, asked: float, one: Repeated) -> str:
    """With as many repeats, and as much time, as this combination needs: an interval narrows with their root.

    No more time is advised than one waits for; where that is too little, it says how far it leads.
    """
    worst, limit = one.summary, float(run.params.get("time_limit", 1.0))
    known = math.isfinite(worst.uncertainty)
    needed = max((worst.uncertainty / asked) ** 2 if known else 1.0, LEAST_VALUES / worst.count)
    factor = min(SPARE * needed, max(PATIENCE / limit, 1.0))
    repeats = min(math.ceil(max(worst.count * factor, run.params.get("repeats", 0))), MOST_REPEATS)
    device = f" --device {run.device}" if run.device else ""
    settings = (f"repeats={repeats}", f"time_limit={math.ceil(limit * factor)}s", *one.settings)
    command = f"pinscope run {run.experiment} --lab {run.lab}{device}" + "".join(f" --set {each}" for each in settings)
    factor = min(factor, repeats / worst.count)
    if not known or factor >= needed:
        return f": {command}"
    reached = format_share(worst.uncertainty / factor**0.5)
    return f". With as much noise as here this reaches about ± {reached}: {command}"
