"""What pinning a given amount will take: what is asked for, and page tables, contexts and time at given prices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator

from pinscope.analysis.page_table_model import ENTRY_BYTES, GRANULE_BYTES
from pinscope.analysis.pinning_strategy import Recipe, Recipes
from pinscope.errors import InvalidParameter
from pinscope.experiments.registration.reading import WAYS
from pinscope.records.environment import Environment
from pinscope.records.parameters import Bytes, Inputs, parameter
from pinscope.units import exact_bytes, parse_bytes

ONE_REGISTRATION_BYTES = 512 * 2**30
"""One registration of this much or more overflows in drivers of the 580 series (public reports)."""
FAR = 16
"""A pace says nothing of amounts so many times what was measured: at 4 KiB the strategies' order is reversed."""
Source = Literal["given", "measured", "recorded", "assumed"]
"""Where a price comes from: the user, a run of this machine, a recording that ships with PinScope, or nowhere."""


@dataclass(frozen=True)
class Demand:
    """What is to be pinned, and by whom.

    Attributes:
        pinned_bytes: how much each process pins.
        processes: how many pin it.
        gpus: on how many GPUs each process has a context.
        all_gpus: over how many GPUs the processes spread evenly; as many as ``gpus`` where all use the same.
        gpu_memory_bytes: memory of one GPU.
        shared: whether all pin the same memory; otherwise each pins memory of its own.
    """

    pinned_bytes: int
    processes: int
    gpus: int
    all_gpus: int
    gpu_memory_bytes: int
    shared: bool = False

    @property
    def copies(self) -> int:
        """How many times the host holds the amount."""
        return 1 if self.shared else self.processes

    @property
    def on_one_gpu(self) -> int:
        """Processes that have a context on the busiest GPU."""
        return -(-self.processes * self.gpus // self.all_gpus)

    @property
    def used_gpus(self) -> int:
        """GPUs on which some process has a context: with few processes, not all there are."""
        return min(self.all_gpus, self.processes * self.gpus)


@dataclass(frozen=True)
class Origin:
    """Where a figure comes from.

    Attributes:
        source: given, measured on this machine, recorded on another, or assumed.
        run: id of the run it was read from; ``None`` where there is none.
        device: name of the GPU of that run.
    """

    source: Source
    run: str | None = None
    device: str | None = None


@dataclass(frozen=True)
class PagePrice:
    """What a pinned byte takes in a page table.

    Attributes:
        per_byte: bytes of page table per pinned byte: 8 ÷ page size.
        origin: where it comes from.
        slope: the same as a run's line through its readings has it, steps of the meter and all; ``None`` without one.
    """

    per_byte: float
    origin: Origin
    slope: float | None = None

    @property
    def page_bytes(self) -> float:
        """The page size it means."""
        return ENTRY_BYTES / self.per_byte

    def table_bytes(self, pinned_bytes: int) -> int:
        """Entries for that much, one process on one GPU."""
        return math.ceil(pinned_bytes * self.per_byte / ENTRY_BYTES) * ENTRY_BYTES

    def taken_bytes(self, pinned_bytes: int) -> int:
        """GPU memory that goes away for it: the driver takes it in steps of 2 MiB (measured on an H200)."""
        return -(-self.table_bytes(pinned_bytes) // GRANULE_BYTES) * GRANULE_BYTES


@dataclass(frozen=True)
class ContextPrice:
    """What a CUDA context takes of a GPU.

    Attributes:
        bytes: of one process on one GPU.
        origin: where it comes from.
    """

    bytes: int
    origin: Origin


@dataclass(frozen=True)
class Pace:
    """How fast one strategy pins.

    Attributes:
        strategy: its name in the experiment ``pinning_strategy``.
        bytes_per_second: measured over ``measured_bytes``.
        measured_bytes: how much was pinned then.
        longest_wait_seconds: of a neighbour's call while that much was pinned and given back.
        chunk_bytes: length of the chunks; ``None`` where all is pinned by one call.
        origin: where it comes from.
    """

    strategy: str
    bytes_per_second: float
    measured_bytes: int
    longest_wait_seconds: float
    chunk_bytes: int | None
    origin: Origin

    def seconds_for(self, nbytes: int) -> float:
        """Seconds to pin this much at the same pace."""
        return nbytes / self.bytes_per_second

    def wait_for(self, nbytes: int) -> float | None:
        """The longest wait while this much is pinned; ``None`` unless it is what was measured.

        No rule is known by which waits grow with the amount: a run measures one amount.
        """
        return self.longest_wait_seconds if nbytes == self.measured_bytes else None


@dataclass(frozen=True)
class Sharing:
    """What one way to share the memory takes.

    Attributes:
        strategy: ``each_registers`` or ``one_owner``, as in the experiment ``registration``.
        tables_per_gpu_bytes: page tables on the busiest GPU.
        tables_bytes: page tables on all GPUs.
        contexts: how many there are on all GPUs.
        contexts_bytes: what they take; ``None`` if a context's price is not known.
        gpu_share: page tables on the busiest GPU ÷ its memory.
    """

    strategy: str
    tables_per_gpu_bytes: int
    tables_bytes: int
    contexts: int
    contexts_bytes: int | None
    gpu_share: float

    @property
    def title(self) -> str:
        """The strategy for people."""
        return WAYS[self.strategy].title


@dataclass(frozen=True)
class HostBudget:
    """What is safe to pin on the host that is asked about.

    Attributes:
        safe_bytes: by the same rule that guards every run; ``None`` where a cap below that is not known.
        limit: which limit binds, for people.
        total_bytes: memory of the host.
        has_gpu: whether the host has a GPU to pin for.
        gpu_memory_bytes: memory of each of its GPUs, where known.
        host: the host for people.
    """

    safe_bytes: int | None
    limit: str
    total_bytes: int
    has_gpu: bool
    gpu_memory_bytes: tuple[int, ...] = ()
    host: str = "this host"


@dataclass(frozen=True)
class Plan:
    """A demand and what it will take.

    Attributes:
        demand: what was asked for.
        price: of a page table.
        context: price of a context; ``None`` if no run tells.
        sharings: ways to share the memory.
        paces: strategies of pinning, the fastest first; empty if no run tells for such an amount.
        recipes: what the run of these paces recommends; ``None`` likewise.
        budget: of the host.
    """

    demand: Demand
    price: PagePrice
    context: ContextPrice | None
    sharings: tuple[Sharing, ...]
    paces: tuple[Pace, ...]
    recipes: Recipes | None
    budget: HostBudget

    @property
    def recipe(self) -> Recipe | None:
        """The recommended way to pin this amount: in chunks where it may be too much for one registration."""
        if self.recipes is None:
            return None
        array, chunks = self.recipes.array, self.recipes.chunks
        return chunks if self.demand.pinned_bytes >= ONE_REGISTRATION_BYTES else array or chunks

    def pace(self, strategy: str) -> Pace | None:
        """How fast that strategy pins; ``None`` if no run tells."""
        return next((pace for pace in self.paces if pace.strategy == strategy), None)


def make_plan(
    demand: Demand,
    price: PagePrice,
    context: ContextPrice | None,
    paces: Sequence[Pace],
    budget: HostBudget,
    *,
    recipes: Recipes | None,
) -> Plan:
    """What ``demand`` takes at these prices.

    When each process registers the memory, each has a page table of its own on each of its GPUs. One owner has one for
    all on each GPU of its own: into the others' buffers it copies by CUDA IPC, which takes no context there.
    """
    single, whole = price.taken_bytes(demand.pinned_bytes), price.taken_bytes(demand.copies * demand.pinned_bytes)
    contexts = demand.processes * demand.gpus
    tables = {  # strategy → on the busiest GPU, on all, contexts
        "each_registers": (single * demand.on_one_gpu, single * contexts, contexts),
        "one_owner": (whole, whole * demand.gpus, contexts),
    }
    sharings = tuple(
        Sharing(
            strategy=strategy,
            tables_per_gpu_bytes=on_one,
            tables_bytes=in_all,
            contexts=count,
            contexts_bytes=count * context.bytes if context else None,
            gpu_share=on_one / demand.gpu_memory_bytes,
        )
        for strategy, (on_one, in_all, count) in tables.items()
    )
    near = [pace for pace in paces if 1 / FAR <= demand.pinned_bytes / pace.measured_bytes <= FAR]
    fastest_first = tuple(sorted(near, key=lambda pace: -pace.bytes_per_second))
    return Plan(demand, price, context, sharings, fastest_first, recipes if near else None, budget)


PAGE_SIZES: Mapping[str, int | None] = {"from_runs": None, "4KiB": 2**12, "64KiB": 2**16, "2MiB": 2**21}
"""Word → page size in bytes; ``None``: what a run measured, of this machine or a recorded one."""
USUAL_PINNED_BYTES = 64 * 2**30
USUAL_GPU_BYTES = 80 * 2**30
"""Where no GPU here and no recording tells."""


def _page_size(value: Any) -> Any:
    """``4096`` and ``4 KiB`` are ``4KiB``; anything else is for the list of choices to refuse."""
    try:
        size = parse_bytes(value)
    except InvalidParameter:
        return value
    return next((word for word, known in PAGE_SIZES.items() if known == size), value)


class PlanParams(Inputs):
    """What is to be pinned, by whom, and on what."""

    pinned: Bytes = parameter(
        "Pinned memory", "Size of the memory that each process pins, such as 64GiB.", USUAL_PINNED_BYTES, unit="bytes"
    )
    processes: int = parameter(
        "Processes", "Number of processes that pin this memory or copy from it.", 1, unit="count", ge=1, le=4096
    )
    shared: bool = parameter(
        "Shared by all processes",
        "All processes pin the same memory. Without it, each pins its own: the host holds the sum.",
        False,
    )
    gpus: int = parameter(
        "GPUs of each process",
        "Number of GPUs on which each process has a CUDA context. Each context takes GPU memory, and each of these "
        "GPUs holds a page table for the process.",
        1,
        unit="count",
        ge=1,
        le=64,
    )
    all_gpus: int = parameter(
        "GPUs in all",
        "Number of different GPUs that all processes use together, spread evenly: 8 for 8 processes with one GPU each. "
        "If it is no larger than the number of GPUs of each process (--gpus-per-process), all processes share the same "
        "GPUs.",
        1,
        unit="count",
        ge=1,
        le=4096,
    )
    gpu_memory: Bytes = parameter(
        "Memory of one GPU",
        "Without it: that of the smallest GPU here, or of the recorded GPU where there is none.",
        USUAL_GPU_BYTES,
        unit="bytes",
    )
    host_memory: Bytes | None = parameter(
        "Memory of another host",
        "Memory that is free on the host that the plan is for. Without it, this host is judged.",
        None,
        unit="bytes",
    )
    page_size: Annotated[Literal["from_runs", "4KiB", "64KiB", "2MiB"], BeforeValidator(_page_size)] = parameter(
        "Page size",
        "Size of the pages in which the GPU maps the memory. Without it: as a run of this machine, or else the "
        "recorded run, measured it.",
        "from_runs",
        json_schema_extra={"unit": "text", "words": {"from_runs": "as measured"}},
    )

    @classmethod
    def for_machine(cls, environment: Environment, recorded: Environment | None = None) -> Self:
        """Defaults for a machine.

        Args:
            environment: this machine.
            recorded: the one that prices come from where this one has no GPU.
        """
        for known in (environment, recorded):
            sizes = [device.memory_total_bytes for device in known.devices] if known else []
            if stated := [size for size in sizes if size]:
                return cls(gpu_memory=min(stated))
        return cls()

    def demand(self) -> Demand:
        """These parameters as the arithmetic takes them."""
        gpus = max(self.all_gpus, self.gpus)
        return Demand(self.pinned, self.processes, self.gpus, gpus, self.gpu_memory, self.shared)


OPTIONS: Mapping[str, str] = {"gpus": "--gpus-per-process", "all_gpus": "--total-gpus"}
"""Fields whose option has another name."""


def inputs(params: PlanParams) -> dict[str, str]:
    """All that must be said to get the same plan on another machine: what is usual there is left out."""
    usual, sizes = PlanParams(), ("pinned", "gpu_memory", "host_memory")
    return {
        name: exact_bytes(value).replace(" ", "") if name in sizes else str(value)
        for name, value in params
        if value is not None and (name in sizes or value != getattr(usual, name))
    }


def command_line(params: PlanParams) -> str:
    """``pinscope plan`` with every option that is not the command's own default."""
    options = (f"{OPTIONS.get(name, '--' + name.replace('_', '-'))} {text}" for name, text in inputs(params).items())
    return " ".join(("pinscope plan", *options)).replace("--shared True", "--shared")
