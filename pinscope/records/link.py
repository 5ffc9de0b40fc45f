"""What the specifications say a host link carries: PCI Express by generation and width, NVLink-C2C by product.

Bytes/second, one direction. :mod:`pinscope.analysis.link_model` explains the formulas.
"""

from __future__ import annotations

from collections.abc import Mapping

from pinscope.records.base import Record

PACKET_PAYLOAD_BYTES = 256
"""Data in one packet (Max_Payload_Size) that the payload limit assumes where it cannot be read: what GPUs and root
ports commonly agree on."""


class PcieGeneration(Record):
    """One generation of PCI Express."""

    number: int
    transfers_per_second: float
    """Per lane; one transfer carries one bit."""
    coding: tuple[int, int]
    """(bits or bytes that carry packets, those on the wire): 8b/10b, 128b/130b, or 242 of 256 bytes of a FLIT."""
    transaction_share: float
    """Share of the coded bytes that transaction layer packets (TLPs) may use: 1 before FLIT mode, 236/242 in it."""
    packet_overhead_bytes: int
    """What a TLP carries beside its data: framing, sequence number, header, checksum."""

    def raw_bytes_per_second(self, width: int) -> float:
        """The link after line coding, before packets."""
        useful, wire = self.coding
        return width * self.transfers_per_second / 8 * useful / wire

    def payload_bytes_per_second(self, width: int, payload_bytes: int | None = None) -> float:
        """The link after packet overhead, with so much data in a packet (by default what is assumed)."""
        payload = payload_bytes or PACKET_PAYLOAD_BYTES
        packet = payload + self.packet_overhead_bytes
        return self.raw_bytes_per_second(width) * self.transaction_share * payload / packet


PCIE: Mapping[int, PcieGeneration] = {
    number: PcieGeneration(
        number=number,
        transfers_per_second=speed,
        coding=coding,
        transaction_share=share,
        packet_overhead_bytes=overhead,
    )
    for number, speed, coding, share, overhead in (
        # 24 bytes up to generation 5: a 4-doubleword header (16), LCRC (4), and 4 for framing and sequence number
        # (STP 1 + sequence 2 + END 1 up to generation 2, an STP token that holds the sequence from generation 3).
        (1, 2.5e9, (8, 10), 1.0, 24),
        (2, 5e9, (8, 10), 1.0, 24),
        (3, 8e9, (128, 130), 1.0, 24),
        (4, 16e9, (128, 130), 1.0, 24),
        (5, 32e9, (128, 130), 1.0, 24),
        # A FLIT is 256 bytes: 236 for TLPs, 6 for the data link layer, 8 CRC, 6 error correction. Framing, sequence
        # number and LCRC are gone, so a TLP has its 16-byte header alone.
        (6, 64e9, (242, 256), 236 / 242, 16),
    )
}
"""Generations that a GPU's host link can have, by number."""

PCIE_WIDTHS = (1, 2, 4, 8, 12, 16, 32)
"""Lanes that a link can have."""

NVLINK_C2C: Mapping[str, float] = {"GH200": 450e9, "GB200": 450e9}
"""Word in the GPU's name → bytes/second in one direction. NVIDIA publishes 900 GB/s for both directions together
of the link between a Grace CPU and its GPUs (Grace Hopper and Grace Blackwell Superchip data sheets)."""


def c2c_bytes_per_second(name: str) -> float | None:
    """Published NVLink-C2C bandwidth, one direction, of the GPU called ``name``; ``None`` for other GPUs."""
    return next((rate for word, rate in NVLINK_C2C.items() if word in name.upper()), None)
