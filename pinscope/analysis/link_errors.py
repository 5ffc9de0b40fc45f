"""Did a GPU's link make errors while a run measured? What was counted before and after it says so."""

from __future__ import annotations

from collections.abc import Mapping

from pinscope.records.environment import Device, Environment
from pinscope.records.finding import Finding, finding, quantity

KINDS: Mapping[str, str] = {
    "replays": "packets sent again",
    "correctable": "errors that the hardware put right",
    "nonfatal": "errors that lost a packet",
    "fatal": "errors that broke the link",
}
"""Field of :class:`pinscope.records.environment.LinkErrors` → what it counts."""
_GRAVE = ("nonfatal", "fatal")


def rises(device: Device) -> dict[str, int]:
    """Kind of error → how many more there were after the run; those alone that rose."""
    before, after = device.link_errors, device.link_errors_after
    found = {}
    for kind in KINDS if before and after else ():
        first, last = getattr(before, kind), getattr(after, kind)
        if first is not None and last is not None and last > first:
            found[kind] = last - first
    return found


def link_error_findings(environment: Environment) -> tuple[Finding, ...]:
    """One finding for each GPU whose link made errors while the run measured."""
    return tuple(_finding(device, risen) for device in environment.devices if (risen := rises(device)))


def _finding(device: Device, risen: Mapping[str, int]) -> Finding:
    grave = [kind for kind in risen if kind in _GRAVE]
    counted = ", ".join(f"{number:,} {KINDS[kind]}" for kind, number in risen.items())
    return finding(
        "warning" if grave else "note",
        "link-errors",
        *(
            quantity(f"{KINDS[kind].capitalize()}, {when}", getattr(errors, kind), "count")
            for kind in risen
            for when, errors in (("before", device.link_errors), ("after", device.link_errors_after))
        ),
        title=f"GPU {device.index}: {counted} on the PCIe link during the run",
        detail="Each of them cost time, so copies of this run may be slower than the link allows. "
        "A link in order counts none.",
        advice="Reseat the GPU, check risers and cables, and run again; if the counts still rise, try another slot.",
    )
