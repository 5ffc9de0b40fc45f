"""How fast does each kind of host memory copy, and what does the call that starts the copy cost?"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pinscope.experiments.contract import Params, Several, Sizes
from pinscope.records.run import Direction, HostMemory, LabKind, Observation
from pinscope.units import parse_bytes

MemoryChoice = Literal["pageable", "pinned", "write_combined", "mapped", "registered"]
CopierChoice = Literal["engine", "kernel"]


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(parse_bytes(size) for size in text.split())


class BandwidthParams(Params):
    """What to copy, how, and how often."""

    sizes: Sizes = Field(
        title="Copy sizes", json_schema_extra={"unit": "bytes"},
        description="One copy moves this much; several sizes by comma, such as 4KiB,1MiB,1GiB.",
    )  # fmt: skip
    memory: Several[MemoryChoice] = Field(
        title="Host memory",
        description="Kinds of host memory to copy from and to.",
    )
    directions: Several[Direction] = Field(
        title="Directions",
        description="Host to device, device to host, or both at once.",
    )
    copiers: Several[CopierChoice] = Field(
        title="Copied by",
        description="A copy engine, or a kernel that reads and writes host memory through its mapping.",
    )
    all_devices: bool = Field(
        True, title="All GPUs at once",
        description="With several GPUs, also copy on all of them at once, to show a shared uplink.",
    )  # fmt: skip

    @classmethod
    def preset(cls, lab: LabKind, quick: bool) -> BandwidthParams:
        if lab == "host":
            return cls(
                sizes=_sizes("64KiB 1MiB 16MiB 64MiB" if quick else "4KiB 16KiB 64KiB 256KiB 1MiB 4MiB 16MiB 64MiB 256MiB"), memory=("pageable", "pinned", "registered"),
                directions=("h2d", "d2h", "bidirectional"), copiers=("engine",),
                precision=0.05 if quick else 0.02, repeats=30 if quick else 100,
                time_limit=0.3 if quick else 2.0,
            )  # fmt: skip
        full = "4KiB 16KiB 64KiB 256KiB 1MiB 4MiB 16MiB 64MiB 256MiB 512MiB 1GiB"
        return cls(
            sizes=_sizes("4KiB 64KiB 1MiB 16MiB 256MiB" if quick else full),
            memory=("pageable", "pinned", "write_combined", "mapped", "registered"),
            directions=("h2d", "d2h", "bidirectional"), copiers=("engine", "kernel"),
            precision=0.02 if quick else 0.01, repeats=15 if quick else 60,
            time_limit=0.25 if quick else 2.0,
        )  # fmt: skip


class BandwidthObservation(Observation):
    """One copy (bidirectional: one copy each way at the same time), timed three ways."""

    memory: HostMemory
    direction: Direction
    copier: CopierChoice
    bytes: int
    """Moved in each direction."""
    device: int
    devices: int
    """How many GPUs copied at the same time."""
    device_seconds: float
    """From the start of the first copy to the end of the last, by device events."""
    wall_seconds: float
    """From before the call to after the synchronisation, by the host clock."""
    issue_seconds: float
    """How long the calls that start the copy (both, if bidirectional) kept the CPU."""
    h2d_seconds: float | None
    """By device events; ``None`` if nothing went that way."""
    d2h_seconds: float | None
    wrong_words: int
    """8-byte words that did not arrive, checked outside the timed part against a fresh random pattern."""
