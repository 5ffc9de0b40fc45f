"""What a brim run answers, in one sentence."""

from __future__ import annotations

from pinscope.analysis.conclusions import on_lab
from pinscope.experiments.brim.arithmetic import Climb
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bytes


def brim_verdict(run: ExperimentRun, climb: Climb) -> str | None:
    """Where the others in the group stall and are killed, and that nobody outside feels it; ``None`` before a mark."""
    cliff = climb.cliff
    if cliff is None:
        return None
    pinned = "locked" if run.lab == "host" else "pinned"
    place, ratio, kill = f"a control group's {format_bytes(climb.limit)} {pinned}", climb.ratio(), climb.mark("killed")
    if cliff.kind == "killed":
        parts = [f"At {cliff.place(climb.limit)} of {place}, the kernel kills another program in it"]
    else:
        how = f"slows, at worst {ratio:.1f} times" if ratio else "slows"
        parts = [f"At {cliff.place(climb.limit)} of {place}, a program in it {how}"]
        if kill is not None:
            parts.append(f"at {kill.place(climb.limit)} it is killed")
    if climb.disturbs is not None:
        slower = f"work outside takes {climb.outside_ratio():.2f} times as long"
        parts.append(slower if climb.disturbs else "outside, none slowed")
    return on_lab(run.lab, f"{'; '.join(parts)}.")
