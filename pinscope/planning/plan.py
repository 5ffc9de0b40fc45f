"""What pinning a given amount will take: what is asked for, and page tables, contexts and time at given prices."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self, TypeVar

from pinscope.analysis.models import ENTRY_BYTES, GPU_PAGE_SIZES, GRANULE_BYTES
from pinscope.analysis.pinning_strategy import IDLE, Recipe, Recommended, recipes_of, recommend, strategy_cells
from pinscope.analysis.read_rows import Row
from pinscope.analysis.rules import RAM_NOTE, RAM_WARNING, TABLES_CRITICAL, page_table_severity, rounded_up
from pinscope.errors import BadInput
from pinscope.experiments.page_tables.reading import cells_of
from pinscope.experiments.registration.reading import WAYS, trials
from pinscope.experiments.registry import checked_rows
from pinscope.lab.harness import CONTEXT_BYTES, SAFE_DEVICE_SHARE, SAFE_PINNED_SHARE, binding_limit, safe_pinned_bytes
from pinscope.probes.containers import WSL2
from pinscope.records.environment import Environment
from pinscope.records.parameters import Bytes, Inputs, parameter
from pinscope.records.run import ExperimentRun
from pinscope.store.store import Store
from pinscope.units import exact_bytes, format_bytes, format_share

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
    recipes: Recommended[Recipe] | None
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


def make_plan(demand: Demand, prices: Prices, budget: HostBudget) -> Plan:
    """What ``demand`` takes at these prices.

    When each process registers the memory, each has a page table of its own on each of its GPUs. One owner has one for
    all on each GPU of its own: into the others' buffers it copies by CUDA IPC, which takes no context there.
    """
    single, whole = (prices.page.taken_bytes(count * demand.pinned_bytes) for count in (1, demand.copies))
    contexts, context = demand.processes * demand.gpus, prices.context
    tables = {  # strategy → on the busiest GPU, on all
        "each_registers": (single * demand.on_one_gpu, single * contexts),
        "one_owner": (whole, whole * demand.gpus),
    }
    sharings = tuple(
        Sharing(
            strategy=strategy,
            tables_per_gpu_bytes=on_one,
            tables_bytes=in_all,
            contexts=contexts,
            contexts_bytes=contexts * context.bytes if context else None,
            gpu_share=on_one / demand.gpu_memory_bytes,
        )
        for strategy, (on_one, in_all) in tables.items()
    )
    near = [pace for pace in prices.paces if 1 / FAR <= demand.pinned_bytes / pace.measured_bytes <= FAR]
    fastest_first = tuple(sorted(near, key=lambda pace: -pace.bytes_per_second))
    return Plan(demand, prices.page, context, sharings, fastest_first, prices.recipes if near else None, budget)


PAGE_SIZES: Mapping[str, int | None] = {"from_runs": None, "4KiB": 2**12, "64KiB": 2**16, "2MiB": 2**21}
"""Word → page size in bytes; ``None``: what a run measured, of this machine or a recorded one."""
USUAL_PINNED_BYTES = 64 * 2**30
USUAL_GPU_BYTES = 80 * 2**30
"""Where no GPU here and no recording tells."""


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
        "Number of different GPUs over all processes: 8 for 8 processes with a GPU each. Leave it out if all processes "
        "use the same GPUs.",
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
    page_size: Literal["from_runs", "4KiB", "64KiB", "2MiB"] = parameter(
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


_Price = TypeVar("_Price")
_Pinning = tuple[tuple[Pace, ...], Recommended[Recipe]]
ASSUMED = PagePrice(ENTRY_BYTES / GPU_PAGE_SIZES[0], Origin("assumed"))
"""Small pages: the dearest case, and what an H200 showed whatever stood under the memory."""


@dataclass(frozen=True)
class Prices:
    """What is known.

    Attributes:
        page: of a page table.
        context: of a context; ``None`` if no run tells.
        paces: of strategies of pinning; empty if no run tells.
        recipes: what the same run recommends; ``None`` if no run tells.
        recorded: the machine of the first recording that was used; ``None`` if none was.
    """

    page: PagePrice
    context: ContextPrice | None
    paces: tuple[Pace, ...]
    recipes: Recommended[Recipe] | None
    recorded: Environment | None


def known_prices(store: Store, environment: Environment) -> Prices:
    """The newest that a run of this machine's GPUs tells, else what a recording does.

    Raises:
        StoreFailed: the database cannot be read.
    """
    recorded: list[Environment] = []

    def first(experiment: str, read: Callable[[Origin, ExperimentRun, Sequence[Row]], _Price | None]) -> _Price | None:
        for run in _telling(store, experiment, environment):
            origin = Origin("recorded" if run.recording else "measured", run.id, run.gpu.name if run.gpu else None)
            try:
                price = read(origin, run, checked_rows(run.experiment, store.observations(run.id)))
            except (BadInput, ArithmeticError):  # rows that make no sense, as those of an imported run may
                continue
            if price:
                recorded.extend([run.environment] if run.recording else [])
                return price
        return None

    paces, recommended = first("pinning_strategy", _pinning) or ((), None)
    return Prices(
        page=first("page_tables", _page_price) or ASSUMED,
        context=first("registration", _context_price),
        paces=paces,
        recipes=recommended,
        recorded=recorded[0] if recorded else None,
    )


def _telling(store: Store, experiment: str, environment: Environment) -> Iterator[ExperimentRun]:
    """Runs on a GPU of this machine, newest first, then recordings. Imported runs of other machines are neither."""
    for run in store.each_run(experiment=experiment, lab="cuda"):  # the recordings come last
        is_here = run.environment.machine_id == environment.machine_id
        if isinstance(run, ExperimentRun) and run.observations and (run.recording or is_here):
            yield run


def _page_price(origin: Origin, run: ExperimentRun, rows: Sequence[Row]) -> PagePrice | None:
    """Of the first way that shows one: memory allocated pinned, where the run has it.

    A slope that fits a page size that GPUs know means that page size: the rest is the steps in which memory is taken.
    """
    for cost in cells_of(rows):
        if cost.device == run.device and cost.per_byte:
            known = cost.known_page_bytes
            return PagePrice(ENTRY_BYTES / known if known else cost.per_byte, origin, cost.per_byte)
    return None


def _context_price(origin: Origin, run: ExperimentRun, rows: Sequence[Row]) -> ContextPrice | None:  # noqa: ARG001 - one shape
    with_context = [trial for trial in trials(rows) if trial.context_bytes and trial.context_bytes > 0]
    if not with_context:
        return None
    most = max(with_context, key=lambda trial: trial.processes)
    return ContextPrice(round((most.context_bytes or 0) / most.processes), origin)


def _pinning(origin: Origin, run: ExperimentRun, rows: Sequence[Row]) -> _Pinning | None:
    """How fast each strategy pins, and which are recommended."""
    cells = strategy_cells(rows)
    paces = tuple(
        Pace(cell.strategy, cell.bytes_per_second, cell.bytes, cell.longest_wait.seconds, cell.chunk_bytes, origin)
        for cell in cells.values()
        if cell.strategy != IDLE and cell.bytes_per_second > 0
    )
    return (paces, recipes_of(recommend(cells), run.params)) if paces else None


def plan_for(params: PlanParams, prices: Prices, environment: Environment) -> Plan:
    """What the parameters take at these prices, beside what is safe on the host."""
    size = PAGE_SIZES[params.page_size]
    page = PagePrice(ENTRY_BYTES / size, Origin("given")) if size else prices.page
    return make_plan(params.demand(), replace(prices, page=page), _budget(params.host_memory, environment))


def _budget(free: int | None, environment: Environment) -> HostBudget:
    """What is safe on a host with so much free memory; on this one where that is ``None``."""
    if free is not None:
        host = f"a host with {format_bytes(free)} free"
        return HostBudget(int(SAFE_PINNED_SHARE * free), "free there", free, has_gpu=True, host=host)
    limits, capped = environment.limits, WSL2 in (environment.virtualization or "")
    return HostBudget(
        safe_bytes=None if capped else safe_pinned_bytes(limits, "cuda"),
        limit="not known in WSL2" if capped else binding_limit(limits, "cuda"),
        total_bytes=limits.host_total_bytes,
        has_gpu=bool(environment.devices),
        gpu_memory_bytes=tuple(size for device in environment.devices if (size := device.memory_total_bytes)),
    )


Level = Literal["safe", "care", "not_safe", "unknown", "elsewhere"]
LEVEL_WORDS: Mapping[Level, str] = {
    "safe": "Safe",
    "care": "With care",
    "not_safe": "Not safe",
    "unknown": "Not known",
    "elsewhere": "For another host",
}
"""How a plan's verdict begins: never by colour alone."""
_SAME_SHARE = 0.05
"""Memory of two GPUs differs by less: they may be alike. People round."""


@dataclass(frozen=True)
class Safety:
    """The judgement.

    Attributes:
        level: ``safe``, ``care`` (safe, but much), ``not_safe``, ``unknown`` or ``elsewhere`` (it is for another host).
        reason: a sentence without its full stop.
    """

    level: Level
    reason: str


def taken_of_gpu(plan: Plan) -> int:
    """Bytes that contexts and page tables take of the busiest GPU, where each process registers."""
    context = plan.context.bytes if plan.context else CONTEXT_BYTES
    return plan.sharings[0].tables_per_gpu_bytes + plan.demand.on_one_gpu * context


def safety_of(plan: Plan) -> Safety:
    """How safe the plan is on its host: the first judgement that applies."""
    demand, budget, tables = plan.demand, plan.budget, plan.sharings[0]
    asked, amount, elsewhere = demand.copies * demand.pinned_bytes, amount_words(demand), why_elsewhere(plan)
    total, memory, capped = budget.total_bytes, demand.gpu_memory_bytes, budget.safe_bytes is None
    safe, of_host = budget.safe_bytes or 0, f"{format_share(asked / total)} of the memory of {budget.host}"
    up_to = f"WSL2 allows far less than {format_bytes(total)}" if capped else f"up to {format_bytes(safe)} is safe"
    taken = taken_of_gpu(plan)
    on_gpu = f"contexts and page tables take {format_bytes(taken)} of a GPU's {format_bytes(memory)}"
    of_gpu = f"page tables take {format_share(tables.gpu_share)} of a GPU's memory when each process registers"
    rounded, bears = demand.copies * rounded_up(demand.pinned_bytes), f"{budget.host} bears {amount}"
    judgements: tuple[tuple[bool, Level, str], ...] = (
        (taken > SAFE_DEVICE_SHARE * memory, "not_safe", on_gpu),
        (elsewhere is not None, "elsewhere", elsewhere or ""),
        (capped and asked < RAM_WARNING * total, "unknown", f"{up_to}, and how much is not known"),
        (asked > safe, "not_safe", f"do not pin {amount} on {budget.host}, {up_to}"),
        (rounded > safe, "care", f"{bears} but not the {format_bytes(rounded)} that PyTorch makes of it, {up_to}"),
        (page_table_severity(tables.gpu_share) is not None, "care", of_gpu),
        (taken >= TABLES_CRITICAL * memory, "care", on_gpu),
        (asked >= RAM_NOTE * total, "care", f"{amount} is {of_host}, and {up_to}"),
        (True, "safe", f"{bears}, {up_to}"),
    )
    return next(Safety(level, reason) for applies, level, reason in judgements if applies)


def amount_words(demand: Demand) -> str:
    """What the host must carry, such as ``480 GiB (8 processes, 60 GiB each)``."""
    single, together = (format_bytes(count * demand.pinned_bytes) for count in (1, demand.copies))
    return single if demand.copies == 1 else f"{together} ({demand.processes} processes, {single} each)"


def why_elsewhere(plan: Plan) -> str | None:
    """What the plan's host has and this one has not; ``None`` where it may be this one."""
    here, demand = plan.budget.gpu_memory_bytes, plan.demand
    if not plan.budget.has_gpu:
        return "this one has no GPU"
    if demand.used_gpus > len(here) > 0:
        return f"the plan is for {demand.used_gpus} GPUs, this host has {len(here)}"
    off = [size / demand.gpu_memory_bytes - 1 for size in here]
    if here and (min(map(abs, off)) > _SAME_SHARE or sum(share >= -_SAME_SHARE for share in off) < demand.used_gpus):
        sizes = " and ".join(dict.fromkeys(map(format_bytes, here)))
        return f"the plan is for GPUs of {format_bytes(demand.gpu_memory_bytes)}, this host's have {sizes}"
    return None
