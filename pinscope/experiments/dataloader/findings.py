"""What the data loader experiment found out, each finding with what it costs to ignore it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pinscope.analysis.conclusions import Costed, dearest_first
from pinscope.analysis.pytorch_pinned import ROUNDING_ADVICE, rounded_up
from pinscope.analysis.rules.host_memory import ROUNDING_RATIO
from pinscope.experiments.dataloader.arithmetic import Combination, speedup
from pinscope.experiments.dataloader.bound import Busy, advice, bound, busy
from pinscope.experiments.dataloader.effects import effect_findings, workers_title
from pinscope.records.finding import Finding, costing, finding, note, quantity, wrong_data
from pinscope.units import format_bandwidth, format_bytes, format_share

_STREAM = "the GPU's copies and kernels"


def dataloader_findings(found: Sequence[Combination], steady: Sequence[Combination]) -> tuple[Finding, ...]:
    """All findings of a run; ``steady``: those of its combinations that became steady."""
    costed = [*_wrong(found), *_never_steady(found)]
    if steady:
        best = fastest(steady)
        costed += [*_bound(best, steady), *effect_findings(steady), *_settings(best, steady), *_rounding(found)]
    return dearest_first(costed)


def words(one: Combination) -> str:
    """The settings and the number of workers."""
    return f"{one.title}, {workers_title(one.workers)}"


def fastest(steady: Sequence[Combination]) -> Combination:
    """The combination with the most steps a second."""
    return max(steady, key=lambda one: one.steps_per_second.value)


def equals(best: Combination, steady: Sequence[Combination]) -> list[Combination]:
    """Those that the rounds do not tell apart from the fastest; all where a single round has no interval."""
    ratios = [(one, speedup(best, one)) for one in steady if one is not best]
    return [one for one, ratio in ratios if ratio is None or ratio.low is None or ratio.low <= 1]


def _wrong(found: Sequence[Combination]) -> Iterator[Costed]:
    wrong = [one for one in found if one.wrong_items]
    if not wrong:
        return
    yield (
        1.0,
        wrong_data(
            "batch-wrong",
            quantity("Wrong items", sum(one.wrong_items for one in wrong), "count"),
            title="Batches arrived wrong on the GPU",
            detail=f"The first case: {words(wrong[0])}.",
        ),
    )


def _never_steady(found: Sequence[Combination]) -> Iterator[Costed]:
    restless = [one for one in found if not one.steady]
    if not restless:
        return
    most = max(len(visit.steps) + 1 for one in restless for visit in one.visits)
    few = len(restless) == 1
    yield (
        1.0,
        note(
            "never-steady",
            quantity("Steps in a round, at most", most, "count"),
            title=f"{len(restless)} of {len(found)} combinations did not reach a steady rate within {most} steps and "
            f"{'has no figure' if few else 'have no figures'}",
            detail=f"{'; '.join(map(words, restless))}.",
            advice=f"Let the machine idle and take more steps: --set steps={2 * most}",
        ),
    )


def _settings(best: Combination, steady: Sequence[Combination]) -> Iterator[Costed]:
    """Which settings to take; none where the run does not tell the fastest apart from all others."""
    if len(steady) < 2 or equals(best, steady):
        return
    pace = best.steps_per_second
    slowest = min(one.steps_per_second.value for one in steady)
    yield (
        pace.value / slowest,
        note(
            "settings",
            quantity(f"Steps a second, {words(best)}", pace.value, "count", spread=pace.uncertainty),
            title=f"Take {words(best)}: {pace.value:.1f} steps a second, the most of {len(steady)}",
            detail=f"All {len(steady) - 1} other combinations are slower.",
            advice=f"DataLoader(..., num_workers={best.workers}, pin_memory={best.pin_memory}) and "
            f"batch.to(device, non_blocking={best.non_blocking}).",
        ),
    )


def _bound(best: Combination, steady: Sequence[Combination]) -> Iterator[Costed]:
    """What the fastest loop waits for. The tables say it of the others."""
    found = bound(best)
    if found is None:
        return
    computes = best.computes
    cost = 1 / max(computes, 1e-3) if computes is not None else 1.0
    waits = f", and the GPU computes for {format_share(computes)}" if computes is not None and computes < 1 else ""
    share = format_share(found.share)
    name = found.title[:1].upper() + found.title[1:]
    if found.clear:
        title = f"{name} is the busiest part of the fastest loop, {share} of each step{waits}"
    else:
        title = f"No part of the fastest loop is busy all the time: {found.title} for {share} of each step{waits}"
    yield (
        cost,
        finding(
            costing(cost),
            "bound",
            quantity(f"Busiest part: {found.title}, of a step", found.share, "share"),
            *([quantity("GPU computes, of a step", computes, "share")] if computes is not None else []),
            title=title,
            detail=_bound_detail(best),
            advice=advice(best, steady),
        ),
    )


def _bound_detail(best: Combination) -> str:
    parts = ", ".join(f"{_part(part)} {format_share(part.share)}" for part in busy(best) or ())
    if not best.workers:
        more = "Without workers it makes the batches itself" + _of_a_step(best, "make_seconds")
        more += (" and pins them" + _of_a_step(best, "pin_seconds") if best.pin_memory else "") + "."
    elif best.pin_memory:
        more = f"The pinning thread copies {format_bandwidth(best.rate('pin_seconds'))}."
    else:
        more = f"Its copy calls hold the program for {format_share(best.share('issue_seconds'))}."
    return (
        f"{words(best).capitalize()}: {parts} of a step. {more} The GPU computes from the first kernel of a "
        "step to its last; it copies in the rest."
    )


def _part(part: Busy) -> str:
    return _STREAM if part.part in ("copy", "compute") else part.title


def _of_a_step(one: Combination, name: str) -> str:
    return f" ({format_share(one.share(name))} of a step)"


def _rounding(found: Sequence[Combination]) -> Iterator[Costed]:
    """Pinned blocks are rounded up to powers of two."""
    pinned = [one for one in found if one.pin_memory and one.pinned_bytes]
    if not pinned:
        return
    most = max(pinned, key=lambda one: one.pinned_bytes or 0)
    waste = rounded_up(most.batch_bytes) / most.batch_bytes
    if waste < ROUNDING_RATIO:
        return
    yield (
        waste,
        finding(
            costing(waste),
            "pinned-rounding",
            quantity("Asked for, a batch", most.batch_bytes, "bytes"),
            quantity("Pinned in all", most.pinned_bytes, "bytes"),
            quantity("Rounded up", waste, "ratio"),
            title=f"PyTorch pins {format_bytes(rounded_up(most.batch_bytes))} for a batch of "
            f"{format_bytes(most.batch_bytes)}",
            detail=f"Its pinned allocator rounds requests up to powers of two and keeps them: "
            f"{format_bytes(most.pinned_bytes)} were pinned with {workers_title(most.workers)}.",
            advice=ROUNDING_ADVICE,
        ),
    )
