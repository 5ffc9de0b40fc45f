"""A timeline is a live view that was kept; `pinscope record` makes it."""

from __future__ import annotations

from pinscope.analysis.kind import Kind
from pinscope.records.parameters import Inputs, parameter
from pinscope.records.timeline import TimelineRow


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
    Params = TimelineParams
    Observation = TimelineRow


KIND: Kind = Timeline()
