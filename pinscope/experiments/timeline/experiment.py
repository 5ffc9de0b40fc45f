"""A live view that was kept: not an experiment, but read like one. `pinscope record` makes it."""

from __future__ import annotations

from pinscope.analysis.rules.growth import LEAK_RULE
from pinscope.experiments.contract import AnyKind, Inputs, parameter
from pinscope.experiments.timeline.reading import read_timeline
from pinscope.records.timeline_row import TimelineRow


class TimelineParams(Inputs):
    """How the machine was watched."""

    interval_seconds: float = parameter("Interval", "From one sample to the next.", 1.0, unit="seconds")
    for_seconds: float | None = parameter("Asked for", "How long to watch.", None, unit="seconds")
    pids: tuple[int, ...] = parameter("Only these processes", "By their ids.", ())
    probe: bool = parameter("Registered memory followed", "By uprobes on the driver's library; needs root.", False)


class Timeline:
    """Who held pinned memory over a stretch of time, and what it cost each GPU."""

    name = "timeline"
    title = "Timeline"
    question = "Who held pinned memory while this machine was watched, and what grew?"
    method = (
        "The machine was looked at in even steps from outside, as pinscope live shows it; nothing was run on it. "
        "Where registered memory was followed, each call of a program that pins or releases memory took up to some "
        "tens of microseconds longer; otherwise no process was disturbed. Pinned memory of the whole host is the "
        "kernel's own count of pages pinned for device access; cudaHostAlloc memory is each process's shared mappings "
        "of /dev/zero, counted once for the process that owns it. Driver memory (write-combined, cuMemCreate on the "
        "host, host pools) is what a process maps of /dev/nvidiactl beyond what a bare context does, and on the host "
        "what the kernel's accounts leave over. Locked memory is what mlock holds, which is not pinned for CUDA. "
        "Registered memory (cudaHostRegister) leaves no mark on a process: without the probe it is in the host's total "
        "only. Figures of GPUs are the driver's. Time goes on while the machine sleeps. "
        f"{LEAK_RULE}; pinned and locked memory are judged apart."
    )
    Params = TimelineParams
    Observation = TimelineRow

    read = staticmethod(read_timeline)
    """Headline, tables and findings from the rows alone."""


EXPERIMENT: AnyKind = Timeline()
"""As the registry finds it in each folder; this one cannot be run."""
