"""A plan as the command that makes it."""

from __future__ import annotations

from pinscope.planning.parameters import PlanParams
from pinscope.units import exact_bytes


def command_line(params: PlanParams) -> str:
    """``pinscope plan`` with every option that is not the command's own default."""
    usual = PlanParams()
    words = ["pinscope plan"]
    for name, value in params:
        if name in ("pinned", "gpu_memory") or value != getattr(usual, name):
            text = exact_bytes(value).replace(" ", "") if name in ("pinned", "gpu_memory") else str(value)
            words.append(f"--{name.replace('_', '-')} {text}")
    return " ".join(words)
