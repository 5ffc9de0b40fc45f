"""Copy data to the GPU, let kernels reach it on the host, or let it migrate: which way wins for which use?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import product
from typing import TYPE_CHECKING, Self

from pydantic import field_validator, model_validator

from pinscope.analysis.cells import of_kind
from pinscope.experiments.access.reading import PATTERNS, WAYS, PatternName, WayName
from pinscope.experiments.contract import AnyExperiment, Case, Params, Progress, Reason, possible
from pinscope.lab.harness import Harness
from pinscope.lab.protocol import DeviceBuffer, HostBuffer, Lab, require_type
from pinscope.records.environment import Environment
from pinscope.records.parameters import Bytes, Counts, Several, parameter
from pinscope.records.run import LabKind, Lasted, Observation, Positive
from pinscope.units import format_bytes

if TYPE_CHECKING:
    from pinscope.experiments.access.cuda_access import Accessor, Visit
    from pinscope.lab.cuda_memory import HostPart

Reach = tuple[PatternName, int, WayName]
"""Pattern, spacing, way."""
MANAGED = of_kind(WAYS, "managed")
MANAGED_SHARE = 0.25
"""Managed memory stays below this share of what the GPU has free: more than is free can hang the GPU."""
BLOCK_BYTES = 4096
LARGEST = 8 * 2**30
SMALLEST = 2**20
PACE = 5e9
"""Bytes/second at which data is set, used and checked, for the estimate of a run's length (measured on an H200)."""


class AccessParams(Params):
    """Which data, in which ways, how often and how much of it."""

    size: Bytes = parameter("Size", "Length of the data on the host; a power of two.", le=LARGEST)
    ways: Several[WayName] = parameter("Ways", "; ".join(f"{name}: {way.help}" for name, way in WAYS.items()) + ".")
    patterns: Several[PatternName] = parameter(
        "Patterns",
        "Blocks of 4 KiB in order (stream_read, stream_write), or single words all over the data (random_read, "
        "scatter_write).",
    )
    spacings: Counts = parameter(
        "Spacings",
        "Use every Nth block of 4 KiB (streaming) or every Nth word (random, scattered): 1 uses all data, 8 uses one "
        "eighth. Powers of two.",
    )
    uses: Counts = parameter(
        "Uses",
        "Number of times that a kernel uses the data before new data comes. The numbers after the first are "
        "measured at the smallest spacing only.",
    )

    @field_validator("size", "spacings")
    @classmethod
    def _powers_of_two(cls, value: int | tuple[int, ...]) -> int | tuple[int, ...]:
        for number in value if isinstance(value, tuple) else (value,):
            if number & (number - 1):
                raise ValueError(f"{number} is no power of two")
        return value

    @model_validator(mode="after")
    def _something_to_measure(self) -> Self:
        least = BLOCK_BYTES * max(self.spacings)
        if self.size < least:
            raise ValueError(
                f"size: it takes at least {format_bytes(least)}, a block of 4 KiB for spacing {max(self.spacings)}"
            )
        return self

    @classmethod
    def preset(cls, lab: LabKind, quick: bool) -> Self:
        return cls(
            size=2**25 if quick else 2**28,
            ways=tuple(WAYS),
            patterns=tuple(PATTERNS),
            spacings=(1, 16) if quick else (1, 4, 16, 64),
            uses=(1, 4) if quick else (1, 2, 4, 8),
            precision=0.05 if quick else 0.02,
            repeats=8 if quick else 15,
            time_limit=0.2 if quick else 1.0,
        )

    def smaller(self) -> Self | None:
        return self.with_overrides({"size": self.size // 2}) if self.size > SMALLEST else None


class AccessObservation(Observation):
    """One way, one pattern: from data on the host until it was used (or, if written, until it is on the host)."""

    way: WayName
    """``copy`` (of all), ``copy_part`` (of the blocks used), ``mapped``, ``managed`` or ``prefetched``."""
    pattern: PatternName
    """``stream_read``, ``stream_write``, ``random_read`` or ``scatter_write``."""
    bytes: Positive
    """Size of the data on the host."""
    spacing: Positive
    """One block or word of so many is used."""
    uses: Positive
    """How often the kernel uses it."""
    touched_bytes: Positive
    """What one use touches."""
    device_seconds: float
    """From the first to the last work on the GPU."""
    wall_seconds: Lasted
    """Until the program has what it wants; for managed memory that was written, until the CPU has read every page."""
    intact: bool
    """Whether the kernel read what was there, or exactly the words it should have written were written."""


class Access:
    """Data on the host, used by a kernel in four ways."""

    name = "access"
    title = "Access"
    summary = "Copy, zero-copy or managed memory, by use"
    question = (
        "Copy data to the GPU, let kernels reach it on the host, or let it migrate: which way wins for which use?"
    )
    labs: Mapping[LabKind, str | None] = {
        "cuda": None,
        "host": "it compares how a GPU reaches host memory; without one there is a single memory",
    }
    Params = AccessParams
    Observation = AccessObservation
    start_seconds = 2.0

    def cases(self, params: AccessParams, environment: Environment | None = None) -> list[Case[Reach]]:
        """Every pattern, spacing and way; every number of uses at the densest spacing.

        A part is copied only where there is one, and where a copy call can take it. Beside the data, the GPU holds
        what is right, and a copy.
        """
        once = sum(params.uses) / len(params.uses) * params.size / PACE / len(params.spacings)
        return [
            Case(
                f"{way}, {pattern.replace('_', ' ')}, 1 in {spacing}",
                (pattern, spacing, way),
                len(_uses(params, spacing)) * min(once * params.repeats, params.time_limit),
                pinned_bytes=params.size,
                pageable_bytes=(way in MANAGED) * params.size,
                device_bytes=(2 + (way in MANAGED)) * params.size,
            )
            for pattern, spacing, way in product(params.patterns, params.spacings, params.ways)
            if way != "copy_part" or (spacing > 1 and pattern.startswith("stream"))
        ]

    def measure(self, params: AccessParams, lab: Lab, harness: Harness) -> Iterator[AccessObservation]:
        """Every case."""
        from pinscope.experiments.access.cuda_access import Accessor, Visit  # noqa: PLC0415
        from pinscope.lab.cuda import CudaLab  # noqa: PLC0415 - imports CuPy

        accessor = Accessor(require_type(lab, CudaLab))
        cases = possible(self.cases(params), harness, _left_out(params, accessor), "ways=copy,mapped")
        with ExitStack() as stack:
            bench = _Bench(lab, accessor, params.size, stack)
            for pattern, spacing, way in Progress(cases, harness):
                with ExitStack() as held:
                    user = _USERS[way](way, bench, Visit(pattern, params.size, spacing), held)
                    for uses in _uses(params, spacing):
                        yield from _repeat(bench, user, uses, params, harness)


def _uses(params: AccessParams, spacing: int) -> Sequence[int]:
    """Several uses of as much data as is used, and one or few of each smaller part."""
    return params.uses if spacing == params.spacings[0] else params.uses[:1]


def _left_out(params: AccessParams, accessor: Accessor) -> Callable[[Reach], Reason]:
    """What works not here: managed memory; or prefetching of what is overwritten whole, which would carry there what
    no other way carries."""
    no_managed, no_discard, free = accessor.why_not_managed(), accessor.why_not_discard(), accessor.free_bytes()
    if no_managed is None and params.size > MANAGED_SHARE * free:
        no_managed = f"{format_bytes(params.size)} is more than a quarter of the {format_bytes(free)} free on the GPU"

    def why_not(reach: Reach) -> Reason:
        pattern, spacing, way = reach
        if not no_managed and way == "prefetched" and spacing == 1 and pattern.endswith("write"):
            return "prefetched, where all data is written", no_discard
        return way, no_managed if way in MANAGED else None

    return why_not


class _Bench:
    """What all ways share: a stream, events, a sum, and device memory that holds what is right."""

    def __init__(self, lab: Lab, accessor: Accessor, nbytes: int, stack: ExitStack) -> None:
        self.lab, self.accessor = lab, accessor
        self.stream = stack.enter_context(lab.stream())
        self.start, self.end = stack.enter_context(lab.event()), stack.enter_context(lab.event())
        self.right = stack.enter_context(lab.device_buffer(nbytes))
        self.sum = stack.enter_context(lab.device_buffer(8))
        self.keys = iter(range(1, 2**62))

    def use(self, address: int, visit: Visit, key: int) -> None:
        """Queue one use."""
        self.accessor.use(address, visit, self.stream, key, self.sum.address)

    def read_sum(self) -> int:
        """The sum so far; cleared then."""
        self.stream.synchronize()
        value = self.accessor.word(self.sum.address)
        self.accessor.clear(self.sum.address, self.stream)
        return value


class _User:
    """One way with its memory: gets the data ready, uses it, and compares what came out."""

    def __init__(self, way: WayName, bench: _Bench, visit: Visit, held: ExitStack) -> None:
        self.way, self.bench, self.visit = way, bench, visit
        bench.lab.fill(bench.right, bench.lab.fresh_pattern())
        self.data = self.take(held)
        self.get_ready()
        bench.read_sum()
        if not visit.writes:
            bench.use(bench.right.address, visit, 0)
        self.one_sum = bench.read_sum()

    def take(self, held: ExitStack) -> HostPart | HostBuffer:
        """The host memory, with the content of the right one."""
        raise NotImplementedError

    def get_ready(self) -> None:
        """Everything back on the host, complete on return."""

    def run(self, uses: int, key: int) -> None:
        """Queue everything that one repeat does."""
        for _ in range(uses):
            self.bench.use(self.data.address, self.visit, key)

    def finish(self) -> None:
        """What the CPU has to do before it has the result."""

    def intact(self, uses: int, key: int) -> bool:
        """Whether it was right. Not for timed parts."""
        bench = self.bench
        if not self.visit.writes:
            return bench.read_sum() == uses * self.one_sum % 2**64
        bench.use(bench.right.address, self.visit, key)
        here = self.data.address
        return bench.accessor.different_words(here, bench.right.address, self.visit.nbytes, bench.stream) == 0


class _Mapped(_User):
    """The kernel reaches pinned memory over the link."""

    def take(self, held: ExitStack) -> HostBuffer:
        """Laid by the GPU: no lines of it are in the CPU's caches."""
        bench = self.bench
        data = held.enter_context(bench.lab.host_buffer(self.visit.nbytes, "mapped"))
        bench.lab.copy_to_host(data, bench.right, bench.stream)
        bench.stream.synchronize()
        return data


class _Copy(_Mapped):
    """cudaMemcpyAsync from pinned memory, all of it."""

    _device: DeviceBuffer

    def take(self, held: ExitStack) -> HostBuffer:
        self._device = held.enter_context(self.bench.lab.device_buffer(self.visit.nbytes))
        return super().take(held)

    def run(self, uses: int, key: int) -> None:
        bench, visit = self.bench, self.visit
        if not visit.overwrites_all:  # what is not written must come back as it was
            bench.lab.copy_to_device(self._device, self.data, bench.stream)
        for _ in range(uses):
            bench.use(self._device.address, visit, key)
        if visit.writes:
            bench.lab.copy_to_host(self.data, self._device, bench.stream)


class _CopyPart(_Copy):
    """cudaMemcpy2DAsync of the blocks that are used, and of no others."""

    def run(self, uses: int, key: int) -> None:
        bench, visit = self.bench, self.visit
        device, host = self._device.address, self.data.address
        if not visit.writes:
            bench.accessor.copy_part(device, host, visit, bench.stream, to_host=False)
        for _ in range(uses):
            bench.use(device, visit, key)
        if visit.writes:
            bench.accessor.copy_part(host, device, visit, bench.stream, to_host=True)


class _Managed(_User):
    """Pages migrate as they are touched."""

    _part: HostPart

    def take(self, held: ExitStack) -> HostPart:
        self._part = held.enter_context(self.bench.accessor.managed(self.visit.nbytes))
        self.bench.accessor.lay(self._part, self.bench.right)
        return self._part

    def get_ready(self) -> None:
        self.bench.accessor.prefetch(self._part, self.bench.stream, to_host=True)
        self.bench.stream.synchronize()

    def finish(self) -> None:
        if self.visit.writes:
            self.bench.accessor.read_pages(self._part)


class _Prefetched(_Managed):
    """All pages are moved before, without their content where all of it is overwritten, and back after writing."""

    def run(self, uses: int, key: int) -> None:
        if self.visit.overwrites_all:
            self.bench.accessor.discard_and_prefetch(self._part, self.bench.stream)
        else:
            self.bench.accessor.prefetch(self._part, self.bench.stream, to_host=False)
        super().run(uses, key)
        if self.visit.writes:
            self.bench.accessor.prefetch(self._part, self.bench.stream, to_host=True)


_USERS: Mapping[WayName, type[_User]] = {
    "copy": _Copy,
    "copy_part": _CopyPart,
    "mapped": _Mapped,
    "managed": _Managed,
    "prefetched": _Prefetched,
}


def _repeat(
    bench: _Bench, user: _User, uses: int, params: AccessParams, harness: Harness
) -> Iterator[AccessObservation]:
    """One way and number of uses until its median is known."""
    visit = user.visit
    for turn in harness.turns(params.harness_precision()):
        key = next(bench.keys)
        user.get_ready()
        begun = harness.clock()
        bench.start.record(bench.stream)
        user.run(uses, key)
        bench.end.record(bench.stream)
        bench.stream.synchronize()
        user.finish()
        wall = harness.clock() - begun
        turn.count(wall)
        yield AccessObservation(
            **turn.labels,
            way=user.way,
            pattern=visit.pattern,
            bytes=visit.nbytes,
            spacing=visit.spacing,
            uses=uses,
            touched_bytes=8 * visit.visits,
            device_seconds=bench.lab.elapsed(bench.start, bench.end),
            wall_seconds=wall,
            intact=user.intact(uses, key),
        )


EXPERIMENT: AnyExperiment = Access()
