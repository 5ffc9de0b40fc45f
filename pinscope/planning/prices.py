"""What runs say of prices: of a page table, of a context, of time; and the plan that comes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pinscope.analysis.page_table_model import ENTRY_BYTES, GPU_PAGE_SIZES
from pinscope.analysis.pinning_recipe import Recipes
from pinscope.analysis.pinning_strategy import IDLE, recommend, strategy_cells
from pinscope.analysis.rows import Row
from pinscope.errors import BadInput
from pinscope.experiments.page_tables.reading import cells_of
from pinscope.experiments.registration.reading import trials
from pinscope.experiments.registry import checked_rows
from pinscope.lab.budget import SAFE_PINNED_SHARE, binding_limit, safe_pinned_bytes
from pinscope.planning.parameters import PAGE_SIZES, PlanParams
from pinscope.planning.plan import ContextPrice, HostBudget, Origin, Pace, PagePrice, Plan, make_plan
from pinscope.probes.virtualization import WSL2
from pinscope.records.environment import Environment
from pinscope.records.run import ExperimentRun
from pinscope.store.store import Store
from pinscope.units import format_bytes

_Found = TypeVar("_Found")
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

    def first(experiment: str, read: Callable[[Origin, ExperimentRun, Sequence[Row]], _Found | None]) -> _Found | None:
        for run in _telling(store, experiment, environment):
            origin = Origin("recorded" if run.recording else "measured", run.id, run.gpu.name if run.gpu else None)
            price = _read_price(read, origin, run, store.observations(run.id))
            if price:
                if run.recording:
                    recorded.append(run.environment)
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


def _read_price(
    read: Callable[[Origin, ExperimentRun, Sequence[Row]], _Found | None],
    origin: Origin,
    run: ExperimentRun,
    rows: Sequence[Row],
) -> _Found | None:
    """What the run tells; ``None`` if its rows are none of its experiment's, as those of an imported run may be."""
    try:
        return read(origin, run, checked_rows(run.experiment, rows))
    except (BadInput, ArithmeticError):
        return None


def _telling(store: Store, experiment: str, environment: Environment) -> Iterator[ExperimentRun]:
    """Runs on a GPU of this machine, newest first, then recordings. Imported runs of other machines are neither."""
    for run in store.each_run(experiment=experiment, lab="cuda"):  # the recordings come last
        if isinstance(run, ExperimentRun) and run.observations and (run.recording or _is_here(run, environment)):
            yield run


def _is_here(run: ExperimentRun, environment: Environment) -> bool:
    return run.environment.machine_id == environment.machine_id


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
