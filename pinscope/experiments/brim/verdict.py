"""What a brim run answers, in one sentence."""

from __future__ import annotations

from pinscope.analysis.conclusions import on_lab
from pinscope.experiments.brim.arithmetic import OUTSIDE, Climb
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bytes, format_share


def brim_verdict(run: ExperimentRun, climb: Climb) -> str | None:
    """Where the others in the group stall and are killed, and that nobody outside feels it; ``None`` before a mark."""
    cliff, killed = climb.cliff, climb.mark("killed")
    if cliff is None:
        return None
    pinned = "locked" if run.lab == "host" else "pinned"
    parts = []
    if cliff.kind != "killed":
        ratio = climb.ratio()
        how = f"other work in it takes up to {ratio:.1f} times as long" if ratio else "others in it are squeezed"
        parts.append(f"from {format_share(cliff.bytes / climb.limit)} on {how}")
    if killed is not None:
        parts.append(f"at {format_share(killed.bytes / climb.limit)} the kernel kills it" if parts else
                     f"at {format_share(killed.bytes / climb.limit)} the kernel kills others")  # fmt: skip
    outside = climb.outside_ratio()
    if outside is not None:
        parts.append(f"{'nothing slows' if outside <= OUTSIDE else 'others slow too'} outside ({outside:.2f} times)")
    sentence = f"Of a control group's {format_bytes(climb.limit)}, {pinned}: {', '.join(parts)}."
    return on_lab(run.lab, sentence)
