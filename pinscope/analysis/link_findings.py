"""A PCIe link below its best: the same words on the machine page, in the live view and in a run's reading."""

from __future__ import annotations

from pinscope.analysis.link_model import payload_now
from pinscope.analysis.rules.link import Shortfall, link_shortfall
from pinscope.records.environment import Link
from pinscope.records.finding import Finding, Quantity, finding, quantity
from pinscope.units import format_bandwidth

RESEAT = "Reseat the GPU, check risers and cables, and see in the firmware settings "
_SLOT = "whether the slot shares its lanes with another one."
SLOT_SETTINGS = RESEAT + "which generation the slot is allowed and whether it shares its lanes."
SLOT_ADVICE = f"{SLOT_SETTINGS} 'pinscope run bandwidth' measures what arrives."


def link_below_best(index: int, link: Link, *, busy: bool | None) -> Finding | None:
    """What a GPU's PCIe link is below its best in; ``None`` if nothing.

    Args:
        index: of the GPU.
        link: as it is trained now, and at best.
        busy: whether the GPU is busy; ``None`` where that is not known.
    """
    short = link_shortfall(link.generation_now, link.generation_max, link.width_now, link.width_max, busy=busy)
    if short is None:
        return None
    return finding(
        short.severity,
        "link-below-best",
        *link_evidence(link),
        title=f"GPU {index}: only {link.width_now} of {link.width_max} PCIe lanes are in use"
        if short.what == "lanes"
        else f"GPU {index}: the PCIe link is at generation {link.generation_now}, its best is {link.generation_max}",
        detail=f"As it is now the link carries at most {format_bandwidth(payload_now(link))} one way, at its best "
        f"{format_bandwidth(link.limit_bytes_per_second)}. {_why(short)}",
        advice=_advice(short, link),
    )


def link_evidence(link: Link) -> tuple[Quantity, ...]:
    """How a PCIe link is trained, and what it carries."""
    return (
        quantity("Generation now", link.generation_now, "count"),
        quantity("Generation at best", link.generation_max, "count"),
        quantity("Lanes now", link.width_now, "count"),
        quantity("Lanes at best", link.width_max, "count"),
        quantity("Payload limit now", payload_now(link), "bytes/second"),
        quantity("Payload limit at best", link.limit_bytes_per_second, "bytes/second"),
    )


def _why(short: Shortfall) -> str:
    if short.what == "lanes":
        return "An idle link lowers its generation to save power, not its lanes."
    if short.severity == "warning":
        return "The GPU is busy, so this is not to save power."
    return (
        "An idle link lowers its generation to save power and raises it again under load, so this alone means nothing."
    )


def _advice(short: Shortfall, link: Link) -> str:
    if short.what == "lanes":
        return RESEAT + _SLOT
    if short.severity == "warning":
        return SLOT_ADVICE
    return (
        "Run 'pinscope run bandwidth': if large pinned copies stay near "
        f"{format_bandwidth(payload_now(link))} rather than {format_bandwidth(link.limit_bytes_per_second)}, "
        "look at the slot's generation in the firmware settings, risers and cables."
    )
