"""What does it take for copies to run beside kernels, and which ingredient is missing when they do not?"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pinscope.experiments.contract import Bytes, Params, Several
from pinscope.records.run import LabKind, Observation
from pinscope.units import parse_bytes

Balance = Literal["copy_bound", "balanced", "compute_bound"]
OneWay = Literal["h2d", "d2h"]
MemoryChoice = Literal["pageable", "pinned"]


class OverlapParams(Params):
    """The pipeline, and which combinations of the recipe's ingredients to run."""

    chunk: Bytes = Field(
        title="Chunk", json_schema_extra={"unit": "bytes"},
        description="Bytes that one copy of the pipeline moves.",
    )  # fmt: skip
    chunks: int = Field(
        ge=4, le=4096, title="Chunks", json_schema_extra={"unit": "count"},
        description="Copies and kernels in one pipeline.",
    )  # fmt: skip
    directions: Several[OneWay] = Field(
        title="Directions", description="Feed kernels (h2d) or drain their results (d2h)."
    )
    balance: Several[Balance] = Field(
        title="Balance", description="Kernels half as long as a pinned copy, as long, or twice as long."
    )
    combinations: Literal["leave_one_out", "all"] = Field(
        title="Combinations",
        description="The full recipe and each ingredient left out in turn, or every combination.",
    )
    depths: Several[Literal["1", "2", "4", "8"]] = Field(
        title="Ring depths", description="Device buffers in the ring: 1 is no double buffering, 2 is the recipe."
    )

    @classmethod
    def preset(cls, lab: LabKind, quick: bool) -> OverlapParams:
        chunk = ("4MiB" if quick else "8MiB") if lab == "host" else ("16MiB" if quick else "32MiB")
        return cls(
            chunk=parse_bytes(chunk), chunks=16 if lab == "host" else 64,
            directions=("h2d", "d2h"),
            balance=("balanced",) if quick else ("copy_bound", "balanced", "compute_bound"),
            combinations="leave_one_out" if quick else "all",
            depths=("1", "2") if quick else ("1", "2", "4", "8"),
            precision=0.05 if lab == "host" else 0.01,
            repeats=7 if quick else 15, time_limit=1.0 if quick else 4.0,
        )  # fmt: skip


class OverlapObservation(Observation):
    """Either one pass of a pipeline (``kind`` = pass) or one kernel or copy inside it (``kind`` = span)."""

    kind: Literal["pass", "span"]
    direction: OneWay
    balance: Balance
    memory: MemoryChoice
    separate_stream: bool
    """Copies on a stream of their own."""
    depth: int
    """Device buffers in the ring."""
    events: bool
    """Events order copies and kernels across the two streams."""
    bytes: int
    """One chunk."""
    chunks: int
    # One pass:
    device_seconds: float | None = None
    """From the first kernel's or copy's start to the last one's end, by device events."""
    wall_seconds: float | None = None
    issue_seconds: float | None = None
    """Time that the copy calls of the pass kept the CPU, together."""
    stall_seconds: float | None = None
    """Time that the compute stream stood idle between its first and its last kernel."""
    copy_alone_seconds: float | None = None
    """The same copies with nothing beside them (median)."""
    compute_alone_seconds: float | None = None
    """The same kernels with nothing beside them (median)."""
    corrupted_chunks: int | None = None
    """Chunks that a kernel (h2d) or the host (d2h) found wrong."""
    # One span:
    lane: Literal["copy", "compute"] | None = None
    chunk: int | None = None
    start_seconds: float | None = None
    """Since the pass began."""
    end_seconds: float | None = None
