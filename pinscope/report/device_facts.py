"""How a GPU hangs on its host, in words."""

from __future__ import annotations

from collections.abc import Mapping

from pinscope.analysis.link_errors import KINDS
from pinscope.records.environment import Device, Iommu, LinkErrors
from pinscope.records.link import PACKET_PAYLOAD_BYTES
from pinscope.units import format_bytes

IOMMU_WORDS: Mapping[Iommu, str] = {
    "off": "none in this system's sight",
    "passthrough": "passes addresses through",
    "translating": "translates each address",
}


def bus_facts(device: Device) -> list[tuple[str, str]]:
    """Packets, IOMMU, BAR1, persistence mode, link errors; without what a run of an older version lacks."""
    texts = {
        "Most data in a packet": _packet(device),
        "IOMMU": _or_why(IOMMU_WORDS.get(device.iommu) if device.iommu else None, "iommu", device),
        "BAR1 (resizable BAR)": _or_why(_bar1(device), "bar1_bytes", device),
        "Persistence mode": _or_why(_switch(device.persistence_mode), "persistence_mode", device),
        "Link errors before the run" if device.link_errors_after else "Link errors": _errors(device.link_errors),
        "Link errors after the run": _errors(device.link_errors_after),
    }
    return [(name, text) for name, text in texts.items() if text is not None]


def _packet(device: Device) -> str | None:
    if device.link is None or device.link.kind != "pcie":
        return None
    if device.link.max_payload_bytes is not None:
        return f"{format_bytes(device.link.max_payload_bytes)}, as the GPU is set"
    reason = device.missing.get("link.max_payload_bytes")
    return f"{format_bytes(PACKET_PAYLOAD_BYTES)}, assumed" + (f" ({reason})" if reason else "")


def _bar1(device: Device) -> str | None:
    if device.bar1_bytes is None:
        return None
    whole = {True: ", covers all of the memory", False: ", covers a part of the memory", None: ""}
    return format_bytes(device.bar1_bytes) + whole[device.bar1_covers_memory]


def _errors(errors: LinkErrors | None) -> str | None:
    """Counts; kinds that are not known for the same reason share it."""
    if errors is None:
        return None
    counts = [
        f"{getattr(errors, kind):,} {words}" for kind, words in KINDS.items() if getattr(errors, kind) is not None
    ]
    unknown: dict[str, list[str]] = {}
    for kind, reason in errors.missing.items():
        unknown.setdefault(reason, []).append(KINDS[kind])
    return "; ".join([*counts, *(f"n/a: {', '.join(kinds)} ({reason})" for reason, kinds in unknown.items())])


def _switch(value: bool | None) -> str | None:
    return None if value is None else "on" if value else "off"


def _or_why(text: str | None, field: str, device: Device) -> str | None:
    if text is not None:
        return text
    return f"n/a ({device.missing[field]})" if field in device.missing else None
