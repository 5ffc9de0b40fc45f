"""A plan in words: headline, tables and findings; and its chart, the time to pin where a run measured it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pinscope.analysis.models import GPU_PAGE_SIZES, page_table_bytes
from pinscope.analysis.pinning_strategy import DEFAULT_CHUNKS, TITLES, USUAL, WORTH_IT, Recipe
from pinscope.analysis.rules import ROUNDING_ADVICE, page_table_severity, rounded_up
from pinscope.planning.plan import (
    LEVEL_WORDS,
    ONE_REGISTRATION_BYTES,
    Demand,
    Origin,
    Pace,
    Plan,
    Sharing,
    Source,
    safety_of,
    why_elsewhere,
)
from pinscope.records.run import Finding, Quantity, Reading, Table, costing, finding, note, quantity, table, warning
from pinscope.units import format_about, format_bytes, format_seconds, format_share

if TYPE_CHECKING:
    from pinscope.charts.marks import Chart

LARGEST_CHUNK_BYTES = 64 * 2**30
"""Pieces to advise where nothing else decides."""
SOURCE_WORDS: Mapping[Source, str] = {
    "given": "as given",
    "measured": "measured on this machine",
    "recorded": "recorded on another machine",
    "assumed": "assumed",
}


def read_plan(plan: Plan) -> Reading:
    """Headline, tables and findings of a plan."""
    # What the host or a GPU cannot carry needs no advice on how to pin it.
    calls = () if safety_of(plan).level == "not_safe" else (*_pace(plan), *_one_call(plan))
    gpu = (*_share(plan), *_owner(plan))
    findings = (*_rounded(plan), *gpu, *calls, *_not_measured(plan))
    tables = (_sharings(plan), _page_sizes(plan), *([_paces(plan)] if plan.paces else []))
    return Reading(verdict=_verdict(plan), headline=_headline(plan), tables=tables, findings=findings)


def origin_words(origin: Origin) -> str:
    """Where a figure comes from, for people."""
    device = f" ({origin.device})" if origin.source == "recorded" and origin.device else ""
    run = f", run {origin.run}" if origin.run else ""
    return f"{SOURCE_WORDS[origin.source]}{device}{run}"


def _verdict(plan: Plan) -> str:
    """Whether it is safe, and how long pinning takes; for another host what it takes of each GPU."""
    safety, demand, pace = safety_of(plan), plan.demand, _pace_of_recipe(plan)
    words = LEVEL_WORDS[safety.level]
    size, takes = format_bytes(demand.pinned_bytes), pace and format_about(pace.seconds_for(demand.pinned_bytes))
    if safety.level != "elsewhere":
        pinning = f", and pinning takes {takes}" if takes and safety.level == "safe" and demand.copies == 1 else ""
        return f"{words}: {safety.reason}{pinning}."
    tables = format_bytes(plan.sharings[0].tables_per_gpu_bytes)
    needs = f"pinning {size} takes {f'{takes} and ' if takes else ''}{tables} per GPU"
    if demand.copies > 1:
        needs = f"each process pins {size}{f' in {takes}' if takes else ''}"
    return f"{words}: {needs} (give --host-memory to know whether it is safe)."


def _headline(plan: Plan) -> tuple[Quantity, ...]:
    demand, price, budget, recipe, pace = plan.demand, plan.price, plan.budget, plan.recipe, _pace_of_recipe(plan)
    registering, owner = plan.sharings
    reason = None if pace else f"not measured for {format_bytes(demand.pinned_bytes)}"
    seconds = pace.seconds_for(demand.pinned_bytes) if pace else None
    why = why_elsewhere(plan)
    here = f" ({why})" if why else ""
    return (
        quantity(f"Safe to pin on {budget.host}{here}", budget.safe_bytes, "bytes", reason=budget.limit),
        quantity("Time to pin, the recommended way", seconds, "seconds", reason=reason),
        quantity("Page table of one process, on one GPU", price.taken_bytes(demand.pinned_bytes), "bytes"),
        *_paid_again(registering, owner),
        quantity("Page tables' share of a GPU's memory", registering.gpu_share, "share"),
        quantity("Recommended strategy", recipe.title if recipe else None, "text", reason=reason),
        quantity("Page size", round(price.page_bytes), "bytes"),
    )


def _pace_of_recipe(plan: Plan) -> Pace | None:
    """How fast the recommended strategy pins, where a run has measured it."""
    return plan.pace(plan.recipe.strategy) if plan.recipe else None


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
    usual, pinned = plan.pace(USUAL), plan.demand.pinned_bytes
    ways = ((plan.recipes.chunks, "in chunks"), (plan.recipes.array, "in one piece")) if plan.recipes else ()
    recommended: Mapping[str, str] = {recipe.strategy: words for recipe, words in ways if recipe}
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
        note=f"One process, at the pace {origin_words(plan.paces[0].origin)}. How long neighbours wait was measured "
        f"for {format_bytes(plan.paces[0].measured_bytes)} only: that run shows it.",
    )


def _rounded(plan: Plan) -> Iterator[Finding]:
    asked, rounded = plan.demand.pinned_bytes, rounded_up(plan.demand.pinned_bytes)
    if rounded > asked:
        yield note(
            "plan-pytorch-rounds",
            quantity("The host then holds", plan.demand.copies * rounded, "bytes"),
            title=f"PyTorch pins {format_bytes(rounded)} for one tensor of {format_bytes(asked)}",
            detail="Its allocator of pinned memory rounds each request up to a power of two.",
            advice=ROUNDING_ADVICE,
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
    saved = registering.tables_per_gpu_bytes - owner.tables_per_gpu_bytes
    yield warning(
        "plan-one-owner",
        quantity("All GPUs, each process registers", registering.tables_bytes, "bytes"),
        quantity("All GPUs, one owner", owner.tables_bytes, "bytes"),
        title=f"One owner saves {format_bytes(saved)} of page tables on the busiest GPU",
        detail=f"{format_bytes(registering.tables_per_gpu_bytes)} when each of {plan.demand.on_one_gpu} processes "
        f"registers, {format_bytes(owner.tables_per_gpu_bytes)} when one pins for all.",
        advice="Let one process pin and copy into the others' GPU buffers (cudaIpcOpenMemHandle); 'pinscope run "
        "registration' measures both ways.",
    )


def _pace(plan: Plan) -> Iterator[Finding]:
    usual, recipe, pinned = plan.pace(USUAL), plan.recipe, plan.demand.pinned_bytes
    best = plan.pace(recipe.strategy) if recipe else None
    if usual is None or recipe is None or best is None or best.bytes_per_second < WORTH_IT * usual.bytes_per_second:
        return
    slow, quick, size = usual.seconds_for(pinned), best.seconds_for(pinned), format_bytes(pinned)
    yield finding(
        costing(slow / quick),
        "plan-pin-faster",
        quantity("Rate of one cudaHostAlloc", usual.bytes_per_second, "bytes/second"),
        quantity(f"Rate: {recipe.title}", best.bytes_per_second, "bytes/second"),
        title=f"One cudaHostAlloc takes {format_seconds(slow)} to pin {size}, {slow / quick:.1f} times as long as the "
        f"recommended way ({format_seconds(quick)})",
        detail=f"Recommended: {recipe.title}, at the pace {origin_words(best.origin)}.",
        advice=f"Call {recipe.call(pinned)}{_in_one(plan)}.{_other_call(plan, recipe)}",
    )


def _in_one(plan: Plan) -> str:
    """Where only one process is to make the call."""
    demand = plan.demand
    return " in the owner only" if demand.processes > 1 == demand.copies else ""


def _other_call(plan: Plan, recipe: Recipe) -> str:
    """What chunks mean, or when to take them."""
    recipes = plan.recipes
    if recipe.chunk_bytes is not None:
        return " Keep each copy inside one chunk: CUDA refuses others."
    if recipes is None or recipes.chunks is None or not recipes.gentler_in_chunks:
        return ""
    call = recipes.chunks.call(plan.demand.pinned_bytes)
    return f" Where other processes use the GPU and each copy stays inside one chunk, {call} lets them wait less."


def _one_call(plan: Plan) -> Iterator[Finding]:
    pinned = plan.demand.pinned_bytes
    if pinned < ONE_REGISTRATION_BYTES:
        return
    recipe = plan.recipe or Recipe(DEFAULT_CHUNKS, LARGEST_CHUNK_BYTES, threads=0)
    yield warning(
        "plan-one-registration",
        quantity("Asked for", pinned, "bytes"),
        title=f"{format_bytes(pinned)} may be too much for one registration",
        detail="Users report that drivers of the 580 series overflow when 512 GiB or more are registered at once. "
        "PinScope has not measured it.",
        advice=f"Register in chunks, and keep each copy inside one chunk: {recipe.call(pinned)}{_in_one(plan)}.",
    )


def _not_measured(plan: Plan) -> Iterator[Finding]:
    """Which prices are not this machine's own."""
    page = plan.price.origin
    foreign = [("page_tables", "page size", page)] if page.source in ("recorded", "assumed") else []
    if plan.paces and plan.paces[0].origin.source == "recorded":
        foreign.append(("pinning_strategy", "time to pin", plan.paces[0].origin))
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
    amount = format_bytes(plan.demand.pinned_bytes)
    seconds = {pace.strategy: pace.seconds_for(plan.demand.pinned_bytes) for pace in plan.paces}
    scale, unit = seconds_unit(max(seconds.values()))
    looks = {True: TimePart("cudaHostAlloc", "pinned"), False: TimePart("registered", "registered")}
    drawn = [Bar(TITLES[name], time, looks[name.startswith("host_alloc")]) for name, time in seconds.items()]
    chart = bars(
        "plan-times",
        f"How long {amount} take to pin",
        "One process, at the pace that was measured over the amount in the table below.",
        {"": drawn},
        Scale(f"Time ({unit})", scale, format_seconds),
        f"Time to pin {amount}",
    )
    return [chart]
