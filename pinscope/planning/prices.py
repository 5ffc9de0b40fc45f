"""What pinning costs by what was measured, and how much is safe."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from pinscope.analysis.held import rounded_up
from pinscope.analysis.page_table_model import ENTRY_BYTES, GPU_PAGE_SIZES
from pinscope.analysis.pinning_strategy import IDLE, Recipes, recommend, strategy_cells
from pinscope.analysis.read_rows import Row
from pinscope.analysis.rules.gpu_memory import TABLES_CRITICAL, page_table_severity
from pinscope.analysis.rules.host_memory import RAM_NOTE, RAM_WARNING
from pinscope.errors import BadInput
from pinscope.experiments.page_tables.reading import cells_of
from pinscope.experiments.registration.reading import trials
from pinscope.experiments.registry import checked_rows
from pinscope.lab.harness import CONTEXT_BYTES, SAFE_DEVICE_SHARE, SAFE_PINNED_SHARE, binding_limit, safe_pinned_bytes
from pinscope.planning.plan import (
    PAGE_SIZES,
    ContextPrice,
    Demand,
    HostBudget,
    Origin,
    Pace,
    PagePrice,
    Plan,
    PlanParams,
    make_plan,
)
from pinscope.probes.containers import WSL2
from pinscope.records.environment import Environment
from pinscope.records.run import ExperimentRun
from pinscope.store.store import Store
from pinscope.units import format_bytes, format_share

_Price = TypeVar("_Price")
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
    recipes: Recipes | None
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

    paces, recipes = first("pinning_strategy", _pinning) or ((), None)
    return Prices(
        page=first("page_tables", _page_price) or ASSUMED,
        context=first("registration", _context_price),
        paces=paces,
        recipes=recipes,
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


def _pinning(origin: Origin, run: ExperimentRun, rows: Sequence[Row]) -> tuple[tuple[Pace, ...], Recipes] | None:
    """How fast each strategy pins, and which are recommended."""
    cells = strategy_cells(rows)
    paces = tuple(
        Pace(cell.strategy, cell.bytes_per_second, cell.bytes, cell.longest_wait.seconds, cell.chunk_bytes, origin)
        for cell in cells.values()
        if cell.strategy != IDLE and cell.bytes_per_second > 0
    )
    return (paces, Recipes.of(recommend(cells), run.params)) if paces else None


def plan_for(params: PlanParams, prices: Prices, environment: Environment) -> Plan:
    """What the parameters take at these prices, beside what is safe on the host."""
    size = PAGE_SIZES[params.page_size]
    price = PagePrice(ENTRY_BYTES / size, Origin("given")) if size else prices.page
    budget = _budget(params.host_memory, environment)
    return make_plan(params.demand(), price, prices.context, prices.paces, budget, recipes=prices.recipes)


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
