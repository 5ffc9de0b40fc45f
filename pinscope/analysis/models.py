"""Models: what a link carries, as it is trained and at its best, and how much memory a page table takes."""

from __future__ import annotations

from collections.abc import Mapping

from pinscope.analysis.rules import link_shortfall
from pinscope.records.environment import PACKET_PAYLOAD_BYTES, PCIE, Device, Environment, Link
from pinscope.records.run import Finding, Quantity, Run, finding, quantity
from pinscope.units import format_bandwidth


def payload_now(link: Link) -> float | None:
    """Payload limit of a PCIe link as it is trained at the moment, bytes/second; ``None`` where that is unknown."""
    if link.generation_now is None or link.width_now is None:
        return None
    rates = PCIE.get(link.generation_now)
    return rates.payload_bytes_per_second(link.width_now, link.max_payload_bytes) if rates is not None else None


def packet_words(link: Link) -> str:
    """What a PCIe link's payload limit counts with, as it follows the limit; empty where no packet format is known."""
    if link.kind != "pcie":
        return ""
    read = link.max_payload_bytes
    return f" in packets of {read or PACKET_PAYLOAD_BYTES} bytes" + ("" if read else " (assumed)")


def link_limit(run: Run) -> float | None:
    """Payload limit of the GPU's link in one direction, bytes/second; ``None`` without a GPU or where unknown."""
    return run.gpu.link.limit_bytes_per_second if run.gpu and run.gpu.link else None


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
    risen = {}
    for kind in KINDS if before and after else ():
        first, last = getattr(before, kind), getattr(after, kind)
        if first is not None and last is not None and last > first:
            risen[kind] = last - first
    return risen


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


RESEAT = "Reseat the GPU, check risers and cables, and see in the firmware settings "
SLOT_SETTINGS = RESEAT + "which generation the slot is allowed and whether it shares its lanes."
_SAVES = "An idle link lowers its generation to save power"
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
    now, best = payload_now(link), link.limit_bytes_per_second
    why, advice = {
        ("lanes", "warning"): (
            f"{_SAVES}, not its lanes.",
            f"{RESEAT}whether the slot shares its lanes with another one.",
        ),
        ("generation", "warning"): ("The GPU is busy, so this is not to save power.", SLOT_ADVICE),
        ("generation", "note"): (
            f"{_SAVES} and raises it again under load, so this alone means nothing.",
            f"Run 'pinscope run bandwidth': if large pinned copies stay near {format_bandwidth(now)} rather than "
            f"{format_bandwidth(best)}, look at the slot's generation in the firmware settings, risers and cables.",
        ),
    }[short.what, short.severity]
    return finding(
        short.severity,
        "link-below-best",
        *link_evidence(link),
        title=f"GPU {index}: only {link.width_now} of {link.width_max} PCIe lanes are in use"
        if short.what == "lanes"
        else f"GPU {index}: the PCIe link is at generation {link.generation_now}, its best is {link.generation_max}",
        detail=f"As it is now the link carries at most {format_bandwidth(now)} one way, at its best "
        f"{format_bandwidth(best)}. {why}",
        advice=advice,
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


ENTRY_BYTES = 8
GPU_PAGE_SIZES = (4 * 2**10, 64 * 2**10, 2 * 2**20)
"""Pages that a GPU can map host memory in."""
UPPER_LEVELS = 1 / 256
"""What the directories above add at most, as a share of the entries: 16 bytes for each 4 KiB table (dev_mmu.h of
NVIDIA's open kernel module, NV_MMU_VER2_DUAL_PDE__SIZE). Measured so on an H200: 2 MiB for every 1020 MiB pinned in
4 KiB pages, not for every 1024."""
GRANULE_BYTES = 2 * 2**20
"""GPU memory for page tables is taken in steps of this size."""
FIRST_CONTEXT_BYTES = 3_407_872
CONTEXT_BYTES = 3_735_552
"""What the driver takes for contexts and charges to no process: once on a GPU, and for each. Measured on H200s with
driver 580.159, to 64 KiB: with one to four C programs, with PyTorch, and with ten programs of all kinds."""


def page_table_bytes(mapped_bytes: int, page_bytes: int) -> int:
    """Bytes of page-table entries that map ``mapped_bytes`` in pages of ``page_bytes``."""
    return -(-mapped_bytes // page_bytes) * ENTRY_BYTES


def page_table_memory_bytes(mapped_bytes: int, page_bytes: int) -> int:
    """GPU memory that the page table of ``mapped_bytes`` takes, in the driver's steps (measured on an H200)."""
    return -(-page_table_bytes(mapped_bytes, page_bytes) // GRANULE_BYTES) * GRANULE_BYTES


def context_overhead_bytes(contexts: int) -> int:
    """GPU memory of that many contexts on one GPU that no process is charged for, as on H200s."""
    return FIRST_CONTEXT_BYTES + contexts * CONTEXT_BYTES if contexts else 0
