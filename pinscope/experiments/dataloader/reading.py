"""What the data loader experiment concludes: verdict, headline and table from the rows of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pinscope.analysis.conclusions import ROUGH, about, joined
from pinscope.analysis.rows import grouped
from pinscope.experiments.dataloader.arithmetic import Combination, combinations
from pinscope.experiments.dataloader.bound import bound
from pinscope.experiments.dataloader.effects import SETTINGS, Effect, effects, workers_title
from pinscope.experiments.dataloader.findings import dataloader_findings, equals, fastest, words
from pinscope.experiments.dataloader.steady_state import Estimate
from pinscope.records.finding import Quantity, Reading, Table, quantity, table
from pinscope.records.run import ExperimentRun
from pinscope.units import format_share


def read_dataloader(run: ExperimentRun, rows: Sequence[Mapping[str, Any]]) -> Reading:
    """Verdict, headline, table and findings; empty parts where nothing was measured yet."""
    found = combinations(rows)
    if not found:
        return Reading(headline=(), tables=(), findings=())
    steady = [one for one in found if one.steady]
    return Reading(
        verdict=_verdict(found, steady),
        headline=_headline(fastest(steady), steady) if steady else (),
        tables=(_table(found),),
        findings=dataloader_findings(found, steady),
    )


def _verdict(found: Sequence[Combination], steady: Sequence[Combination]) -> str | None:
    """What pinned batches bring with each number of workers, and what limits the fastest loop."""
    if any(one.wrong_items for one in found):
        return "Batches arrived wrong on the GPU: do not trust these figures."
    if not steady:
        return None
    best = fastest(steady)
    limit = "" if equals(best, steady) else _limits(best)
    if measured := effects(steady, SETTINGS[0]):
        unknown = sorted({one.workers for one in found} - {one.workers for one in measured})
        rest = f", not known with {joined([str(count) for count in unknown])}" if unknown else ""
        return f"{_brings(measured)}{rest}{limit}."
    rate = best.steps_per_second
    pace = f"{about(rate.uncertainty or 0)}{rate.value:.1f} steps a second with {words(best)}"
    return f"The fastest loop makes {pace}{limit}."


def _limits(best: Combination) -> str:
    """``; the fastest loop (8 workers) waits for PyTorch's pinning thread``, or how much of it the GPU computes."""
    found, computes = bound(best), best.computes
    if found is not None and found.clear and found.part != "compute":
        return f"; the fastest loop ({workers_title(best.workers)}) waits for {found.title}"
    return (
        "" if computes is None else f"; in the fastest loop the GPU computes for {format_share(computes)} of each step"
    )


def _brings(measured: Sequence[Effect]) -> str:
    """``pin_memory with non_blocking makes the loop about 1.4 times as fast with 0 workers, not measurably with 2``."""
    by_verdict = grouped(measured, lambda one: one.verdict)
    same = _workers(by_verdict.pop("no difference measured", []))
    clauses = [
        f"{_times([one.ratio for one in some])} with {_workers(some)} worker{'' if _workers(some) == '1' else 's'}"
        + (" (measured once)" if verdict == "measured once" else "")
        for verdict, some in by_verdict.items()
    ]
    name = SETTINGS[0].name
    if not clauses:
        return f"{name} makes no measured difference to the loop ({same} workers)"
    return f"{name} makes the loop {joined(clauses)}{f', not measurably with {same}' if same else ''}"


def _workers(some: Sequence[Effect]) -> str:
    return joined([str(one.workers) for one in some])


def _times(ratios: Sequence[Estimate]) -> str:
    """``about 1.4 times as fast``; two digits after the point where the ratios are known that well."""
    rough = any(ratio.uncertainty is None or ratio.uncertainty > ROUGH for ratio in ratios)
    values = sorted({f"{ratio.value:.1f}" if rough else f"{ratio.value:.2f}" for ratio in ratios}, key=float)
    return f"{'about ' if rough else ''}{' to '.join(dict.fromkeys((values[0], values[-1])))} times as fast"


def _headline(best: Combination, steady: Sequence[Combination]) -> tuple[Quantity, ...]:
    """Pace, how long the GPU computes and what pinning brings; then which loop it is, and what it waits for."""
    pace, found = best.steps_per_second, bound(best)
    gains = sorted(effects(steady, SETTINGS[0]), key=lambda one: -one.ratio.value)
    close = equals(best, steady)
    return (
        quantity("Steps a second of the fastest loop", pace.value, "count", spread=pace.uncertainty),
        quantity("GPU computes in the fastest loop, of a step", best.computes, "share"),
        *(
            quantity(
                f"Speed-up by {SETTINGS[0].name}, {workers_title(one.workers)}",
                one.ratio.value,
                "ratio",
                spread=one.ratio.uncertainty,
            )
            for one in gains
        ),
        quantity("Fastest loop", words(best), "text"),
        *([quantity("As fast, as far as this run can tell", "; ".join(map(words, close)), "text")] if close else []),
        quantity(
            "Busiest part of the fastest loop",
            f"{found.title}, {format_share(found.share)} of a step" if found else None,
            "text",
            reason="this run did not time the workers and the pinning thread apart",
        ),
        quantity("Waiting for the loader in the fastest loop", best.share("wait_seconds"), "share"),
        quantity(
            "Pinned for the fastest loop", best.pinned_bytes, "bytes", reason="the kernel has no count of pinned pages"
        ),
    )


def _table(found: Sequence[Combination]) -> Table:
    return table(
        "Every combination",
        {
            "workers": "count",
            "pin_memory": "text",
            "non_blocking": "text",
            "steps a second": "count",
            "± half the 95 % interval": "share",
            "a step": "seconds",
            "busiest part": "text",
            "busy": "share",
            "GPU computes": "share",
            "waits for the loader": "share",
            "making a batch": "seconds",
            "pinning a batch": "seconds",
            "pinning rate": "bytes/second",
            "the copy call holds": "seconds",
            "copy": "seconds",
            "copy rate": "bytes/second",
            "compute": "seconds",
            "batch": "bytes",
            "pinned": "bytes",
            "wrong items": "count",
            "start": "count",
            "steps counted": "count",
            "rounds": "count",
        },
        [_table_row(one) for one in found],
        note="Means over the steps after the start; the start: steps that were cut off, at most, in a round. Steps a "
        "second: from the means of the rounds; two combinations are compared round by round, as what changes on the "
        "machine from round to round touches both. Busy: share of a step, of the workers together, the pinning thread, "
        "the GPU's copies and kernels, or the program. GPU computes: share"
        " of a step from its first kernel to its last. Pinned: by how much the host's count grew, with the driver's "
        "own buffers for pageable copies.",
    )


def _table_row(one: Combination) -> tuple[float | int | str | None, ...]:
    pace, found = one.steps_per_second if one.steady else None, bound(one)
    pinning = one.pin_memory
    return (
        one.workers,
        _on(one.pin_memory),
        _on(one.non_blocking),
        pace.value if pace else None,
        pace.uncertainty if pace else None,
        one.seconds("step_seconds"),
        found.title if found else None,
        found.share if found else None,
        one.computes,
        one.share("wait_seconds"),
        one.seconds("make_seconds"),
        one.seconds("pin_seconds") if pinning else None,
        one.rate("pin_seconds") if pinning else None,
        one.seconds("issue_seconds"),
        one.seconds("copy_seconds"),
        one.rate("copy_seconds"),
        one.seconds("compute_seconds"),
        one.batch_bytes,
        one.pinned_bytes,
        one.wrong_items,
        one.start_steps,
        len(one.counted),
        len(one.visits),
    )


def _on(value: bool) -> str:
    return "on" if value else "off"
