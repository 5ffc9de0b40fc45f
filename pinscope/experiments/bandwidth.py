"""How fast does each kind of host memory copy, and what does the call that starts the copy cost?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import product
from typing import Literal

from pydantic import Field

from pinscope.analysis.bandwidth_reading import read_bandwidth
from pinscope.experiments.contract import Params, Row, Several, Sizes
from pinscope.lab.harness import Clock, Harness
from pinscope.lab.protocol import Lab
from pinscope.records.budget import Budget
from pinscope.records.environment import Environment
from pinscope.records.finding import Reading
from pinscope.records.run import Direction, HostMemory, LabKind, Observation, Run
from pinscope.units import format_bytes, parse_bytes

OneWay = Literal["h2d", "d2h"]

MemoryChoice = Literal["pageable", "pinned", "write_combined", "mapped", "registered"]
CopierChoice = Literal["engine", "kernel"]

SIZES = "4KiB 16KiB 64KiB 256KiB 1MiB 4MiB 16MiB 64MiB 256MiB 512MiB 1GiB"
QUICK_SIZES = "4KiB 64KiB 1MiB 16MiB 256MiB"
HOST_SIZES = "4KiB 16KiB 64KiB 256KiB 1MiB 4MiB 16MiB 64MiB 256MiB"
HOST_QUICK_SIZES = "64KiB 1MiB 16MiB 64MiB"


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
                sizes=_sizes(HOST_QUICK_SIZES if quick else HOST_SIZES),
                memory=("pageable", "pinned", "registered"),
                directions=("h2d", "d2h", "bidirectional"),
                copiers=("engine",),
                precision=0.05 if quick else 0.02,
                repeats=30 if quick else 100,
                time_limit=0.3 if quick else 2.0,
            )
        return cls(
            sizes=_sizes(QUICK_SIZES if quick else SIZES),
            memory=("pageable", "pinned", "write_combined", "mapped", "registered"),
            directions=("h2d", "d2h", "bidirectional"),
            copiers=("engine", "kernel"),
            precision=0.02 if quick else 0.01,
            repeats=15 if quick else 60,
            time_limit=0.25 if quick else 2.0,
        )

    def smaller(self) -> BandwidthParams | None:
        return self.with_overrides({"sizes": self.sizes[:-1]}) if len(self.sizes) > 1 else None


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


class Flow:
    """One direction of a copy: its buffers, its stream and its events."""

    def __init__(self, stack: ExitStack, lab: Lab, direction: OneWay, memory: HostMemory, nbytes: int) -> None:
        self.lab = lab
        self.direction = direction
        self.whole_host = stack.enter_context(lab.host_buffer(nbytes, memory))
        self.whole_device = stack.enter_context(lab.device_buffer(nbytes))
        self.whole_spare = stack.enter_context(lab.device_buffer(nbytes))
        lab.fill(self.whole_spare, lab.fresh_pattern())
        self.stream = stack.enter_context(lab.stream())
        self.start = stack.enter_context(lab.event())
        self.end = stack.enter_context(lab.event())
        self.resize(nbytes)

    def resize(self, nbytes: int) -> None:
        """Copy ``nbytes`` bytes from now on."""
        self.host = self.whole_host.part(0, nbytes)
        self.device = self.whole_device.part(0, nbytes)
        self.spare = self.whole_spare.part(0, nbytes)

    def prepare(self) -> None:
        """Lay a fresh pattern into the source, so that only a complete copy can pass the check.

        The pattern reaches host memory by a copy from the device, and one more untimed copy follows. If processor
        cores write it, the source stays dirty in their caches, and a copy that has to fetch it from there is slower
        by up to a half: 31.9 instead of 54.8 GB/s at 16 MiB on an H200 host. Programs that fill a buffer on the
        processor right before they copy it see that cost too.
        """
        self._pattern = self.lab.fresh_pattern()
        if self.direction == "h2d":
            self.lab.fill(self.spare, self._pattern)
            self.lab.copy_to_host(self.host, self.spare, self.stream)
            self.lab.copy_to_device(self.spare, self.host, self.stream)
        else:
            self.lab.fill(self.device, self._pattern)
            self.lab.copy_to_host(self.host, self.spare, self.stream)
        self.stream.synchronize()

    def copy(self, copier: CopierChoice) -> None:
        """Queue the copy."""
        if self.direction == "h2d":
            self.lab.copy_to_device(self.device, self.host, self.stream, copier)
        else:
            self.lab.copy_to_host(self.host, self.device, self.stream, copier)

    def wrong_words(self) -> int:
        """Words of the target that did not arrive."""
        return self.lab.wrong_words(self.device if self.direction == "h2d" else self.host, self._pattern)


def time_together(flows: Sequence[Flow], copier: CopierChoice, clock: Clock) -> tuple[float, float]:
    """Run the flows side by side; (wall seconds, seconds that the copy calls kept the CPU).

    On one device the second flow waits for the first one's start event, so that both begin together.
    """
    for flow in flows:
        flow.prepare()
    first = flows[0]
    issue = 0.0
    begun = clock()
    for flow in flows:
        if flow is not first and flow.lab is first.lab:
            flow.lab.wait(flow.stream, first.start)
        flow.start.record(flow.stream)
        called = clock()
        flow.copy(copier)
        issue += clock() - called
        flow.end.record(flow.stream)
    for flow in flows:
        flow.stream.synchronize()
    return clock() - begun, issue


@dataclass(frozen=True)
class Combination:
    """Labels of one row of the experiment."""

    memory: HostMemory
    direction: Direction
    copier: CopierChoice
    bytes: int
    devices: int = 1


class Bandwidth:
    """Host memory kind × direction × size × copier, every copy checked."""

    name = "bandwidth"
    title = "Bandwidth"
    question = "How fast does each kind of host memory copy, and from which size does pinning pay?"
    method = (
        "Each combination of memory kind, direction, size and copier is warmed up, then copied until the median "
        "is known to the precision asked for or a limit is reached; every raw value is kept. Device time is taken "
        "by device events around the copy, wall time by the host clock until the copy has completed, and issue "
        "time around the call alone. Before each copy a fresh random pattern is laid into the source by way of the "
        "device, so that no processor cache holds it; after it the target is compared word by word. Both directions "
        "at once are issued by one thread on two streams: copies from pageable memory hold that thread, so they "
        "cannot run at once."
    )
    labs: Mapping[LabKind, str | None] = {"cuda": None, "host": None}
    Params = BandwidthParams
    Observation = BandwidthObservation

    def budget(self, params: BandwidthParams, environment: Environment) -> Budget:
        """One kind of memory is held at a time: its largest size, twice if both directions run at once."""
        largest = max(params.sizes)
        flows = 2 if "bidirectional" in params.directions else 1
        everywhere = len(environment.devices) if params.all_devices and len(environment.devices) > 1 else 1
        pinned = {"pinned", "write_combined", "mapped", "registered"} & set(params.memory)
        combinations = len(params.memory) * len(params.directions) * len(params.copiers)
        # A copy is preceded and followed by laying and checking its pattern, at about 4 GB/s together.
        per_combination = sum(
            min(params.time_limit * 1.5, params.repeats * (size / 4e9 + 1e-4)) for size in params.sizes
        )
        return Budget(
            pinned_bytes=largest * max(flows, everywhere) if pinned else 0,
            pageable_bytes=largest * flows if "pageable" in params.memory else 0,
            device_bytes=largest * flows * 2,
            seconds=combinations * per_combination + 3.0,
        )

    def measure(self, params: BandwidthParams, lab: Lab, harness: Harness) -> Iterator[BandwidthObservation]:
        """Every combination in turn, then all GPUs at once where there are several."""
        kinds = [
            (memory, tuple(copier for copier in params.copiers if self._possible(lab, memory, copier, harness)))
            for memory in params.memory
        ]
        total = sum(len(copiers) for _, copiers in kinds) * len(params.directions) * len(params.sizes)
        done = 0
        for memory, copiers in kinds:
            if not copiers:
                continue
            with ExitStack() as stack:
                flows = self._flows(stack, lab, memory, params)
                for copier, direction, size in product(copiers, params.directions, params.sizes):
                    harness.progress(done / total, f"{memory} {direction} {format_bytes(size)} by {copier}")
                    chosen = [flow for flow in flows if direction in ("bidirectional", flow.direction)]
                    combination = Combination(memory, direction, copier, size)
                    yield from self._combination(params, harness, chosen, combination)
                    done += 1
        if params.all_devices and len(lab.peers()) > 1 and "pinned" in params.memory:
            yield from self._everywhere(params, lab, harness)
        harness.progress(1.0, "done")

    def _possible(self, lab: Lab, memory: HostMemory, copier: CopierChoice, harness: Harness) -> bool:
        reason = lab.why_not(memory, copier)
        if reason:
            harness.note(f"Left out: {memory} memory by {copier}. {reason}")
        return reason is None

    def _flows(self, stack: ExitStack, lab: Lab, memory: HostMemory, params: BandwidthParams) -> list[Flow]:
        both: tuple[OneWay, OneWay] = ("h2d", "d2h")
        ways = [way for way in both if way in params.directions or "bidirectional" in params.directions]
        return [Flow(stack, lab, way, memory, max(params.sizes)) for way in ways]

    def _combination(
        self,
        params: BandwidthParams,
        harness: Harness,
        flows: Sequence[Flow],
        combination: Combination,
    ) -> Iterator[BandwidthObservation]:
        """Repeats of one combination: one observation a repeat, one per device if several copy at once."""
        counted: list[float] = []
        for flow in flows:
            flow.resize(combination.bytes)
        for turn in harness.turns(params.harness_precision(), counted):
            wall, issue = time_together(flows, combination.copier, harness.clock)
            longest = 0.0
            for group in ([flow for flow in flows if flow.lab.device == device] for device in _devices(flows)):
                own = {flow.direction: flow.lab.elapsed(flow.start, flow.end) for flow in group}
                seconds = max(flow.lab.elapsed(group[0].start, flow.end) for flow in group)
                longest = max(longest, seconds)
                yield BandwidthObservation(
                    repeat=turn.repeat,
                    warmup=turn.warmup,
                    **asdict(combination),
                    device=group[0].lab.device,
                    device_seconds=seconds,
                    wall_seconds=wall,
                    issue_seconds=issue,
                    h2d_seconds=own.get("h2d"),
                    d2h_seconds=own.get("d2h"),
                    wrong_words=sum(flow.wrong_words() for flow in group),
                )
            if not turn.warmup:
                counted.append(longest)

    def _everywhere(self, params: BandwidthParams, lab: Lab, harness: Harness) -> Iterator[BandwidthObservation]:
        """Each other GPU alone, then all of them together, at the largest size from pinned memory."""
        size = max(params.sizes)
        both: tuple[OneWay, OneWay] = ("h2d", "d2h")
        for way in (way for way in both if way in params.directions):
            with ExitStack() as stack:
                labs = [lab if index == lab.device else stack.enter_context(lab.peer(index)) for index in lab.peers()]
                flows = [Flow(stack, one, way, "pinned", size) for one in labs]
                for flow in flows:
                    if flow.lab is not lab:
                        harness.progress(0.97, f"GPU {flow.lab.device} alone, {way}")
                        yield from self._combination(
                            params, harness, [flow], Combination("pinned", way, "engine", size)
                        )
                harness.progress(0.98, f"{len(flows)} GPUs at once, {way}")
                together = Combination("pinned", way, "engine", size, devices=len(flows))
                yield from self._combination(params, harness, flows, together)

    def read(self, run: Run, rows: Sequence[Row]) -> Reading:
        """Headline figures, the fit, the comparison with the published table, and findings."""
        return read_bandwidth(run, rows)


def _devices(flows: Sequence[Flow]) -> list[int]:
    return sorted({flow.lab.device for flow in flows})
