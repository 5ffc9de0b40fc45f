"""What the data loader experiment concludes: headline, table and findings from the rows of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pinscope.analysis.dataloader import Combination, combinations, rounded_up
from pinscope.records.finding import Finding, Quantity, Reading, Table
from pinscope.records.run import Run
from pinscope.units import format_bytes, format_share

CLEAR = 1.05
"""A setting helps where steps are at least this many times faster; below it is chance."""
LOADER_BOUND = 0.5
"""From this share of a step spent waiting for the loader on, nothing else matters."""
COMPUTE_BOUND = 0.1
"""Up to this share of the time with an idle GPU, it is the computing that a loop waits for."""
WASTEFUL = 1.25
"""Rounding of a batch by more than this is worth a finding."""


def read_dataloader(run: Run, rows: Sequence[Mapping[str, Any]]) -> Reading:  # noqa: ARG001 - all readings have one shape
    """Headline, table and findings; empty parts where nothing was measured yet."""
    found = combinations(rows)
    if not found:
        return Reading(headline=(), tables=(), findings=())
    best = max(found, key=lambda one: one.steps_per_second)
    plain = _same(found, best.workers, pin=False, asynchronous=False)
    findings = (
        *_wrong(found), *_gain(found), *_alone(found, best.workers), *_loader_bound(best), *_rounding(found),
        *_unstable(found),
    )  # fmt: skip
    return Reading(headline=_headline(best, plain), tables=(_table(found),), findings=findings)


def _same(found: Sequence[Combination], workers: int, pin: bool, asynchronous: bool) -> Combination | None:
    wanted = (workers, pin, asynchronous)
    return next((one for one in found if (one.workers, one.pin_memory, one.non_blocking) == wanted), None)


def _words(one: Combination) -> str:
    return f"{one.title}, {_workers(one)}"


def _workers(one: Combination) -> str:
    return f"{one.workers} worker{'' if one.workers == 1 else 's'}"


def _headline(best: Combination, plain: Combination | None) -> tuple[Quantity, ...]:
    quantities = [
        Quantity(name="Fastest", value=_words(best), unit="text"),
        Quantity(name="Its steps a second", value=best.steps_per_second, unit="count", spread=best.step_seconds.spread),
        Quantity(name="GPU idle, of a step", value=best.stall_share, unit="share"),
        Quantity(name="Waiting for the loader, of a step", value=best.wait_share, unit="share"),
        Quantity(
            name="Pinned for it", value=best.pinned_bytes, unit="bytes",
            reason=None if best.pinned_bytes is not None else "the kernel has no count of pinned pages",
        ),
    ]  # fmt: skip
    if plain:
        gain = best.steps_per_second / plain.steps_per_second
        quantities.insert(2, Quantity(name="× pageable and blocking", value=gain, unit="ratio"))
    return tuple(quantities)


def _table(found: Sequence[Combination]) -> Table:
    return Table(
        title="Every combination",
        columns=("workers", "pin_memory", "non_blocking", "steps a second", "spread", "a step", "GPU idle",
                 "waits for the loader", "the copy call holds", "copy", "copy rate", "compute", "batch", "pinned",
                 "wrong items", "steps"),
        units=("count", "text", "text", "count", "share", "seconds", "share", "share", "seconds", "seconds",
               "bytes/second", "seconds", "bytes", "bytes", "count", "count"),
        rows=tuple(
            (
                one.workers, _on(one.pin_memory), _on(one.non_blocking), one.steps_per_second,
                one.step_seconds.spread, one.step_seconds.median, one.stall_share, one.wait_share,
                one.issue_seconds.median, one.copy_seconds.median, one.copy_bytes_per_second,
                one.mean_compute_seconds, one.batch_bytes, one.pinned_bytes, one.wrong_items,
                one.step_seconds.count,
            )
            for one in found
        ),
        note="A step and its copy: medians. Steps a second, compute and the shares: of all steps together, since "
        "batches come in bursts. GPU idle: between the last kernel of one step and the first of the next. Pinned: by "
        "how much the host's count grew; the driver's own buffers for pageable copies are in it.",
    )  # fmt: skip


def _on(value: bool) -> str:
    return "on" if value else "off"


def _wrong(found: Sequence[Combination]) -> list[Finding]:
    wrong = [one for one in found if one.wrong_items]
    if not wrong:
        return []
    return [
        Finding(
            rule="batch-wrong", severity="critical", title="Batches arrived wrong on the GPU",
            detail=f"The first case: {_words(wrong[0])}.",
            evidence=(Quantity(name="Wrong items", value=sum(one.wrong_items for one in wrong), unit="count"),),
            advice="Do not trust this machine's copies. Run it again; if it repeats, check ECC counters and the "
            "kernel log.",
        )
    ]  # fmt: skip


def _gain(found: Sequence[Combination]) -> list[Finding]:
    """The fastest with pinned batches, against the same loader without any of it."""
    best = max((one for one in found if one.pin_memory), key=lambda one: one.steps_per_second, default=None)
    plain = _same(found, best.workers, pin=False, asynchronous=False) if best else None
    if best is None or plain is None:
        return []
    gain = best.steps_per_second / plain.steps_per_second
    evidence = (
        Quantity(name=_words(plain), value=plain.steps_per_second, unit="count", spread=plain.step_seconds.spread),
        Quantity(name=_words(best), value=best.steps_per_second, unit="count", spread=best.step_seconds.spread),
        Quantity(name="Copy rate, pageable", value=plain.copy_bytes_per_second, unit="bytes/second"),
        Quantity(name="Copy rate, pinned", value=best.copy_bytes_per_second, unit="bytes/second"),
    )
    if gain < CLEAR:
        return [
            Finding(
                rule="pinning-gains-nothing", severity="note", title="Pinned batches make this loop no faster",
                detail=f"With {_workers(best)} the program waits for the loader in {format_share(best.wait_share)} of "
                f"its time, and the GPU is idle for {format_share(best.stall_share)} of it.",
                evidence=evidence, advice=_what_holds(best),
            )
        ]  # fmt: skip
    copies = " with asynchronous copies" if best.non_blocking else ""
    other = _same(found, best.workers, pin=True, asynchronous=True)
    advice = (
        "DataLoader(..., pin_memory=True) and batch.to(device, non_blocking=True)."
        if best.non_blocking
        else "DataLoader(..., pin_memory=True)." + (" non_blocking=True was no faster here." if other else "")
    )
    return [
        Finding(
            rule="pinned-batches", severity="note", title=f"Pinned batches{copies} make {gain:.2f} times the steps",
            detail=f"With {_workers(best)}: {_words(best)} against {_words(plain)}.", evidence=evidence, advice=advice,
        )
    ]  # fmt: skip


def _what_holds(one: Combination) -> str:
    """What to do where a faster copy does not help."""
    if one.wait_share >= LOADER_BOUND:
        return "Make the loader faster first; then measure again."
    if one.stall_share <= COMPUTE_BOUND:
        return "Nothing: the GPU computes nearly all of the time, and no copy holds it up."
    return "See in the table what a step consists of: the GPU waits for more than copies."


def _alone(found: Sequence[Combination], workers: int) -> list[Finding]:
    """What non_blocking brings without pinned memory."""
    plain = _same(found, workers, pin=False, asynchronous=False)
    alone = _same(found, workers, pin=False, asynchronous=True)
    if plain is None or alone is None:
        return []
    gain = alone.steps_per_second / plain.steps_per_second
    if gain >= CLEAR:
        return []
    return [
        Finding(
            rule="non-blocking-alone", severity="note",
            title="non_blocking does nothing for pageable batches",
            detail=f"{gain:.2f} times the steps: a copy from pageable memory holds the program, whatever it asks for.",
            evidence=(
                Quantity(name="The call holds, blocking", value=plain.issue_seconds.median, unit="seconds"),
                Quantity(name="The call holds, non_blocking", value=alone.issue_seconds.median, unit="seconds"),
            ),
            advice="non_blocking=True helps only together with pin_memory=True.",
        )
    ]  # fmt: skip


def _loader_bound(best: Combination) -> list[Finding]:
    if best.wait_share < LOADER_BOUND:
        return []
    return [
        Finding(
            rule="loader-bound", severity="warning",
            title=f"The loop waits for the loader in {format_share(best.wait_share)} of its time",
            detail=f"Also with the fastest settings ({_words(best)}): the GPU is idle for "
            f"{format_share(best.stall_share)} of a step, and copies are not what it waits for.",
            evidence=(
                Quantity(name="Waiting, a step on average", value=best.mean_wait_seconds, unit="seconds"),
                Quantity(name="Copy, a step", value=best.copy_seconds.median, unit="seconds"),
                Quantity(name="Compute, a step on average", value=best.mean_compute_seconds, unit="seconds"),
            ),
            advice="More workers, cheaper items, or data that is prepared once. Pinning changes little before that.",
        )
    ]  # fmt: skip


def _rounding(found: Sequence[Combination]) -> list[Finding]:
    """Pinned blocks are rounded up to powers of two."""
    pinned = [one for one in found if one.pin_memory and one.pinned_bytes]
    if not pinned:
        return []
    most = max(pinned, key=lambda one: one.pinned_bytes or 0)
    waste = rounded_up(most.batch_bytes) / most.batch_bytes
    if waste < WASTEFUL:
        return []
    return [
        Finding(
            rule="pinned-rounding", severity="warning",
            title=f"PyTorch pins {format_bytes(rounded_up(most.batch_bytes))} for a batch of "
            f"{format_bytes(most.batch_bytes)}",
            detail=f"Its pinned allocator rounds requests up to powers of two and keeps them: "
            f"{format_bytes(most.pinned_bytes)} were pinned with {_workers(most)}.",
            evidence=(
                Quantity(name="Asked for, a batch", value=most.batch_bytes, unit="bytes"),
                Quantity(name="Pinned in all", value=most.pinned_bytes, unit="bytes"),
                Quantity(name="Rounded up", value=waste, unit="ratio"),
            ),
            advice="Choose a batch just below a power of two. PyTorch 2.15 can also be told from which size on not to "
            "round, PYTORCH_ALLOC_CONF=pinned_max_round_threshold_mb:16 for instance; 2.11 refuses that, and "
            "pinned_use_cuda_host_register changes nothing about rounding.",
        )
    ]  # fmt: skip


def _unstable(found: Sequence[Combination]) -> list[Finding]:
    unstable = [one for one in found if one.step_seconds.unstable]
    if not unstable:
        return []
    worst = max(unstable, key=lambda one: one.step_seconds.spread)
    return [
        Finding(
            rule="unstable", severity="note",
            title=f"{len(unstable)} of {len(found)} combinations {'is' if len(unstable) == 1 else 'are'} unstable",
            detail=f"The worst: {_words(worst)}. Batches come in bursts where few workers make them, and every worker "
            "needs a processor.",
            evidence=(
                Quantity(name="Spread of the worst", value=worst.step_seconds.spread, unit="share"),
                Quantity(name="Its steps", value=worst.step_seconds.count, unit="count"),
            ),
            advice="Let the machine idle and count more steps: --set steps=300",
        )
    ]  # fmt: skip
