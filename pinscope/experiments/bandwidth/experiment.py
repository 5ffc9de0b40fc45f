"""How fast does each kind of host memory copy, and what does the call that starts the copy cost?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from itertools import groupby, product
from typing import Any, Literal, get_args

from pinscope.analysis.statistics import LEAST_VALUES
from pinscope.experiments.bandwidth.ways import (
    Flow,
    HostState,
    copies_in_a_row,
    counted_seconds,
    most_warm_bytes,
    time_copies,
    whole_seconds,
)
from pinscope.experiments.contract import AnyExperiment, Case, Params, Progress, Reason, possible
from pinscope.lab.backing import why_not_backing
from pinscope.lab.harness import Harness
from pinscope.lab.protocol import Lab
from pinscope.records.environment import Environment
from pinscope.records.parameters import Several, Sizes, parameter, sizes
from pinscope.records.run import ONE_WAYS, Backing, Cache, Direction, HostMemory, LabKind, Lasted, Observation, Positive
from pinscope.units import format_bytes

MemoryChoice = Literal["pageable", "pinned", "write_combined", "mapped", "registered"]
CopierChoice = Literal["engine", "kernel"]
PageableBacking = Literal["4k", "thp"]
PRESETS: Mapping[tuple[LabKind, bool], tuple[str, float, int, float]] = {
    ("cuda", False): ("4KiB 16KiB 64KiB 256KiB 1MiB 4MiB 16MiB 64MiB 256MiB 1GiB", 0.01, 60, 0.8),
    ("cuda", True): ("4KiB 64KiB 1MiB 16MiB 64MiB", 0.02, 15, 0.25),
    ("host", False): ("4KiB 16KiB 64KiB 256KiB 1MiB 4MiB 16MiB 64MiB 256MiB", 0.02, 100, 2.0),
    ("host", True): ("64KiB 1MiB 16MiB", 0.05, 30, 0.2),
}
"""Lab, and whether the run is quick → sizes, precision, repeats and time limit of a combination."""

CUDA_PACE, HOST_PACE = (4e-3, 5.5e9), (1e-2, 4.5e8)
"""What a repeat takes, and the bytes/second at which its pattern is laid, copied and checked, for the estimate of a
run's length: on an H100, and roughly on the host model with two slow processors."""
USUAL_REPEATS = 0.5
"""Share of the most repeats after which the median is known, for the same."""


class BandwidthParams(Params):
    """What to copy, how, and how often."""

    sizes: Sizes = parameter("Copy sizes", "Number of bytes that one copy moves.")
    memory: Several[MemoryChoice] = parameter("Host memory", "Kinds of host memory to copy from and to.")
    directions: Several[Direction] = parameter(
        "Directions", "Host to device (h2d), device to host (d2h), or both at once (bidirectional)."
    )
    copiers: Several[CopierChoice] = parameter(
        "Copied by",
        "A copy engine of the GPU, or a kernel that reads and writes host memory in place. A kernel "
        "reaches all kinds of pinned memory in the same way, so it is measured with only one: the first pinned kind "
        "in the list of the parameter memory.",
    )
    backings: Several[PageableBacking] = parameter(
        "Pages of pageable memory",
        "Pages under pageable memory: small ones (4k), as memory from malloc has them where transparent huge pages are "
        "set to madvise, or transparent huge pages (thp).",
    )
    caches: Several[Cache] = parameter(
        "Processor caches",
        "State of pageable memory before a copy. cold: the processor's caches do not hold it; warm: the processor has "
        "just written it.",
    )

    @classmethod
    def preset(cls, lab: LabKind, quick: bool) -> BandwidthParams:
        cuda = lab == "cuda"
        copied, precision, repeats, time_limit = PRESETS[lab, quick]
        return cls(
            sizes=sizes(copied),
            memory=get_args(MemoryChoice) if cuda else ("pageable", "pinned", "registered"),
            directions=("h2d", "d2h", "bidirectional"),
            copiers=("engine", "kernel") if cuda else ("engine",),
            backings=("4k", "thp") if cuda and not quick else ("4k",),
            caches=("warm",) if not cuda else ("cold",) if quick else ("cold", "warm"),
            precision=precision,
            repeats=repeats,
            time_limit=time_limit,
        )

    def smaller(self) -> BandwidthParams | None:
        return self.with_overrides({"sizes": self.sizes[:-1]}) if len(self.sizes) > 1 else None


class BandwidthObservation(Observation):
    """One combination once (bidirectional: one copy each way at the same time), timed as one copy and as many."""

    memory: HostMemory
    """Kind of the host memory."""
    backing: Backing | None = None
    """What stands under pageable and registered memory; ``None`` of other kinds."""
    cache: Cache | None = None
    """Whether the processor's caches may hold the memory; ``None``: content came from the device, past them."""
    direction: Direction
    """``h2d`` (host to device), ``d2h`` or ``bidirectional``."""
    copier: CopierChoice
    """``engine`` (a copy engine of the GPU) or ``kernel``."""
    bytes: Positive
    """Moved in each direction by one copy."""
    device: int
    """Index of the GPU."""
    devices: Positive
    """How many GPUs copied at the same time: one, but in older runs, which measured what ``topology`` does now."""
    device_seconds: Lasted
    """One copy from an idle stream, by device events; without the call, but for pageable memory, where it copies."""
    one_more_seconds: Lasted
    """One more copy: of ``one_more_copies`` in a row the whole time, divided; of bidirectional ones that CUDA runs side
    by side the time by which the rates of both ways add up."""
    one_more_copies: Positive
    """1: the one copy itself."""
    wall_seconds: Lasted
    """One copy from before the call to after the synchronisation, by the host clock."""
    issue_seconds: float
    """How long the calls that start it (both, if bidirectional) kept the CPU."""
    h2d_seconds: float | None
    """The part of one copy that went this way, by device events; ``None`` if nothing did."""
    d2h_seconds: float | None
    """The part that went back."""
    wrong_words: int
    """8-byte words that the last copy did not bring, checked outside the timed part against a fresh random pattern."""


@dataclass(frozen=True, kw_only=True)
class Combination(HostState):
    """Labels of one row of the experiment."""

    direction: Direction
    copier: CopierChoice
    bytes: int


Copy = tuple[HostState, Combination]


class Bandwidth:
    """Host memory kind × direction × size × copier, every copy checked."""

    name = "bandwidth"
    title = "Bandwidth"
    summary = "Copy rate of each kind of host memory, by size"
    question = "How fast does each kind of host memory copy, and from which size are pinned copies faster?"
    labs: Mapping[LabKind, str | None] = {"cuda": None, "host": None}
    Params = BandwidthParams
    Observation = BandwidthObservation
    start_seconds = 2.0

    def cases(self, params: BandwidthParams, environment: Environment | None = None) -> list[Case[Copy]]:
        """Every state of memory with every copier, direction and size; one state is held at a time.

        Beside cold memory, warm memory is copied by the engine, one way, up to what the caches hold. Both directions
        of pageable memory, which follow each other, are copied in its first state only.
        """
        largest, states, warm_bytes = max(params.sizes), _states(params), most_warm_bytes()
        first = {state.memory: state for state in reversed(states)}
        by_kernel = next((state for state in states if state.memory != "pageable"), None)
        flows = 2 if "bidirectional" in params.directions else 1
        # All states take as long, though some are measured in fewer combinations.
        turn, pace = HOST_PACE if environment and not environment.devices else CUDA_PACE
        once = {size: _seconds(params, turn + size / pace) for size in params.sizes}
        cases = []
        for state, copier in product(states, params.copiers):
            beside_cold, one_way = state.cache == "warm" and _both_caches(params), state != first[state.memory]
            ways = [way for way in params.directions if way != "bidirectional" or not (beside_cold or one_way)]
            fitting = [size for size in params.sizes if size <= warm_bytes or not beside_cold]
            if not (ways and fitting) or (beside_cold and copier == "kernel"):
                continue
            lasts = len(params.directions) * sum(once.values()) if copier == "engine" or state == by_kernel else 0.0
            lasts /= len(ways) * sum(once[size] for size in fitting)
            held, pinned = state.held_bytes(largest), state.memory != "pageable"
            cases += [
                Case(
                    f"{state.words} {way} {format_bytes(size)} by {copier}",
                    (state, Combination(**vars(state), direction=way, copier=copier, bytes=size)),
                    lasts * once[size],
                    pinned_bytes=pinned * held * flows,
                    pageable_bytes=(not pinned) * held * flows,
                    device_bytes=largest * flows * 2,
                )
                for way, size in product(ways, fitting)
            ]
        return cases

    def measure(self, params: BandwidthParams, lab: Lab, harness: Harness) -> Iterator[BandwidthObservation]:
        """Every combination in turn."""
        cases = possible(self.cases(params), harness, _left_out(lab))
        # A kernel copies the first kind that it reaches: it reaches all of them in the same way.
        reached = next((case.what[0].memory for case in cases if case.what[1].copier == "kernel"), None)
        cases = [case for case in cases if case.what[1].copier == "engine" or case.what[0].memory == reached]
        progress = Progress(cases, harness)
        for state, same in groupby(cases, lambda case: case.what[0]):
            group = list(same)
            with ExitStack() as stack:
                largest = max(case.what[1].bytes for case in group)
                wanted = {case.what[1].direction for case in group}
                ways = [way for way in ONE_WAYS if wanted & {way, "bidirectional"}]
                flows = [Flow(stack, lab, way, state, largest) for way in ways]
                for _, combination in progress.through(group):
                    way = combination.direction
                    chosen = [flow for flow in flows if way in ("bidirectional", flow.direction)]
                    yield from self._repeat(params, harness, chosen, combination)

    def _repeat(
        self, params: BandwidthParams, harness: Harness, flows: Sequence[Flow], combination: Combination
    ) -> Iterator[BandwidthObservation]:
        """Repeats of one combination."""
        for flow in flows:
            flow.resize(combination.bytes)
        for turn in harness.turns(params.harness_precision()):
            values = _one_repeat(flows, combination, harness)
            yield BandwidthObservation(**turn.labels, **vars(combination), devices=1, **values)
            turn.count(values["one_more_seconds"])


def _one_repeat(flows: Sequence[Flow], combination: Combination, harness: Harness) -> dict[str, Any]:
    """What one copy takes and one more, as an observation names it."""
    copier, copies, clock = combination.copier, copies_in_a_row(combination.bytes), harness.clock
    for flow in flows:
        flow.prepare(1)
    alone = time_copies(flows, copier, 1, clock, events=not flows[0].held)
    if flows[0].held:
        for flow in flows:
            flow.again()
        time_copies(flows, copier, 1, clock)
    own = {flow.direction: flow.lab.elapsed(flow.start, flow.end) for flow in flows}
    one_copy, one_more = whole_seconds(flows), counted_seconds(flows)
    if copies > 1:
        for flow in flows:
            flow.prepare(copies)
        time_copies(flows, copier, copies, clock)
        one_more = counted_seconds(flows) / copies
    return {
        **vars(alone),
        "device": flows[0].lab.device,
        "device_seconds": one_copy,
        "one_more_seconds": one_more,
        "one_more_copies": copies,
        "h2d_seconds": own.get("h2d"),
        "d2h_seconds": own.get("d2h"),
        "wrong_words": sum(flow.wrong_words() for flow in flows),
    }


def _states(params: BandwidthParams) -> list[HostState]:
    """What host memory to copy. Backings are those of pageable memory; registered memory has small pages."""
    states = []
    for memory in params.memory:
        if memory == "pageable":
            states += [HostState(memory, backing, cache) for backing, cache in product(params.backings, params.caches)]
            continue
        states.append(HostState(memory, "4k" if memory == "registered" else None))
        if memory == "pinned" and _both_caches(params):
            states.append(HostState(memory, None, "warm"))
    return states


def _seconds(params: BandwidthParams, turn: float) -> float:
    """Until the median of one combination is known, a repeat of which takes ``turn`` seconds."""
    counted = max(LEAST_VALUES, USUAL_REPEATS * min(params.repeats, params.time_limit / turn))
    return (params.harness_precision().warmups + counted) * turn


def _left_out(lab: Lab) -> Callable[[Copy], Reason]:
    @cache
    def reason(state: HostState, copier: CopierChoice) -> str | None:
        return lab.why_not(state.memory, copier) or (why_not_backing(state.backing) if state.backing else None)

    def why_not(copy: Copy) -> Reason:
        state, copier = copy[0], copy[1].copier
        return f"{state.words} memory by {copier}", reason(state, copier)

    return why_not


def _both_caches(params: BandwidthParams) -> bool:
    return {"cold", "warm"} <= set(params.caches)


EXPERIMENT: AnyExperiment = Bandwidth()
