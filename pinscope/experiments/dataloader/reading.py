"""What the data loader experiment concludes: headline, table and findings from the rows of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pinscope.analysis.pytorch_pinned import ROUNDING_ADVICE, rounded_up
from pinscope.analysis.rules.host_memory import ROUNDING_RATIO
from pinscope.experiments.dataloader.arithmetic import Combination, combinations, speedup
from pinscope.experiments.dataloader.bound import advice, bound, busy
from pinscope.experiments.dataloader.effects import effect_findings, workers_title
from pinscope.records.finding import Finding, Quantity, Reading, Table, note, quantity, table, warning, wrong_data
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bandwidth, format_bytes, format_share


def read_dataloader(run: ExperimentRun, rows: Sequence[Mapping[str, Any]]) -> Reading:
    """Headline, table and findings; empty parts where nothing was measured yet."""
    found = combinations(rows)
    if not found:
        return Reading(headline=(), tables=(), findings=())
    steady = [one for one in found if one.steady]
    findings = [*_wrong(found), *_never_steady(found)]
    if steady:
        best = max(steady, key=lambda one: one.steps_per_second.value)
        findings += [*effect_findings(steady, best), *_bound(best, steady), *_rounding(found)]
    return Reading(
        headline=_headline(best, steady) if steady else (), tables=(_table(found),), findings=tuple(findings)
    )


def _words(one: Combination) -> str:
    return f"{one.title}, {workers_title(one.workers)}"


def _headline(best: Combination, steady: Sequence[Combination]) -> tuple[Quantity, ...]:
    pace, found = best.steps_per_second, bound(best)
    plain = next((one for one in steady if one.workers == best.workers and one.plain), None)
    gain = speedup(best, plain) if plain else None
    gains = [quantity("× pageable and blocking", gain.value, "ratio", spread=gain.uncertainty)] if gain else []
    return (
        quantity("Fastest", _words(best), "text"),
        quantity("Its steps a second, ± half the 95 % interval", pace.value, "count", spread=pace.uncertainty),
        *gains,
        *_as_good(best, steady),
        quantity(
            "Busiest part",
            f"{found.title}, {format_share(found.share)} of a step" if found else None,
            "text",
            reason="this run did not time the workers and the pinning thread apart",
        ),
        quantity("GPU idle, of a step", best.share("stall_seconds"), "share"),
        quantity("Waiting for the loader, of a step", best.share("wait_seconds"), "share"),
        quantity("Pinned for it", best.pinned_bytes, "bytes", reason="the kernel has no count of pinned pages"),
    )


def _as_good(best: Combination, steady: Sequence[Combination]) -> list[Quantity]:
    """Those that the rounds do not tell apart from the fastest; none where a single round has no interval."""
    ratios = [(one, speedup(best, one)) for one in steady if one is not best]
    close = [_words(one) for one, ratio in ratios if ratio and ratio.low is not None and ratio.low <= 1]
    return [quantity("As good, round by round", "; ".join(close), "text")] if close else []


def _table(found: Sequence[Combination]) -> Table:
    return table(
        "Every combination",
        {
            "workers": "count", "pin_memory": "text", "non_blocking": "text", "steps a second": "count",
            "± half the 95 % interval": "share", "a step": "seconds", "busiest part": "text", "busy": "share",
            "GPU idle": "share", "waits for the loader": "share", "making a batch": "seconds",
            "pinning a batch": "seconds", "pinning rate": "bytes/second", "the copy call holds": "seconds",
            "copy": "seconds", "copy rate": "bytes/second", "compute": "seconds", "batch": "bytes",
            "pinned": "bytes", "wrong items": "count", "start": "count", "steps counted": "count", "rounds": "count",
        },
        [_table_row(one) for one in found],
        note="Means over the steps after the start; the start: steps that were cut off, at most, in a round. Steps a "
        "second: from the means of the rounds; two combinations are compared round by round, as what changes on the "
        "machine from round to round touches both. Busy: share of a step, of the workers together, the pinning thread, "
        "the GPU's copies and kernels, or the program. Pinned: by how much the host's count grew, with the driver's "
        "own buffers for pageable copies.",
    )  # fmt: skip


def _table_row(one: Combination) -> tuple[float | int | str | None, ...]:
    pace, found = one.steps_per_second if one.steady else None, bound(one)
    pinning = one.pin_memory
    return (
        one.workers, _on(one.pin_memory), _on(one.non_blocking), pace.value if pace else None,
        pace.uncertainty if pace else None, one.seconds("step_seconds"), found.title if found else None,
        found.share if found else None, one.share("stall_seconds"), one.share("wait_seconds"),
        one.seconds("make_seconds"), one.seconds("pin_seconds") if pinning else None,
        one.rate("pin_seconds") if pinning else None, one.seconds("issue_seconds"), one.seconds("copy_seconds"),
        one.rate("copy_seconds"), one.seconds("compute_seconds"), one.batch_bytes, one.pinned_bytes, one.wrong_items,
        one.start_steps, len(one.counted), len(one.visits),
    )  # fmt: skip


def _on(value: bool) -> str:
    return "on" if value else "off"


def _wrong(found: Sequence[Combination]) -> Iterator[Finding]:
    wrong = [one for one in found if one.wrong_items]
    if not wrong:
        return
    yield wrong_data(
        "batch-wrong",
        quantity("Wrong items", sum(one.wrong_items for one in wrong), "count"),
        title="Batches arrived wrong on the GPU",
        detail=f"The first case: {_words(wrong[0])}.",
    )


def _never_steady(found: Sequence[Combination]) -> Iterator[Finding]:
    restless = [one for one in found if not one.steady]
    if not restless:
        return
    most = max(len(visit.steps) + 1 for one in restless for visit in one.visits)
    yield warning(
        "never-steady",
        quantity("Steps in a round, at most", most, "count"),
        title=f"{len(restless)} of {len(found)} combinations never became steady: they have no figures",
        detail=f"{'; '.join(map(_words, restless))}.",
        advice=f"Let the machine idle and take more steps: --set steps={2 * most}",
    )


def _bound(best: Combination, steady: Sequence[Combination]) -> Iterator[Finding]:
    """What the fastest loop waits for, with the busiest part of every other one as evidence."""
    found = bound(best)
    if found is None:
        return
    evidence = tuple(
        quantity(_words(one), f"{other.title}, {format_share(other.share)}", "text")
        for one in steady
        if (other := bound(one))
    )
    if found.clear:
        title = f"{format_share(found.share)} of a step: {found.title} bounds the fastest loop"
    else:
        title = f"{format_share(found.share)} of a step: no part of the fastest loop is busy all the time"
    yield note(
        "bound",
        *evidence,
        title=title,
        detail=_bound_detail(best),
        advice=advice(best, steady),
    )


def _bound_detail(best: Combination) -> str:
    parts = ", ".join(f"{part.title} {format_share(part.share)}" for part in busy(best) or ())
    if not best.workers:
        more = "Without workers it makes the batches itself" + _of_a_step(best, "make_seconds")
        more += (" and pins them" + _of_a_step(best, "pin_seconds") if best.pin_memory else "") + "."
    elif best.pin_memory:
        more = f"The pinning thread copies {format_bandwidth(best.rate('pin_seconds'))}."
    else:
        more = f"Its copy calls hold the program for {format_share(best.share('issue_seconds'))}."
    return f"{_words(best)}: {parts} of a step. {more}"


def _of_a_step(one: Combination, name: str) -> str:
    return f" ({format_share(one.share(name))} of a step)"


def _rounding(found: Sequence[Combination]) -> Iterator[Finding]:
    """Pinned blocks are rounded up to powers of two."""
    pinned = [one for one in found if one.pin_memory and one.pinned_bytes]
    if not pinned:
        return
    most = max(pinned, key=lambda one: one.pinned_bytes or 0)
    waste = rounded_up(most.batch_bytes) / most.batch_bytes
    if waste < ROUNDING_RATIO:
        return
    yield warning(
        "pinned-rounding",
        quantity("Asked for, a batch", most.batch_bytes, "bytes"),
        quantity("Pinned in all", most.pinned_bytes, "bytes"),
        quantity("Rounded up", waste, "ratio"),
        title=f"PyTorch pins {format_bytes(rounded_up(most.batch_bytes))} for a batch of "
        f"{format_bytes(most.batch_bytes)}",
        detail=f"Its pinned allocator rounds requests up to powers of two and keeps them: "
        f"{format_bytes(most.pinned_bytes)} were pinned with {workers_title(most.workers)}.",
        advice=ROUNDING_ADVICE,
    )
