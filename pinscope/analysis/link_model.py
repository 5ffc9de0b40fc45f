"""What a host link can carry at most, one direction, from its generation and width.

PCI Express (transfers per second and lane, coding and packet formats of the PCI Express Base Specification)::

    raw     = lanes × transfers/s ÷ 8 × coding          8b/10b up to generation 2, 128b/130b for 3 to 5,
                                                        242 of 256 FLIT bytes for 6
    payload = raw × packet ÷ (packet + overhead)        for packets of so many bytes of data

``packet`` is the GPU's Max_Payload_Size where its configuration space tells it, else 256 bytes.

``overhead`` is 24 bytes up to generation 5: a 16-byte header (64-bit addresses), 4 bytes LCRC, and 4 bytes framing
and sequence number; 6 of the "5 to 7 doublewords" of Intel AN 708, "Understanding PCI Express Throughput". In a
generation 6 FLIT, 236 of the 242 bytes belong to transaction packets, whose overhead is the 16-byte header alone.

Acknowledgements, flow control and clock compensation are left out: they depend on the traffic and take a few per
cent more, and so even a perfect copy stays somewhat below the payload limit. A generation 5 link of 16 lanes has
63.0 GB/s raw and, in packets of 256 bytes, 57.6 GB/s payload; an H200 copies 55.5 GB/s over it (96 %).

NVLink-C2C publishes no packet format: raw and payload are both the published figure.
"""

from __future__ import annotations

from pinscope.records.environment import Link
from pinscope.records.link import PACKET_PAYLOAD_BYTES, PCIE
from pinscope.records.run import Run


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
