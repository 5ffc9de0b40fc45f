"""What a pressure run answers, in one sentence."""

from __future__ import annotations

from collections.abc import Sequence

from pinscope.analysis.conclusions import on_lab
from pinscope.experiments.pressure.arithmetic import GIB, STRAIGHT, Stages, lost_per_byte, median_of
from pinscope.records.finding import Finding
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bytes


def pressure_verdict(run: ExperimentRun, found: Stages, of_memory: str, felt: Sequence[Finding]) -> str | None:
    """What others felt, or else what pinning took from them; ``None`` where neither is known.

    Args:
        run: its lab says what pinning is.
        found: with the stage before, and a step at least.
        of_memory: how much of the memory there is was pinned at most, for people.
        felt: findings on what became slower.
    """
    pinned = "locked" if run.lab == "host" else "pinned"
    most = f"{format_bytes(found.most_bytes)} {pinned} ({of_memory})"
    warned = next((one for one in felt if one.severity == "warning"), None)
    if warned:
        return on_lab(run.lab, f"{warned.title}; at most {most}.")
    lost, slowest = lost_per_byte(found), _slowest_fault(found)
    parts = []
    if felt:
        parts.append("what became slower stayed so without it")
    elif slowest is not None and (freed := _freed(found, slowest)):
        after = f"{freed:.2f} times after freeing, so drift may be the cause"
        return on_lab(run.lab, f"Page faults took {slowest:.2f} times as long with up to {most}, {after}.")
    elif slowest is not None:
        parts.append(f"page faults took at most {max(slowest, 1.0):.2f} times as long as before")
    elif lost is not None and abs(lost - 1) <= STRAIGHT:  # else other programs' memory is in it
        parts.append(f"each GiB took {format_bytes(lost * GIB)} of available memory")
    return on_lab(run.lab, f"With {most}, {'; '.join(parts)}.") if parts else None


def _freed(found: Stages, slowest: float) -> float | None:
    """How much longer page faults took when all was freed; ``None`` if that is less than with it."""
    before, after = (median_of(stage.fault) if stage else None for stage in (found.before, found.after))
    return after / before if before and after is not None and after / before >= slowest > 1 else None


def _slowest_fault(found: Stages) -> float | None:
    before = median_of(found.before.fault) if found.before else None
    held = [seconds for stage in found.held if (seconds := median_of(stage.fault)) is not None]
    return max(held) / before if before and held else None
