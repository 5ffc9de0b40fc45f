"""A plan in words: headline, tables and findings; and its chart, the time to pin where a run measured it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pinscope.analysis.models import GPU_PAGE_SIZES, page_table_bytes
from pinscope.analysis.pinning_strategy import (
    DEFAULT_ARRAY,
    DEFAULT_CHUNKS,
    DEFAULT_SHARED,
    TITLES,
    USUAL,
    WORTH_IT,
    Recipe,
    is_near,
)
from pinscope.analysis.rules import ROUNDING_ADVICE, page_table_severity, rounded_up
from pinscope.errors import InvalidParameter
from pinscope.planning.plan import (
    LEVEL_WORDS,
    ONE_REGISTRATION_BYTES,
    ROUNDING,
    THIS_HOST,
    Demand,
    Plan,
    PlanParams,
    Sharing,
    engines_table,
    host_and_prices,
    plan_for,
    safety_of,
    why_elsewhere,
)
from pinscope.planning.prices import LARGEST_CHUNK_BYTES, Origin, Pace, Source
from pinscope.records.run import Finding, Quantity, Reading, Table, costing, finding, note, quantity, table, warning
from pinscope.units import format_about, format_bytes, format_duration, format_share

if TYPE_CHECKING:
    from pinscope.charts.marks import Chart
    from pinscope.records.environment import Environment
    from pinscope.store.store import Store

CUPY_ADVICE = (
    "Pin one buffer with pinscope.pinned_empty, which does not round so, or switch CuPy's pool of pinned memory off: "
    "cupy.cuda.set_pinned_memory_allocator(None). Each request then takes the time of one cudaHostAlloc."
)
ONE_OWNER = "one owner pins memory of its own and copies for all."
SOURCE_WORDS: Mapping[Source, str] = {
    "given": "as given",
    "measured": "measured on this machine",
    "recorded": "recorded on another machine",
    "assumed": "assumed",
}


def plan_as_stated(stated: Mapping[str, Any], store: Store, environment: Environment) -> tuple[Plan, Reading]:
    """The plan for this machine, or another one that is stated, and what follows; of the options ``None`` is not given.

    Raises:
        InvalidParameter: an option that makes no sense, or not one amount.
        StoreFailed: the database cannot be read.
    """
    given = {name: value for name, value in stated.items() if value is not None}
    if ("pinned" in given) == ("pinned_total" in given):
        raise InvalidParameter("give pinned, for each process, or pinned_total, their sum: one of the two")
    params = PlanParams().with_overrides(given)  # bad input is refused before the database is opened
    host, prices = host_and_prices(params, store, environment)
    plan = plan_for(params.on(host, prices.recorded), prices, host)
    return plan, read_plan(plan)


def read_plan(plan: Plan) -> Reading:
    """Headline, tables and findings of a plan."""
    # What the host or a GPU cannot carry needs no advice on how to pin it.
    calls = () if safety_of(plan).level == "not_safe" else (*_pace(plan), *_one_call(plan))
    gpu = (*_share(plan), *_owner(plan))
    findings = (*_rounded(plan), *gpu, *_shared(plan), *_only_allocates(plan), *calls, *_not_measured(plan))
    engines = engines_table(plan.budget.safe_bytes, plan.demand.processes)
    times = (_paces(plan) if plan.paces else None, engines)
    tables = (_sharings(plan), _page_sizes(plan), *filter(None, times))
    return Reading(verdict=_verdict(plan), headline=_headline(plan), tables=tables, findings=findings)


def origin_words(origin: Origin) -> str:
    """Where a figure comes from, for people."""
    device = f" ({origin.device})" if origin.source == "recorded" and origin.device else ""
    run = f", run {origin.run}" if origin.run else ""
    return f"{SOURCE_WORDS[origin.source]}{device}{run}"


def _verdict(plan: Plan) -> str:
    """Whether it is safe, and how long pinning takes; for another host what it takes of each GPU."""
    safety, demand, pace = safety_of(plan), plan.demand, _pace_of_plan(plan)
    words, takes = LEVEL_WORDS[safety.level], pace and format_about(pace.seconds_for(demand.total_bytes))
    if safety.level != "elsewhere":
        pinning = f", pinning takes {takes}" if takes and safety.level == "safe" else ""
        return f"{words}: {safety.reason}{pinning}."
    tables = format_bytes(plan.sharings[0].tables_per_gpu_bytes)
    if plan.budget.host != THIS_HOST:
        return f"{words}: {why_elsewhere(plan)}; give --host-memory."
    needs = f"{format_bytes(demand.total_bytes)} takes {f'{takes} and ' if takes else ''}{tables} per GPU"
    return f"{words}: {needs}; give --host-memory or --like."


def _headline(plan: Plan) -> tuple[Quantity, ...]:
    demand, price, budget, recipe, pace = plan.demand, plan.price, plan.budget, plan.recipe, _pace_of_plan(plan)
    registering, owner = plan.sharings
    shared = f" shared by {_processes(demand.processes)}" if demand.is_shared else ""
    amount = f"{format_bytes(demand.total_bytes)}{shared}"
    reason = None if pace else f"not measured for {amount}"
    seconds = pace.seconds_for(demand.total_bytes) if pace else None
    how = f"through {ROUNDING[demand.through]}" if demand.through in ROUNDING else "the recommended way"
    if pace and not is_near(demand.total_bytes, pace.measured_bytes):
        how += f", at the pace of {format_bytes(pace.measured_bytes)}"
    why = why_elsewhere(plan)
    here = f" ({why})" if why else ""
    return (
        quantity(f"Safe to pin on {budget.host}{here}", budget.safe_bytes, "bytes", reason=budget.limit),
        quantity(f"Time to pin, {how}", seconds, "seconds", reason=reason),
        quantity("Page table of one process, on one GPU", price.taken_bytes(demand.pinned_bytes), "bytes"),
        quantity("At most, if all else stays as it is", budget.most_bytes, "bytes", reason=budget.limit),
        *_paid_again(registering, owner),
        quantity("Page tables' share of a GPU's memory", registering.gpu_share, "share"),
        quantity("Recommended strategy", recipe.title if recipe else None, "text", reason=reason),
        quantity("Page size", round(price.page_bytes), "bytes"),
    )


def _pace_of_plan(plan: Plan) -> Pace | None:
    """How fast the library that is asked for pins, which calls cudaHostAlloc, else the recommended strategy."""
    strategy = USUAL if plan.demand.through in ROUNDING else plan.recipe.strategy if plan.recipe else ""
    return plan.pace(strategy)


def _paid_again(registering: Sharing, owner: Sharing) -> list[Quantity]:
    """What several processes or GPUs add; nothing where there is only one of each."""
    if registering.tables_per_gpu_bytes == owner.tables_per_gpu_bytes:
        return []
    return [
        quantity(f"Page tables on a GPU, {sharing.title}", sharing.tables_per_gpu_bytes, "bytes")
        for sharing in (registering, owner)
    ]


def _sharings(plan: Plan) -> Table:
    demand = plan.demand
    return table(
        "Who pins",
        {
            "strategy": "text",
            "page tables, busiest GPU": "bytes",
            "share of its memory": "share",
            "page tables, all GPUs": "bytes",
            "contexts": "count",
            "contexts take": "bytes",
            "together, all GPUs": "bytes",
        },
        [
            (
                sharing.title,
                sharing.tables_per_gpu_bytes,
                sharing.gpu_share,
                sharing.tables_bytes,
                sharing.contexts,
                sharing.contexts_bytes,
                None if sharing.contexts_bytes is None else sharing.tables_bytes + sharing.contexts_bytes,
            )
            for sharing in plan.sharings
        ],
        note=f"{_assumed(demand)} GPU memory for page tables is taken in steps "
        "of 2 MiB. On the GPUs of the others, to which it copies by CUDA IPC, one owner needs no context. "
        f"{_contexts_words(plan)}",
    )


def _assumed(demand: Demand) -> str:
    """Who has contexts where, and whose memory it is."""
    single, together = (format_bytes(count * demand.pinned_bytes) for count in (1, demand.processes))
    if demand.processes == 1:
        where = "1 GPU" if demand.gpus == 1 else f"each of {demand.gpus} GPUs"
        return f"Assumed: one buffer of {single}, by 1 process with a context on {where}."
    gpus = f"each with {demand.gpus} of {demand.all_gpus} GPU{'' if demand.all_gpus == 1 else 's'}"
    if demand.copies > 1:
        return f"Assumed: a buffer of {single} for each of {demand.processes} processes, {together} in all, {gpus}."
    return (
        f"Assumed: {demand.processes} processes, {gpus}, share one buffer of {single}. A buffer each would take "
        f"{together} of RAM, but no more GPU memory."
    )


def _processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"


def _contexts_words(plan: Plan) -> str:
    if plan.context is None:
        return "What a context takes is not known: run the experiment registration."
    return f"A context takes {format_bytes(plan.context.bytes)}, {origin_words(plan.context.origin)}."


def _page_sizes(plan: Plan) -> Table:
    pinned, price = plan.demand.pinned_bytes, plan.price
    sizes = [
        (f"at pages of {format_bytes(size)}", pinned // size + (pinned % size > 0), page_table_bytes(pinned, size))
        for size in GPU_PAGE_SIZES
    ]
    slope = price.slope
    measured = [] if slope is None else [(f"by the slope {origin_words(price.origin)}", None, round(pinned * slope))]
    return table(
        "Page table of one process, on one GPU",
        {"page size": "text", "entries": "count", "page table": "bytes", "share of the GPU's memory": "share"},
        [(name, entries, size, size / plan.demand.gpu_memory_bytes) for name, entries, size in [*sizes, *measured]],
        note="Bytes ÷ page size = entries, of 8 bytes each. Binary units: 1 TiB is 1024 GiB.",
    )


def _paces(plan: Plan) -> Table:
    usual, pinned, demand = plan.pace(USUAL), plan.demand.total_bytes, plan.demand
    ways = ((plan.recipes.chunks, "in chunks"), (plan.recipes.array, "in one piece")) if plan.recipes else ()
    recommended: Mapping[str, str] = {recipe.strategy: words for recipe, words in ways if recipe}
    if demand.is_shared and plan.recipe:
        recommended = {plan.recipe.strategy: "yes"}
    return table(
        "Time to pin",
        {
            "strategy": "text",
            "recommended": "text",
            f"{format_bytes(pinned)} take": "seconds",
            "rate": "bytes/second",
            "× cudaHostAlloc": "ratio",
            "measured over": "bytes",
        },
        [
            (
                TITLES[pace.strategy],
                recommended.get(pace.strategy, "no"),
                pace.seconds_for(pinned),
                pace.bytes_per_second,
                pace.bytes_per_second / usual.bytes_per_second if usual else None,
                pace.measured_bytes,
            )
            for pace in plan.paces
        ],
        note=("In chunks, each copy must stay inside one. " if "in chunks" in recommended.values() else "")
        + _pace_words(demand, plan.paces[0]),
    )


def _pace_words(demand: Demand, pace: Pace) -> str:
    """Whose time it is, and at which pace."""
    origin = origin_words(pace.origin)
    if demand.is_shared:
        return f"Until all {demand.processes} processes have it pinned, at the pace of {pace.processes}, {origin}."
    who = "One process, at the pace"
    if demand.copies > 1:
        who = (
            f"{demand.processes} processes at once, {format_bytes(demand.total_bytes)}, at the pace of one: they share "
            "the memory's bandwidth, and this is the slower end. The pace was"
        )
    waits = f"How long neighbours wait was measured for {format_bytes(pace.measured_bytes)} only: that run shows it."
    return f"{who} {origin}. {waits}"


def _rounded(plan: Plan) -> Iterator[Finding]:
    demand = plan.demand
    asked, rounded, name = demand.asked, rounded_up(demand.asked), ROUNDING.get(demand.through, "PyTorch")
    # What the host cannot carry even as it was asked for needs no call that pins it.
    beyond = safety_of(plan).level == "not_safe" and demand.copies * asked > (plan.budget.safe_bytes or 0)
    if rounded > asked and demand.through != "cuda" and not beyond:
        yield note(
            "plan-pytorch-rounds",
            quantity("The host then holds", demand.copies * rounded, "bytes"),
            title=f"{name} pins {format_bytes(rounded)} for one tensor of {format_bytes(asked)}",
            detail="Its allocator of pinned memory rounds each request up to a power of two. Of many tensors each is "
            "rounded by itself.",
            advice="Pin it by the call below, which rounds nothing."
            if demand.is_shared and not plan.budget.only_cuda_allocates
            else (CUPY_ADVICE if name == "CuPy" else ROUNDING_ADVICE).replace("pinscope.pinned_empty", _call(plan)),
        )


def _call(plan: Plan) -> str:
    """The call that pins what one process asks for, the recommended way where one is known."""
    recipe, demand = plan.recipe, plan.demand
    if recipe is None and plan.budget.only_cuda_allocates:
        recipe = Recipe(USUAL, None, threads=0)
    elif recipe is None:
        chunk = LARGEST_CHUNK_BYTES if demand.pinned_bytes >= ONE_REGISTRATION_BYTES else None
        private = DEFAULT_CHUNKS if chunk else DEFAULT_ARRAY
        recipe = Recipe(DEFAULT_SHARED if demand.is_shared else private, chunk, threads=0)
    return recipe.call(demand.asked)


def _shared(plan: Plan) -> Iterator[Finding]:
    """How several processes come to use the same memory."""
    demand, free = plan.demand, plan.budget.shm_free_bytes
    if not demand.is_shared:
        return
    little = free is not None and free < demand.pinned_bytes
    yield note(
        "plan-shared-memory",
        quantity("Free in /dev/shm", free, "bytes", reason="not known"),
        title="Registering is refused here: the processes cannot all pin the same memory"
        if plan.budget.only_cuda_allocates
        else f"One call makes memory that {demand.processes} processes share by name, and pins it in each",
        detail="The first process makes it and touches it; memory that is private to one cannot be shared."
        + (f" /dev/shm has no room for {format_bytes(demand.pinned_bytes)}; this takes none of it." if little else "")
        + _reserved_words(plan),
        advice=_share_advice(plan),
    )


def _reserved_words(plan: Plan) -> str:
    """What reserved huge pages would save, where the host has too few of them."""
    usual, huge, nbytes = plan.pace(DEFAULT_SHARED), plan.pace("hugetlb"), plan.demand.pinned_bytes
    if not usual or not huge or not plan.recipe or plan.recipe.strategy == "hugetlb":
        return ""
    if huge.bytes_per_second < WORTH_IT * usual.bytes_per_second:
        return ""
    slow, quick = (format_duration(pace.seconds_for(nbytes)) for pace in (usual, huge))
    return f" In reserved huge pages (vm.nr_hugepages) pinning takes {quick}, not {slow}."


def _share_advice(plan: Plan) -> str:
    """How several processes come to use the same memory on that host."""
    return (
        ONE_OWNER.capitalize()
        if plan.budget.only_cuda_allocates
        else f"In each process: {_call(plan)}. Or: {ONE_OWNER}"
    )


def _only_allocates(plan: Plan) -> Iterator[Finding]:
    if plan.budget.only_cuda_allocates:
        yield note(
            "plan-confidential-computing",
            quantity("Confidential computing", "on", "text"),
            title="Registering is refused where confidential computing is on",
            detail="cudaHostRegister answers 801 (not supported). Times are those of cudaHostAlloc.",
            advice="Pin with cudaHostAlloc, as PyTorch and CuPy do.",
        )


def _share(plan: Plan) -> Iterator[Finding]:
    registering = plan.sharings[0]
    severity = page_table_severity(registering.gpu_share)
    if severity is None:
        return
    demand = plan.demand
    yield finding(
        severity,
        "plan-page-tables",
        quantity("Page tables on that GPU", registering.tables_per_gpu_bytes, "bytes"),
        quantity("Its memory", demand.gpu_memory_bytes, "bytes"),
        title=f"Page tables take {format_share(registering.gpu_share)} of a GPU's memory when each process registers",
        detail=f"{_processes(demand.on_one_gpu)} on the busiest GPU, "
        f"{format_bytes(plan.price.taken_bytes(demand.pinned_bytes))} each. NVML charges it to no process.",
        advice="Pin less, or in fewer processes: one owner that copies for the others pays once."
        if demand.on_one_gpu > 1 and demand.copies == 1
        else "Pin only what is being copied: a ring of buffers in place of all the data.",
    )


def _owner(plan: Plan) -> Iterator[Finding]:
    """Worth a word where page tables and contexts cost clearly more when each process registers the same memory."""
    registering, owner = plan.sharings
    if plan.demand.copies > 1 or registering.contexts_bytes is None or owner.contexts_bytes is None:
        return
    times = (registering.tables_bytes + registering.contexts_bytes) / (owner.tables_bytes + owner.contexts_bytes)
    if costing(times) == "note":
        return
    saved, gpus = registering.tables_bytes - owner.tables_bytes, plan.demand.all_gpus
    yield warning(
        "plan-one-owner",
        quantity("All GPUs, each process registers", registering.tables_bytes, "bytes"),
        quantity("All GPUs, one owner", owner.tables_bytes, "bytes"),
        title=f"One owner saves {format_bytes(saved)} of page tables on {'the GPU' if gpus == 1 else f'{gpus} GPUs'}",
        detail=f"{format_bytes(registering.tables_bytes)} when each of {plan.demand.processes} processes "
        f"registers, {format_bytes(owner.tables_bytes)} when one pins for all.",
        advice="Let one process pin and copy into the others' GPU buffers (cudaIpcOpenMemHandle); 'pinscope run "
        "registration' measures both ways.",
    )


def _pace(plan: Plan) -> Iterator[Finding]:
    usual, recipe, pinned = plan.pace(USUAL), plan.recipe, plan.demand.total_bytes
    best = plan.pace(recipe.strategy) if recipe else None
    if usual is None or recipe is None or best is None or best.bytes_per_second < WORTH_IT * usual.bytes_per_second:
        return
    ranks = f" in each of {plan.demand.copies} processes" if plan.demand.copies > 1 else ""
    # Of what a library rounds up, the recommended way pins no more than was asked for.
    asked = plan.demand.copies * plan.demand.asked
    slow, quick = usual.seconds_for(pinned), best.seconds_for(asked)
    unrounded = f" for {format_bytes(asked)}" if asked != pinned else ""
    yield finding(
        costing(slow / quick),
        "plan-pin-faster",
        quantity("Rate of one cudaHostAlloc", usual.bytes_per_second, "bytes/second"),
        quantity(f"Rate: {recipe.title}", best.bytes_per_second, "bytes/second"),
        title=f"One cudaHostAlloc{ranks} takes {format_duration(slow)} to pin {format_bytes(pinned)}, "
        f"{slow / quick:.1f} times as long as the recommended way ({format_duration(quick)}{unrounded})",
        detail=f"Recommended: {recipe.title}, at the pace {origin_words(best.origin)}.",
        advice=f"Call {_call(plan)}.{_other_call(plan, recipe)}",
    )


def _other_call(plan: Plan, recipe: Recipe) -> str:
    """What chunks mean, or when to take them."""
    recipes = plan.recipes
    if recipe.chunk_bytes is not None:
        return " Keep each copy inside one chunk: CUDA refuses others."
    if recipes is None or recipes.chunks is None or not recipes.gentler_in_chunks:
        return ""
    call = recipes.chunks.call(plan.demand.asked)
    return f" Where other processes use the GPU and each copy stays inside one chunk, {call} lets them wait less."


def _one_call(plan: Plan) -> Iterator[Finding]:
    pinned = plan.demand.pinned_bytes
    if pinned < ONE_REGISTRATION_BYTES or plan.budget.only_cuda_allocates:
        return
    yield warning(
        "plan-one-registration",
        quantity("Asked for", pinned, "bytes"),
        title=f"{format_bytes(pinned)} may be too much for one registration",
        detail="Users report that drivers of the 580 series overflow when 512 GiB or more are registered at once. "
        "PinScope has not measured it.",
        advice=f"Register in chunks, and keep each copy inside one chunk: {_call(plan)}.",
    )


def _not_measured(plan: Plan) -> Iterator[Finding]:
    """Which prices are not this machine's own."""
    page = plan.price.origin
    foreign = [("page_tables", "page size", page)] if page.source in ("recorded", "assumed") else []
    if plan.paces and plan.paces[0].origin.source == "recorded":
        shared = f"registration --set processes={plan.demand.processes} --set sharing=memfd,hugetlb"
        experiment = shared if plan.demand.is_shared else "pinning_strategy"
        foreign.append((experiment, "time to pin", plan.paces[0].origin))
    if not foreign:
        return
    words = "; ".join(f"{what}: {origin_words(origin)}" for _, what, origin in foreign)
    yield note(
        "plan-not-measured-here",
        quantity("Page size", round(plan.price.page_bytes), "bytes"),
        title="Not all of this was measured on this machine",
        detail=f"{words}. Other machines differ.",
        advice="On the machine that the plan is for: "
        + " and ".join(f"pinscope run {name}" for name, _, _ in foreign)
        + ".",
    )


def draw_plan(plan: Plan) -> list[Chart]:
    """How long each strategy takes; none where no run measured one."""
    from pinscope.charts.plot import Bar, Scale, TimePart, bars  # noqa: PLC0415 - Plotly, which only a page needs
    from pinscope.charts.theme import seconds_unit  # noqa: PLC0415

    if not plan.paces:
        return []
    amount = format_bytes(plan.demand.total_bytes)
    seconds = {pace.strategy: pace.seconds_for(plan.demand.total_bytes) for pace in plan.paces}
    scale, unit = seconds_unit(max(seconds.values()))
    looks = {True: TimePart("cudaHostAlloc", "pinned"), False: TimePart("registered", "registered")}
    drawn = [Bar(TITLES[name], time, looks[name.startswith("host_alloc")]) for name, time in seconds.items()]
    chart = bars(
        "plan-times",
        f"How long {amount} take to pin",
        "At the pace that was measured over the amount in the table below.",
        {"": drawn},
        Scale(f"Time ({unit})", scale, format_duration),
        f"Time to pin {amount}",
    )
    return [chart]
