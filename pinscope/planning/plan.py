"""What pinning a given amount will take: what is asked for, and page tables, contexts and time at given prices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, model_validator

from pinscope.analysis.models import ENTRY_BYTES
from pinscope.analysis.pinning_strategy import DEFAULT_SHARED, USUAL, WORTH_IT, Recipe, Recommended, is_near
from pinscope.analysis.rules import RAM_NOTE, SAFE_SHARE, TABLES_CRITICAL, page_table_severity, rounded_up
from pinscope.experiments.registration.reading import WAYS
from pinscope.lab.harness import CONTEXT_BYTES, SAFE_DEVICE_SHARE, binding_limit, safe_pinned_bytes
from pinscope.planning.prices import ContextPrice, Origin, Pace, PagePrice, Prices, known_prices, like_run
from pinscope.probes.containers import WSL2
from pinscope.records.base import MIB
from pinscope.records.environment import Environment
from pinscope.records.parameters import Bytes, Inputs, parameter
from pinscope.records.registration import SHARED_STRATEGIES, STRATEGIES
from pinscope.records.run import Table, table
from pinscope.store.store import Store
from pinscope.units import exact_bytes, format_bytes, format_share

GIB, GB = 2**30, 10**9


@dataclass(frozen=True)
class Setting:
    """What a user gives an engine.

    Attributes:
        engine: its name.
        name: of the setting, as it is given.
        unit: the word for what it counts.
        unit_bytes: the same in bytes.
        of: whether it is the sum, or for each process (a rank, a worker: one GPU).
        rounds: whether PyTorch rounds each of its tensors up to a power of two: up to twice of it is then pinned.
        write: how a number is given: whole ones, or with two decimals.
    """

    engine: str
    name: str
    unit: str
    unit_bytes: int
    of: Literal["all processes", "each process"]
    rounds: bool = False
    write: Callable[[float], str] = lambda value: f"{int(value * 100) / 100:g}"

    def most(self, safe_bytes: int, processes: int) -> str:
        """The value that pins at most ``safe_bytes`` in all, as it is given."""
        parts = (processes if self.of == "each process" else 1) * (2 if self.rounds else 1)
        return self.write(safe_bytes / parts / self.unit_bytes)


def _whole(value: float) -> str:
    return str(int(value))


SETTINGS = (
    # vllm/config/cache.py, kv_offloading_size: GiB, "summed across all TP ranks". Mapped and registered since
    # vllm PR 50094; before, PyTorch rounded each tensor (vllm#53042: 1.92 times).
    Setting("vLLM", "--kv-offloading-size", "GiB", GIB, "all processes"),
    # vllm/config/offload.py, cpu_offload_gb: GiB, "per GPU"; each parameter by Tensor.pin_memory() (vllm#56410).
    Setting("vLLM", "--cpu-offload-gb", "GiB", GIB, "each process", rounds=True),
    # sglang/srt/mem_cache, HostKVCache: host_size * 1e9 in each rank, an integer; memory is registered as it is.
    Setting("SGLang", "--hicache-size", "GB", GB, "each process", write=_whole),
    # tensorrt_llm/_torch/pyexecutor/resource_manager.py: host_cache_size ÷ bytes a token of this rank.
    Setting("TensorRT-LLM", "KvCacheConfig.host_cache_size", "bytes", 1, "each process", write=_whole),
    # lmcache/v1, max_local_cpu_size * 1024**3 in each worker, though its own pages say GB; pinned by its own call.
    Setting("LMCache", "max_local_cpu_size", "GiB", GIB, "each process"),
)


def engines_table(safe_bytes: int | None, processes: int) -> Table | None:
    """What to give each engine at most, so that the host holds it; ``None`` where it is not known what is safe."""
    if safe_bytes is None:
        return None
    return table(
        "Settings of engines",
        {"engine": "text", "setting": "text", "at most": "text", "it counts": "text", "of": "text"},
        [(each.engine, each.name, each.most(safe_bytes, processes), each.unit, each.of) for each in SETTINGS],
        note="Each fills what is safe; a process uses one GPU. PyTorch rounds each tensor of --cpu-offload-gb up "
        "to a power of two: half is given. It does so with --kv-offloading-size before vLLM's PR 50094.",
    )


ONE_REGISTRATION_BYTES = 512 * 2**30
"""One registration of this much or more overflows in drivers of the 580 series (public reports)."""
THIS_HOST = "this host"
Through = Literal["any", "cuda", "pytorch", "cupy"]
ROUNDING: Mapping[Through, str] = {"pytorch": "PyTorch", "cupy": "CuPy"}
"""Libraries whose pool rounds each request up to a power of two (CuPy 14.2 held 4 GiB for 2.25, measured)."""


@dataclass(frozen=True)
class Demand:
    """What is to be pinned, and by whom.

    Attributes:
        pinned_bytes: how much each process pins: what is judged.
        processes: how many pin it.
        gpus: on how many GPUs each process has a context.
        all_gpus: over how many GPUs the processes spread evenly; as many as ``gpus`` where all use the same.
        gpu_memory_bytes: memory of one GPU.
        shared: whether all pin the same memory; otherwise each pins memory of its own.
        asked_bytes: what each process asks for: less, where a library rounds it up; 0: as much as is pinned.
        through: by what it is pinned: ``cuda``, ``pytorch``, ``cupy``, or ``any`` of them.
    """

    pinned_bytes: int
    processes: int
    gpus: int
    all_gpus: int
    gpu_memory_bytes: int
    shared: bool = False
    asked_bytes: int = 0
    through: Through = "any"

    @property
    def is_shared(self) -> bool:
        """Whether several processes use the same memory."""
        return self.shared and self.processes > 1

    @property
    def asked(self) -> int:
        """What each process asks for, bytes."""
        return self.asked_bytes or self.pinned_bytes

    @property
    def total_bytes(self) -> int:
        """What the host must carry."""
        return self.copies * self.pinned_bytes

    @property
    def copies(self) -> int:
        """How many times the host holds the amount."""
        return 1 if self.shared else self.processes

    @property
    def on_one_gpu(self) -> int:
        """Processes that have a context on the busiest GPU."""
        return -(-self.processes * self.gpus // self.all_gpus)


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
        most_bytes: all that others leave now: the other end of what may be safe; ``None`` as ``safe_bytes``.
        node_bytes: memory of the largest of several NUMA nodes; ``None`` where there is one, or it is not known.
        shm_free_bytes: free in /dev/shm; ``None`` where it is not known.
        only_cuda_allocates: confidential computing is on, and CUDA refuses to register memory (error 801).
        hugetlb_free_bytes: in reserved huge pages that nobody uses.
    """

    safe_bytes: int | None
    limit: str
    total_bytes: int
    has_gpu: bool
    gpu_memory_bytes: tuple[int, ...] = ()
    host: str = THIS_HOST
    most_bytes: int | None = None
    node_bytes: int | None = None
    shm_free_bytes: int | None = None
    only_cuda_allocates: bool = False
    hugetlb_free_bytes: int = 0


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
        if self.demand.pinned_bytes >= ONE_REGISTRATION_BYTES and not self.budget.only_cuda_allocates:
            array = None
        recipe = array or chunks
        return replace(recipe, strategy="hugetlb") if recipe and self._takes_reserved_pages else recipe

    @property
    def _takes_reserved_pages(self) -> bool:
        """Whether what is shared had better lie in reserved huge pages: where enough are free, and clearly faster."""
        huge, usual = self.pace("hugetlb"), self.pace(DEFAULT_SHARED)
        if huge is None or usual is None or self.budget.hugetlb_free_bytes < self.demand.pinned_bytes:
            return False
        return huge.bytes_per_second >= WORTH_IT * usual.bytes_per_second

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
    telling = [pace for pace in prices.paces if _tells(demand, pace) and _possible(pace.strategy, demand, budget)]
    fastest_first = tuple(sorted(telling, key=lambda pace: -pace.bytes_per_second))
    recipes = prices.recipes if telling else None
    if recipes and budget.only_cuda_allocates:
        recipes = Recommended(Recipe(USUAL, None, threads=0), None, gentler_in_chunks=False)
    return Plan(demand, prices.page, context, sharings, fastest_first, recipes, budget)


def _near(demand: Demand, pace: Pace) -> bool:
    """Whether a pace was measured over an amount like what each process pins, and all of them at once."""
    return is_near(demand.pinned_bytes, pace.measured_bytes) and is_near(demand.total_bytes, pace.measured_bytes)


def _tells(demand: Demand, pace: Pace) -> bool:
    """Whether a pace tells of an amount: time grows with it, but of far less another strategy may be the fastest."""
    return demand.pinned_bytes >= pace.measured_bytes or is_near(demand.pinned_bytes, pace.measured_bytes)


def _possible(strategy: str, demand: Demand, budget: HostBudget) -> bool:
    """Whether memory may be pinned that way, for these processes on that host."""
    known = STRATEGIES.get(strategy)
    if demand.is_shared or known is None:
        return demand.is_shared and strategy in SHARED_STRATEGIES and not budget.only_cuda_allocates
    return known.backing is None or not budget.only_cuda_allocates


PAGE_SIZES: Mapping[str, int | None] = {"from_runs": None, "4KiB": 2**12, "64KiB": 2**16, "2MiB": 2**21}
"""Word → page size in bytes; ``None``: what a run measured, of this machine or a recorded one."""
USUAL_PINNED_BYTES = 64 * 2**30
USUAL_GPU_BYTES = 80 * 2**30
"""Where no GPU here and no recording tells."""


def _with_unit(value: Any) -> Any:
    """A bare number that is no amount to plan for: its unit was forgotten."""
    if isinstance(value, str) and value.strip().isdecimal() and 0 < (number := int(value)) < MIB:
        raise ValueError(f"{number} bytes: did you forget the unit ({number}GB, {number}GiB)?")
    return value


Amount = Annotated[Bytes, BeforeValidator(_with_unit)]
"""A size in bytes, as people ask for it."""


class PlanParams(Inputs):
    """What is to be pinned, by whom, and on what."""

    pinned: Amount = parameter(
        "Pinned memory", "Size of the memory that each process pins, such as 64GiB.", USUAL_PINNED_BYTES, unit="bytes"
    )
    pinned_total: Amount | None = parameter(
        "Pinned memory in all",
        "Sum over all processes, in place of the size for each: each pins an equal part.",
        None,
        unit="bytes",
    )
    processes: int = parameter(
        "Processes", "Number of processes that pin this memory or copy from it.", 1, unit="count", ge=1, le=4096
    )
    shared: bool = parameter(
        "Shared by all processes",
        "All processes pin the same memory. Without it, each pins its own: the host holds the sum.",
        False,
    )
    through: Through = parameter(
        "Pinned through",
        "What pins it. PyTorch and CuPy round each request up to a power of two: 40 GiB in one tensor take 64 GiB. "
        "With any, CUDA's amount is planned, and judged is what PyTorch makes of it.",
        "any",
        json_schema_extra={"words": {"any": "any", "cuda": "CUDA", "pytorch": "PyTorch", "cupy": "CuPy"}},
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
    gpu_memory: Amount | None = parameter(
        "Memory of one GPU",
        "Memory of one GPU. Without it: that of the host's smallest GPU, or of the recorded GPU where it has none.",
        None,
        unit="bytes",
    )
    like: str = parameter(
        "Host like",
        "Plan for the host of a stored run or recording: its id, or a word of its GPU's name, such as h100.",
        "",
    )
    host_memory: Amount | None = parameter(
        "Memory of another host",
        "Memory that is free on the host that the plan is for. Without it: this host's, or that of the one it is like.",
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

    def on(self, environment: Environment, recorded: Environment | None = None) -> Self:
        """These with the memory of a GPU, where it is not given.

        Args:
            environment: the host that the plan is for.
            recorded: the one that prices come from where the host has no GPU.
        """
        for known in (environment, recorded):
            sizes = [device.memory_total_bytes for device in known.devices] if known else []
            if self.gpu_memory is None and (stated := [size for size in sizes if size]):
                return self.model_copy(update={"gpu_memory": min(stated)})
        return self

    @model_validator(mode="after")
    def _gpus_are_used(self) -> Self:
        if self.all_gpus > (used := self.processes * self.gpus):
            raise ValueError(
                f"{self.all_gpus} GPUs in all, but processes × GPUs of each process is {used}: say how many processes "
                "there are, or GPUs of each"
            )
        return self

    def demand(self) -> Demand:
        """These parameters as the arithmetic takes them."""
        copies = 1 if self.shared else self.processes
        asked = self.pinned if self.pinned_total is None else -(-self.pinned_total // (8 * copies)) * 8
        return Demand(
            pinned_bytes=rounded_up(asked) if self.through in ROUNDING else asked,
            processes=self.processes,
            gpus=self.gpus,
            all_gpus=max(self.all_gpus, self.gpus),
            gpu_memory_bytes=self.gpu_memory or USUAL_GPU_BYTES,
            shared=self.shared,
            asked_bytes=asked,
            through=self.through,
        )


OPTIONS: Mapping[str, str] = {"gpus": "--gpus-per-process", "all_gpus": "--total-gpus"}
"""Fields whose option has another name."""


def inputs(params: PlanParams) -> dict[str, str]:
    """All that must be said to get the same plan on another machine: what is usual there is left out."""
    usual, sizes = PlanParams(), ("pinned", "pinned_total", "gpu_memory", "host_memory")
    implied = "pinned_total" if params.pinned_total is None else "pinned"
    return {
        name: exact_bytes(value).replace(" ", "") if name in sizes else str(value)
        for name, value in params
        if name != implied and value is not None and (name in sizes or value != getattr(usual, name))
    }


def command_line(params: PlanParams) -> str:
    """``pinscope plan`` with every option that is not the command's own default."""
    options = (f"{OPTIONS.get(name, '--' + name.replace('_', '-'))} {text}" for name, text in inputs(params).items())
    return " ".join(("pinscope plan", *options)).replace("--shared True", "--shared")


def host_and_prices(params: PlanParams, store: Store, environment: Environment) -> tuple[Environment, Prices]:
    """The host that the plan is for, and what is known there: this one, or that of a run.

    Raises:
        InvalidParameter: there is no such run.
        StoreFailed: the database cannot be read.
    """
    like, demand = like_run(store, params.like) if params.like else None, params.demand()
    sharers = demand.processes if demand.is_shared else 1
    for tells in (_near, _tells):
        prices = known_prices(store, environment, like, partial(tells, demand), sharers)
        if prices.paces:
            break
    return like.environment if like else environment, prices


def plan_for(params: PlanParams, prices: Prices, environment: Environment) -> Plan:
    """What the parameters take at these prices, beside what is safe on the host: that of ``environment``."""
    size = PAGE_SIZES[params.page_size]
    page = PagePrice(ENTRY_BYTES / size, Origin("given")) if size else prices.page
    return make_plan(params.demand(), replace(prices, page=page), _budget(params, environment))


def _budget(params: PlanParams, environment: Environment) -> HostBudget:
    """What is safe on a host with so much free memory as is given; on that of the environment where none is."""
    if (free := params.host_memory) is not None:
        host = f"a host with {format_bytes(free)} free"
        safe = int(SAFE_SHARE * free)
        return HostBudget(safe, "free there", free, has_gpu=True, host=host, most_bytes=free)
    limits, capped = environment.limits, WSL2 in (environment.virtualization or "")
    left = (limits.host_available_bytes, limits.cgroup_headroom_bytes)
    nodes = [node.memory_bytes for node in environment.nodes if node.memory_bytes]
    pages = environment.huge_pages
    return HostBudget(
        safe_bytes=None if capped else safe_pinned_bytes(limits, "cuda"),
        limit="not known in WSL2" if capped else binding_limit(limits, "cuda"),
        total_bytes=limits.host_total_bytes,
        has_gpu=bool(environment.devices),
        gpu_memory_bytes=tuple(size for device in environment.devices if (size := device.memory_total_bytes)),
        host=f"a host like {params.like}" if params.like else THIS_HOST,
        most_bytes=None if capped else min(size for size in left if size is not None),
        node_bytes=max(nodes) if len(nodes) > 1 else None,
        shm_free_bytes=limits.shm_free_bytes,
        only_cuda_allocates=environment.confidential_computing is True,
        hugetlb_free_bytes=(pages.hugetlb_free_pages or 0) * (pages.hugetlb_page_bytes or 0),
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
    total, memory, capped = budget.total_bytes, demand.gpu_memory_bytes, budget.safe_bytes is None
    asked, amount, elsewhere = demand.total_bytes, _short_amount(demand), why_elsewhere(plan)
    safe, host = budget.safe_bytes or 0, THIS_HOST if budget.host == THIS_HOST else "that host"
    up_to = f"WSL2 allows far less than {format_bytes(total)}" if capped else f"up to {format_bytes(safe)} is safe"
    taken = taken_of_gpu(plan)
    on_gpu = f"contexts and page tables take {format_bytes(taken)} of a GPU's {format_bytes(memory)}"
    of_gpu = f"page tables take {format_share(tables.gpu_share)} of a GPU's memory when each process registers"
    node, each = budget.node_bytes, format_bytes(demand.pinned_bytes)
    rounded = demand.copies * rounded_up(demand.pinned_bytes) if demand.through == "any" else 0
    who = "one tensor pins" if demand.copies == 1 else f"{demand.processes} processes pin"
    where = "in the cgroup" if budget.limit == "left in the cgroup" else f"on {host}"
    judgements: tuple[tuple[bool, Level, str], ...] = (
        (taken > SAFE_DEVICE_SHARE * memory, "not_safe", on_gpu),
        (elsewhere is not None, "elsewhere", elsewhere or ""),
        (capped and asked < SAFE_SHARE * total, "unknown", f"{up_to}, and how much is not known"),
        (asked > safe, "not_safe", f"do not pin {amount} {where}, {up_to}"),
        (
            rounded > safe,
            "not_safe",
            f"through PyTorch {who} {format_bytes(rounded)}, {up_to}. Through CUDA {format_bytes(asked)} is",
        ),
        (
            node is not None and demand.pinned_bytes > node,
            "care",
            f"{each} is more than a NUMA node's {format_bytes(node)}, and {up_to}",
        ),
        (page_table_severity(tables.gpu_share) is not None, "care", of_gpu),
        (taken >= TABLES_CRITICAL * memory, "care", on_gpu),
        (asked >= RAM_NOTE * total, "care", f"{amount} is {format_share(asked / total)} of {host}'s memory, {up_to}"),
        (True, "safe", f"{host} bears {amount}, {up_to}"),
    )
    return next(Safety(level, reason) for applies, level, reason in judgements if applies)


def _short_amount(demand: Demand) -> str:
    """What the host must carry, such as ``512 GiB (8 processes, PyTorch)``."""
    makers = [f"{demand.processes} processes"] if demand.copies > 1 else []
    makers += [ROUNDING[demand.through]] if demand.pinned_bytes > demand.asked else []
    return format_bytes(demand.total_bytes) + (f" ({', '.join(makers)})" if makers else "")


def amount_words(demand: Demand) -> str:
    """What the host must carry, such as ``480 GiB (8 processes, 60 GiB each)``."""
    single, together, asked = map(format_bytes, (demand.pinned_bytes, demand.total_bytes, demand.asked))
    words = [] if demand.copies == 1 else [f"{demand.processes} processes, {single} each"]
    if demand.pinned_bytes > demand.asked:
        words.append(f"{ROUNDING[demand.through]} rounds {asked} up")
    return f"{together} ({'; '.join(words)})" if words else together


def why_elsewhere(plan: Plan) -> str | None:
    """What the plan's host has and the one that is judged has not; ``None`` where it may be that one."""
    here, demand, host = plan.budget.gpu_memory_bytes, plan.demand, plan.budget.host
    if not plan.budget.has_gpu:
        return f"{host} has no GPU"
    if demand.all_gpus > len(here) > 0:
        return f"the plan is for {demand.all_gpus} GPUs, {host} has {len(here)}"
    off = [size / demand.gpu_memory_bytes - 1 for size in here]
    if here and (min(map(abs, off)) > _SAME_SHARE or sum(share >= -_SAME_SHARE for share in off) < demand.all_gpus):
        sizes = " and ".join(dict.fromkeys(map(format_bytes, here)))
        return f"the plan is for GPUs of {format_bytes(demand.gpu_memory_bytes)}, those of {host} have {sizes}"
    return None
