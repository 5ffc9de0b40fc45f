"""One execution of an experiment, or one live view that was kept. Raw values are kept; statistics are derived."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pinscope.records.base import Moment, Record
from pinscope.records.budget import Budget
from pinscope.records.environment import Environment

FORMAT = 1
"""Version of the run format, in bundles and JSON. Additive changes keep it."""

LabKind = Literal["cuda", "host", "live"]
"""Where experiments run: on a GPU or on the host model. ``live``: nothing was run, the machine was watched."""
Status = Literal["running", "done", "failed", "cancelled", "interrupted"]
HostMemory = Literal["pageable", "pinned", "write_combined", "mapped", "registered", "managed"]
Backing = Literal["4k", "thp", "hugetlb", "shm"]
Cache = Literal["cold", "warm"]
"""Whether the processor's caches may hold the memory: it wrote it right before, or not since it left them."""
Direction = Literal["h2d", "d2h", "bidirectional"]

LAB_TITLES: Mapping[LabKind, str] = {"cuda": "GPU (CUDA)", "host": "host model (no GPU)", "live": "live view"}
"""How a lab is named wherever it is shown."""

HOST_MODEL_NOTE = (
    "The host model copies real bytes between host buffers by the mechanism a GPU driver uses. "
    "Its figures describe this machine's memory, not a GPU; never compare them with a GPU run."
)


class Observation(Record):
    """One raw reading. Experiments subclass it: labels first, then values with the unit in the name."""

    repeat: int
    """0, 1, 2 … within one combination of labels."""
    warmup: bool
    """True for readings taken before the measurement proper; kept, never counted."""
    host_node: int | None = None
    """NUMA node on which the run's host buffers lay; ``None`` where the kernel does not tell, or on several."""
    host_nodes: str | None = None
    """These, by comma, where there were several."""


class Process(Record):
    """A process, told apart from later ones that got the same pid."""

    pid: int
    """Its number in that namespace."""
    started: float
    """Start time in clock ticks since boot (field 22 of /proc/PID/stat)."""
    boot_id: str
    """/proc/sys/kernel/random/boot_id of the boot it belongs to."""
    namespace: str | None = None
    """The pid namespace in which it has this pid (containers have their own); ``None`` if that is not told."""


class Progress(Record):
    """How far a run is."""

    fraction: float = 0.0
    """0 to 1."""
    message: str = ""
    """What it does now, one line."""
    waiting_for: str | None = None
    """Set while the run queues: what holds the GPU."""
    at: float | None = None
    """When the child said so: CLOCK_MONOTONIC of its machine, which containers share. Told every few seconds."""


class Run(Record):
    """One execution of an experiment."""

    id: str
    """Opaque and unique; a beginning that fits one run only will do on the command line."""
    experiment: str
    """Name of the experiment, or ``timeline`` of a live view."""
    lab: LabKind
    """``cuda`` (a GPU), ``host`` (the host model) or ``live`` (the machine was watched)."""
    device: int
    """GPU index; 0 on the host lab and in a live view."""
    status: Status
    """``interrupted``: the process that measured it ended before the run did."""
    quick: bool
    """Made with the preset of fewer sizes and repeats."""
    params: Mapping[str, Any]
    """The validated parameters, JSON-ready."""
    budget: Budget
    """What the run takes at most, worked out before it began."""
    environment: Environment
    """The machine on which it ran."""
    created_at: Moment
    """When it was started."""
    finished_at: Moment | None = None
    """When it ended; ``None`` while it runs."""
    error: str | None = None
    """Why it failed, one line."""
    notes: tuple[str, ...] = ()
    """What a reader must know: sizes left out, kinds not possible here and why."""
    progress: Progress = Progress()
    """How far it is."""
    process: Process | None = None
    """The process that measures, while it runs."""
    recording: bool = False
    """True for a run that ships with PinScope."""
    observations: int = 0
    """How many are stored."""
    format: int = FORMAT
    """Version of the run's format."""
