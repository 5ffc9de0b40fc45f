"""PyTorch's pool of pinned memory: what it takes for one request and keeps, with each setting in its own process."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, Literal

from pinscope.analysis.pytorch_pinned import SETTING_NAMES, pool_settings
from pinscope.errors import MeasurementFailed, NotEnoughMemory
from pinscope.lab.child_processes import Child, ChildProcesses, Order
from pinscope.lab.harness import Harness
from pinscope.lab.protocol import Lab
from pinscope.probes.installation import install_command

PoolStep = Literal["before", "held", "dropped", "again", "emptied"]
STEPS: tuple[tuple[PoolStep, Mapping[str, Any]], ...] = (
    ("held", {"do": "take"}),
    ("dropped", {"do": "drop"}),
    ("again", {"do": "take"}),
    ("emptied", {"do": "empty"}),
)
"""What happens one after the other, and the order for it. Before ``emptied`` the tensor is dropped once more."""
STEP_SECONDS = 60.0
CHILD_SECONDS = 6.0
"""What one setting takes about: PyTorch's start, a context, and the memory."""
_MODULE = "pinscope.experiments.allocation.torch_pool"


def audit(nbytes: int, lab: Lab, harness: Harness) -> Iterator[Mapping[str, Any]]:
    """Values of an observation for each setting and step. A setting that cannot be measured is noted."""
    if reason := why_no_audit(lab):
        harness.note(f"Left out: PyTorch's pool. {reason}")
        return
    for setting, chosen in pool_settings(version("torch"), nbytes).items():
        if setting == "none" and not any(map(os.environ.get, SETTING_NAMES)):
            continue  # the same as what is in force
        if chosen.reason:
            harness.note(f"Left out: PyTorch's pool, {setting}. {chosen.reason}")
            continue
        harness.progress(1.0, f"PyTorch's pool: {setting}")
        try:
            yield from _one(setting, chosen.text, nbytes, lab, harness)
        except (MeasurementFailed, NotEnoughMemory) as error:
            harness.note(f"Left out: PyTorch's pool, {setting}. {error}")


def why_no_audit(lab: Lab) -> str | None:
    """Why PyTorch's pool cannot be looked at here; ``None`` if it can."""
    if lab.kind != "cuda":
        return "It needs a GPU."
    if find_spec("torch") is None:
        return f"PyTorch is not installed here; run: {install_command('torch')}"
    return None


def _one(setting: str, text: str | None, nbytes: int, lab: Lab, harness: Harness) -> Iterator[Mapping[str, Any]]:
    child = Child("PyTorch's process", _MODULE, {"place": lab.place, "settings": text})
    with ChildProcesses({0: child}, STEP_SECONDS, harness.check_cancelled) as processes:

        def ask(order: Order) -> Mapping[str, Any]:
            return processes.ask(f"looking at its pool ({setting})", {0: order})[0][1]

        def values(step: PoolStep, reply: Mapping[str, Any]) -> Mapping[str, Any]:
            state = lab.memory_state()
            return {
                "bytes": nbytes,
                "repeat": 0,
                "warmup": False,
                "step": step,
                "setting": setting,
                **started,
                "pool_seconds": reply.get("seconds"),
                "pool_bytes": reply.get("pool_bytes"),
                "pinned_bytes": state.pinned_bytes,
                "nvml_used_bytes": state.nvml_used_bytes,
            }

        reply = ask({"do": "start"})
        started = {"settings": reply["in_force"], "version": reply["version"]}
        yield values("before", {})
        for step, order in STEPS:
            if step == "emptied":
                ask({"do": "drop"})
            yield values(step, ask({**order, "nbytes": nbytes} if order["do"] == "take" else order))
