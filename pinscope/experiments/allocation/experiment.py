"""What does it cost to allocate and free a pinned buffer, and how many copies repay that?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from pinscope.experiments.allocation.ways import WAYS, WayName, least_bytes, source, why_no_page_faults, why_not_way
from pinscope.experiments.contract import AnyExperiment, Case, Params, Progress
from pinscope.lab.backing import why_not_backing
from pinscope.lab.harness import Harness, Precision
from pinscope.lab.protocol import Lab
from pinscope.records.environment import Environment
from pinscope.records.parameters import Several, Sizes, parameter, sizes
from pinscope.records.run import Backing, HostMemory, LabKind, Lasted, Observation, OneWay, Positive
from pinscope.units import format_bytes

Part = WayName | Literal["copies"]
LEAST = 3
PACE = 4e9
"""Bytes/second at which memory is got and freed on average, for the estimate of a run's length."""
SHARE_OF_TIME = 0.45
"""Of the time that all ways would take at this pace: pools and malloc take none, and many stop early (an H200)."""
COPIED: tuple[Backing | None, ...] = ("4k", "thp", None)
"""What copies are timed from and to: pageable memory in small and in huge pages, and pinned memory."""


def _ways(lab: LabKind, quick: bool) -> Any:
    """Names of the ways that a run takes; a quick one leaves out those that are rarer."""
    return tuple(
        name
        for name, way in WAYS.items()
        if (not quick or "quick" in way.kinds) and (lab == "cuda" or "host" in way.kinds)
    )


class AllocationParams(Params):
    """Which buffers to get, and how."""

    sizes: Sizes = parameter(
        "Buffer sizes",
        "Sizes of the buffers. Each is allocated and freed again and again, and copies of its size are timed.",
    )
    ways: Several[WayName] = parameter(
        "Ways to get a buffer", f"{'; '.join(f'{name}: {way.help}' for name, way in WAYS.items())}."
    )
    directions: Several[OneWay] = parameter(
        "Directions",
        "Copies that are timed, to find how many of them repay the time to pin a buffer: host to device "
        "(h2d) or device to host (d2h).",
    )

    @classmethod
    def preset(cls, lab: LabKind, quick: bool) -> AllocationParams:
        if lab == "host":
            chosen = "64KiB 1MiB 16MiB" if quick else "4KiB 64KiB 1MiB 16MiB 64MiB 256MiB"
        else:
            chosen = "64KiB 4MiB 64MiB" if quick else "4KiB 64KiB 1MiB 16MiB 256MiB 1GiB"
        return cls(
            sizes=sizes(chosen),
            ways=_ways(lab, quick),
            directions=("h2d", "d2h"),
            precision=0.05,
            repeats=15 if quick else 30,
            time_limit=1.0 if not quick else 0.4 if lab == "cuda" else 0.2,
        )

    def harness_precision(self) -> Precision:
        """Few repeats are enough: a buffer of many GiB takes seconds each time."""
        return Precision(relative=self.precision, least=LEAST, most=self.repeats, seconds=self.time_limit, warmups=1)

    def smaller(self) -> AllocationParams | None:
        """Without the largest size."""
        return self.with_overrides({"sizes": self.sizes[:-1]}) if len(self.sizes) > 1 else None


BUFFER_VALUES = ("way", "get_seconds", "give_back_seconds")
COPY_VALUES = ("memory", "direction", "wall_seconds")


class AllocationObservation(Observation):
    """One buffer got and given back, or one copy from or to one (``kind``)."""

    kind: Literal["buffer", "copy"]
    """``buffer`` (got and given back) or ``copy``."""
    bytes: Positive
    """Size of the buffer or the copy."""
    # One buffer:
    way: WayName | None = None
    """How the buffer was got, such as ``fresh_4k``, ``pinned``, ``registered_thp`` or ``cupy_pool``."""
    get_seconds: Lasted | None = None
    """Until the buffer was there, touched and pinned as its way says."""
    touch_seconds: float | None = None
    """Of that: writing to every page, by one thread."""
    register_seconds: float | None = None
    """Of that: pinning memory that was there already."""
    unregister_seconds: float | None = None
    """Unpinning memory that stays, before it was given back."""
    give_back_seconds: Lasted | None = None
    """Until it was gone, unregistering included."""
    page_faults: int | None = None
    """Of the measuring process while it got the buffer; ``None`` where the kernel does not count them."""
    # One copy:
    memory: HostMemory | None = None
    """Kind of the host memory."""
    backing: Backing | None = None
    """Pages under pageable memory."""
    direction: OneWay | None = None
    """``h2d`` (host to device) or ``d2h``."""
    wall_seconds: float | None = None
    """From before the call until the copy was complete, by the host clock."""

    def needs(self) -> tuple[str, Iterable[str]]:
        """A buffer has its way and times, a copy its kind, direction and time."""
        return f"a {self.kind}", {"buffer": BUFFER_VALUES, "copy": COPY_VALUES}.get(self.kind, ())


class Allocation:
    """Ways to get a buffer × size, and what copies of that size gain from pinning."""

    name = "allocation"
    title = "Allocation"
    summary = "Cost of a pinned buffer, and how many copies repay it"
    question = "What does it cost to allocate and free a pinned buffer, and how many copies repay that?"
    labs: Mapping[LabKind, str | None] = {"cuda": None, "host": None}
    Params = AllocationParams
    Observation = AllocationObservation
    start_seconds = 2.0

    def cases(self, params: AllocationParams, environment: Environment | None = None) -> list[Case[Part]]:
        """Every way with all sizes, one buffer at a time, but a pool keeps one of each; then the copies."""
        largest, every = max(params.sizes), sum(params.sizes)
        each = SHARE_OF_TIME * sum(
            min(params.repeats * (size / PACE + 1e-4), params.time_limit + 4 * size / PACE) for size in params.sizes
        )
        parts: dict[Part, int] = {way: every if "keeps" in WAYS[way].kinds else largest for way in params.ways}
        copies = len(COPIED) * len(params.directions)
        return [
            Case(
                part.replace("_", "-"),
                part,
                each * (copies if part == "copies" else 1),
                pinned_bytes=pinned,
                pageable_bytes=largest,
                device_bytes=largest,
            )
            for part, pinned in (parts | {"copies": largest}).items()
        ]

    def measure(self, params: AllocationParams, lab: Lab, harness: Harness) -> Iterator[AllocationObservation]:
        """Every way with every size, then the copies."""
        if uncounted := why_no_page_faults():
            harness.note(f"Not known: page faults, and so whether fresh memory was fresh. {uncounted}.")
        for part in Progress(self.cases(params), harness):
            if part == "copies":
                for backing in COPIED:
                    if backing and (reason := why_not_backing(backing)):
                        harness.note(f"Left out: copies from pageable memory in huge pages. {reason}")
                    else:
                        yield from self._copies(params, lab, harness, backing)
            elif fitting := self._fitting(part, params, lab, harness):
                with source(lab, part) as once:
                    for size in fitting:
                        for turn in harness.turns(params.harness_precision()):
                            times = once(size, harness.clock)
                            turn.count(times.get_seconds + times.give_back_seconds)
                            yield AllocationObservation(
                                kind="buffer",
                                **turn.labels,
                                bytes=size,
                                way=part,
                                **vars(times) | ({"page_faults": None} if uncounted else {}),
                            )

    def _fitting(self, way: WayName, params: AllocationParams, lab: Lab, harness: Harness) -> list[int]:
        """The sizes of which this machine gives buffers this way; the others are noted."""
        name, least = way.replace("_", "-"), least_bytes(way)
        if small := [size for size in params.sizes if size < least]:
            harness.note(f"Left out: {name}, up to {format_bytes(small[-1])}. A page is {format_bytes(least)}.")
        fitting: list[int] = []
        for size in params.sizes[len(small) :]:
            if reason := why_not_way(lab, way, size):
                harness.note(f"Left out: {name}, {format_bytes(size)}. {reason}")
                break  # larger ones cannot be had either
            fitting.append(size)
        return fitting

    def _copies(
        self, params: AllocationParams, lab: Lab, harness: Harness, backing: Backing | None
    ) -> Iterator[AllocationObservation]:
        """Copies of every size, complete, from or to pageable memory in pages of one sort; ``None``: pinned memory."""
        largest = max(params.sizes)
        memory: HostMemory = "pageable" if backing else "pinned"
        place = lab.ordinary_memory(largest, backing) if backing else lab.host_buffer(largest, memory)
        with place as host, lab.device_buffer(largest) as device, lab.stream() as stream:
            lab.copy_to_host(host, device, stream)
            for size in params.sizes:
                for direction in params.directions:
                    there, here = device.part(0, size), host.part(0, size)
                    for turn in harness.turns(params.harness_precision()):
                        begun = harness.clock()
                        if direction == "h2d":
                            lab.copy_to_device(there, here, stream)
                        else:
                            lab.copy_to_host(here, there, stream)
                        stream.synchronize()
                        seconds = harness.clock() - begun
                        turn.count(seconds)
                        yield AllocationObservation(
                            kind="copy",
                            **turn.labels,
                            bytes=size,
                            memory=memory,
                            backing=backing,
                            direction=direction,
                            wall_seconds=seconds,
                        )


EXPERIMENT: AnyExperiment = Allocation()
