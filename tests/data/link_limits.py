"""What a PCI Express link carries by the specification, as tests compare with it."""

from __future__ import annotations

from pinscope.records.environment import PCIE


def pcie_limits(generation: int, width: int) -> tuple[float, float]:
    """(raw, payload) limit in bytes/second, one direction."""
    rates = PCIE[generation]
    return rates.raw_bytes_per_second(width), rates.payload_bytes_per_second(width)
