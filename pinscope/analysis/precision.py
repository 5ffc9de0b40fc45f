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
    """

    words: str
    summary: Summary
    settings: tuple[str, ...] = ()


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
    last = max(late, key=lambda one: (one.summary.uncertainty, -one.summary.count))
    words, worst = last.words, last.summary
    known = math.isfinite(worst.uncertainty)
    yield note(
        "precision-not-reached",
        quantity(
            "The worst is known to ±",
            worst.uncertainty if known else None,
            "share",
            reason=f"that takes {LEAST_VALUES} repeats",
        ),
        quantity("Asked for: ±", asked, "share"),
        quantity("Repeats of the worst", worst.count, "count"),
        title=f"{len(late)} of {len(repeated)} combinations did not reach the precision asked for, ± "
        f"{format_share(asked)}",
        detail=f"The worst: {words}, known to ± {format_share(worst.uncertainty)} after {worst.count} repeats."
        if known
        else f"The worst: {words}, with {worst.count} repeats; fewer than {LEAST_VALUES} have no interval.",
        advice="Let the machine idle, and run the worst again for longer" + _longer(run, asked, last),
    )


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
    settings = (f"repeats={repeats}", f"time_limit={math.ceil(limit * factor)}", *one.settings)
    command = f"pinscope run {run.experiment} --lab {run.lab}{device}" + "".join(f" --set {each}" for each in settings)
    factor = min(factor, repeats / worst.count)
    if not known or factor >= needed:
        return f": {command}"
    reached = format_share(worst.uncertainty / factor**0.5)
    return f"; with as much noise as here that reaches about ± {reached}, not ± {format_share(asked)}: {command}"
