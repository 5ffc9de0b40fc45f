"""What the registration experiment concludes: headline, table and findings from the rows of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pinscope.analysis.conclusions import exceeds
from pinscope.analysis.link_model import packet_words
from pinscope.analysis.page_table_model import GRANULE_BYTES
from pinscope.analysis.rows import median
from pinscope.analysis.rules.link import SATURATED
from pinscope.analysis.statistics import Summary, measured
from pinscope.experiments.registration.arithmetic import SAME_RATE, Trial, first_of_each, trials
from pinscope.experiments.registration.verdict import registration_verdict
from pinscope.records.finding import (
    Finding,
    Quantity,
    Reading,
    Table,
    costing,
    finding,
    good,
    note,
    quantity,
    table,
    warning,
    wrong_data,
)
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bandwidth, format_bytes, format_share


def read_registration(run: ExperimentRun, rows: Sequence[Mapping[str, Any]]) -> Reading:
    """Headline, table and findings of a registration run; empty parts where nothing was measured yet."""
    found = trials(rows)
    if not found:
        return Reading(headline=(), tables=(), findings=())
    each, owner = _most(first_of_each(found))
    return Reading(
        verdict=registration_verdict(run, each, owner, found, worth=_owner_is_worth_it(run, each, owner)),
        headline=_headline(run, each, owner),
        tables=(_table(found),),
        findings=(
            *_wrong(found),
            *_duplicates(run, each, owner, found),
            *_contexts(each),
            *_counted_again(each),
            *_rates(run, each, owner),
            *_sharings(run, found),
            *_left(run, found),
        ),
    )


def _most(found: Sequence[Trial]) -> tuple[Trial | None, Trial | None]:
    """Both strategies with the most processes that both have; either may be missing."""
    by_strategy = {
        name: {trial.processes: trial for trial in found if trial.strategy == name}
        for name in ("each_registers", "one_owner")
    }
    each, owner = by_strategy["each_registers"], by_strategy["one_owner"]
    common = set(each) & set(owner) or set(each) or set(owner)
    return each.get(max(common)), owner.get(max(common))


def tables_words(run: ExperimentRun) -> str:
    """What the page tables lie in."""
    return "GPU memory for page tables" if run.lab == "cuda" else "Page tables"


def _headline(run: ExperimentRun, each: Trial | None, owner: Trial | None) -> tuple[Quantity, ...]:
    """Page tables of both strategies, and the owner's rate before that of all."""
    return (
        *(_tables_quantity(run, trial) for trial in (each, owner) if trial),
        *(_rate_quantity(trial) for trial in (owner, each) if trial),
    )


def _tables_quantity(run: ExperimentRun, trial: Trial) -> Quantity:
    unknown = None if trial.table_bytes is not None else "some of them did not pin, or no meter could be read"
    return quantity(f"{tables_words(run)}, {_who_pins(trial)}", trial.table_bytes, "bytes", reason=unknown)


def _rate_quantity(trial: Trial) -> Quantity:
    name = f"Copy rate of all together, {_who_pins(trial)}"
    if trial.rate is None:
        return quantity(name, None, "bytes/second", reason="no round was completed")
    return measured(name, trial.rate, "bytes/second")


def _who_pins(trial: Trial) -> str:
    """``4 processes register``, ``one owner for 4 processes``."""
    several = f"{trial.processes} process{'' if trial.processes == 1 else 'es'}"
    if trial.strategy == "one_owner":
        return f"one owner for {several}"
    return f"{several} register{'s' if trial.processes == 1 else ''}"


def _table(found: Sequence[Trial]) -> Table:
    return table(
        "Every strategy and number of processes",
        {
            "strategy": "text",
            "processes": "count",
            "shared": "bytes",
            "contexts": "bytes",
            "buffers": "bytes",
            "page tables": "bytes",
            "host pins": "bytes",
            "start-up": "seconds",
            "touching": "seconds",
            "pinning, each": "seconds",
            "rate together": "bytes/second",
            "spread": "share",
            "wrong words": "count",
            "checked words": "count",
            "left at the end": "bytes",
        },
        [
            (
                trial.title,
                trial.processes,
                trial.bytes,
                trial.context_bytes,
                trial.buffer_bytes,
                trial.table_bytes,
                trial.host_pinned_bytes,
                median(trial.start_seconds),
                trial.touch_seconds,
                median(trial.pin_seconds),
                median(trial.rate),
                trial.rate.spread if trial.rate else None,
                trial.wrong_words,
                trial.checked_words,
                trial.left_bytes,
            )
            for trial in found
        ],
        note="Contexts, buffers and page tables are those of all processes together: what the used memory of the GPU "
        "grew by from step to step. Start-up and pinning are medians over the processes that did it. The owner's "
        "pinning includes touching. On the host model there are no contexts; page tables are those of the processes.",
    )


def _wrong(found: Sequence[Trial]) -> Iterator[Finding]:
    wrong = [trial for trial in found if trial.wrong_words]
    if not wrong:
        return
    yield wrong_data(
        "content-wrong",
        quantity("Wrong words", sum(trial.wrong_words for trial in wrong), "count"),
        quantity("Checked words", sum(trial.checked_words for trial in wrong), "count"),
        title="Data arrived wrong in a process",
        detail=f"The first case: {wrong[0].title}, {wrong[0].processes} processes.",
    )


def _duplicates(
    run: ExperimentRun, each: Trial | None, owner: Trial | None, found: Sequence[Trial]
) -> Iterator[Finding]:
    """Whether every process pays for the same memory again."""
    if each is None or each.table_bytes is None or each.processes < 2 or not each.table_steps:
        return
    first = each.table_steps[0]
    if first < (GRANULE_BYTES if run.lab == "cuda" else 1):
        return
    if each.table_bytes < 1.5 * first:
        yield good(
            "registration-shared",
            quantity("Page tables", each.table_bytes, "bytes"),
            title="The page table of shared memory is paid for once",
            detail=f"{each.processes} processes registered the same {format_bytes(each.bytes)}.",
        )
        return
    once = owner.table_bytes if owner is not None and owner.table_bytes is not None else first
    evidence = [
        quantity("Page tables of the first process", first, "bytes"),
        quantity(f"Page tables of all {each.processes}", each.table_bytes, "bytes"),
        *([quantity("Page tables with one owner", once, "bytes")] if owner else []),
    ]
    yield finding(
        costing((_beside_tables(run, each) + each.table_bytes) / (_beside_tables(run, each) + once)),
        "every-process-pays",
        *evidence,
        title=f"Each process that registers the same memory pays again: {format_bytes(each.table_bytes)} of page "
        f"tables for {each.processes} processes, {each.table_bytes / first:.1f} times those of one",
        detail=f"The first process took {format_bytes(first)} for {format_bytes(each.bytes)}."
        + _one_owner(owner, found),
        advice=_worth_of_an_owner(run, each, each.table_bytes - once),
    )


def _beside_tables(run: ExperimentRun, each: Trial) -> int:
    """What the processes take beside page tables: their contexts; on the host model the memory itself."""
    return max(each.context_bytes or 0, 0) if run.lab == "cuda" else each.bytes


def _one_owner(owner: Trial | None, found: Sequence[Trial]) -> str:
    """What one owner took, for every number of processes for which it was the same."""
    if owner is None or owner.table_bytes is None:
        return ""
    same = sorted(one.processes for one in found if (one.strategy, one.table_bytes) == ("one_owner", owner.table_bytes))
    served = " and for ".join(f"{count} process{'' if count == 1 else 'es'}" for count in same)
    return f" One owner took {format_bytes(owner.table_bytes)} for {served}."


def _saves_little(run: ExperimentRun, each: Trial, saved: int) -> bool:
    """Whether one owner saves little beside what the processes take anyway."""
    beside = _beside_tables(run, each)
    return bool(beside) and costing((beside + saved) / beside) == "note"


def _owner_is_worth_it(run: ExperimentRun, each: Trial | None, owner: Trial | None) -> bool:
    if each is None or owner is None or each.table_bytes is None or owner.table_bytes is None:
        return True
    return not _saves_little(run, each, each.table_bytes - owner.table_bytes)


def _worth_of_an_owner(run: ExperimentRun, each: Trial, saved: int) -> str:
    """Whether one owner saves much."""
    where = "GPU buffers (cudaIpcOpenMemHandle)" if run.lab == "cuda" else "buffers"
    how = f"let one process own and pin it and copy into the others' {where}"
    beside = _beside_tables(run, each)
    kind = "for their contexts" if run.lab == "cuda" else "of shared memory"
    if _saves_little(run, each, saved):
        return (
            f"Not worth a change at this size: one owner saves {format_bytes(saved)}, beside {format_bytes(beside)} "
            f"{kind}. Where far more memory is shared, or by more processes, {how}."
        )
    return f"Where much memory is shared by many processes, {how}."


def _contexts(each: Trial | None) -> Iterator[Finding]:
    if each is None or not each.context_bytes or not each.table_bytes:
        return
    if min(each.context_bytes, each.table_bytes) < 0:  # others gave memory back meanwhile
        return
    one = each.context_bytes / each.processes
    per_process = each.table_bytes / each.processes
    as_much = each.bytes * one / per_process
    yield note(
        "contexts-beside-tables",
        quantity("Contexts of all", each.context_bytes, "bytes"),
        quantity("Page tables of all", each.table_bytes, "bytes"),
        title=f"A process's CUDA context takes {format_bytes(round(one))}, its page table "
        f"{format_bytes(round(per_process))}",
        detail=f"Below {format_bytes(round(as_much))} of pinned memory a process's context takes more GPU memory "
        "than its page table.",
        advice="Count a context for every process on every GPU that it uses, whatever it pins.",
    )


def _counted_again(each: Trial | None) -> Iterator[Finding]:
    if each is None or each.host_pinned_bytes is None or each.processes < 2:
        return
    if each.host_pinned_bytes < 1.5 * each.bytes:
        return
    yield note(
        "host-counts-again",
        quantity("Host pins", each.host_pinned_bytes, "bytes"),
        title=f"The host counts {format_bytes(each.host_pinned_bytes)} as pinned for "
        f"{format_bytes(each.bytes)} of memory",
        detail=f"Linux counts {format_bytes(each.bytes)} once for each of {each.processes} registrations; only "
        f"{format_bytes(each.bytes)} of memory are used.",
        advice="Do not read the host's count of pins as an amount of memory where processes share what they pin.",
    )


def _rates(run: ExperimentRun, each: Trial | None, owner: Trial | None) -> Iterator[Finding]:
    if each is None or owner is None or not each.rate or not owner.rate or each.processes < 2:
        return
    ratio = owner.rate.median / each.rate.median
    evidence = (
        measured(f"{each.processes} processes register", each.rate, "bytes/second"),
        measured(f"One owner for {each.processes} processes", owner.rate, "bytes/second"),
    )
    ours, theirs = format_bandwidth(owner.rate.median), format_bandwidth(each.rate.median)
    if ratio >= 1 - SAME_RATE:
        where = "On one GPU" if run.lab == "cuda" else "On the host model"
        yield good(
            "owner-as-fast",
            *evidence,
            title=f"{where}, one owner copies for {each.processes} processes "
            f"{_how_fast(owner.rate, each.rate)} they do themselves: {ours} against {theirs}",
            detail=f"{_link_words(run, min(owner.rate.median, each.rate.median))}The bandwidth of large copies was "
            "compared, not latency or the owner's processor time.",
            advice="For large copies to one GPU, one process may copy for all. This result does not cover small copies "
            "or several GPUs; measure those separately.",
        )
        return
    if not exceeds(each.rate, owner.rate):
        return
    yield note(
        "owner-slower",
        *evidence,
        title=f"One owner copies for {each.processes} processes at {ours}, {format_share(ratio)} of the {theirs} that "
        "they reach themselves",
        detail="The bandwidth of large copies was compared.",
        advice="Compare the page tables saved with the rate lost; one owner for each NUMA node or GPU may be enough.",
    )


def _sharings(run: ExperimentRun, found: Sequence[Trial]) -> Iterator[Finding]:
    """Whether the sort of shared memory changes what registering it takes."""
    alike = [trial for trial in found if trial.strategy == "each_registers" and trial.table_bytes is not None]
    most = max((trial.processes for trial in alike), default=0)
    alike = [trial for trial in alike if trial.processes == most]
    if len(alike) < 2:
        return
    sizes = [trial.table_bytes or 0 for trial in alike]
    same = max(sizes) - min(sizes) <= (GRANULE_BYTES if run.lab == "cuda" else 0.02 * max(sizes))
    least = min(alike, key=lambda trial: trial.table_bytes or 0)
    amount = format_bytes(alike[0].bytes)
    title = (
        f"The kind of shared memory makes no difference to the page tables: each of {len(alike)} kinds took "
        f"{format_bytes(sizes[0])} for {most} processes"
        if same
        else f"The kind of shared memory matters: page tables of {most} processes take {format_bytes(min(sizes))} with "
        f"{least.sharing_title}, up to {format_bytes(max(sizes))} with the others"
    )
    yield note(
        "sorts-of-shared-memory",
        *(quantity(f"Page tables, {trial.sharing_title}", trial.table_bytes, "bytes") for trial in alike),
        *(
            quantity(f"Touching and registering once, {trial.sharing_title}", _until_pinned(trial), "seconds")
            for trial in alike
        ),
        title=title,
        detail=f"{amount} were registered: {', '.join(trial.sharing_title for trial in alike)}.",
        advice="Choose the kind that suits the program: times were read too seldom to rank them."
        if same
        else f"Where page tables matter, take {least.sharing_title}.",
    )


def _until_pinned(trial: Trial) -> float:
    """Touching all of it, and registering it in one process."""
    return (trial.touch_seconds or 0.0) + (median(trial.pin_seconds) or 0.0)


def _how_fast(ours: Summary, theirs: Summary) -> str:
    faster = ours.median > (1 + SAME_RATE) * theirs.median and exceeds(ours, theirs)
    return "faster than" if faster else "as fast as"


def _link_words(run: ExperimentRun, rate: float) -> str:
    """Whether the GPU's link was the limit, where that is known."""
    if run.gpu is None or run.gpu.link is None:
        return ""
    limit = run.gpu.link.limit_bytes_per_second
    if limit is None or rate < SATURATED * limit:
        return ""
    most = f"{format_bandwidth(limit)}{packet_words(run.gpu.link)}"
    return f"The link carries at most {most} and was nearly full either way. "


def _left(run: ExperimentRun, found: Sequence[Trial]) -> Iterator[Finding]:
    kept = [trial for trial in found if (trial.left_bytes or 0) > 2 * GRANULE_BYTES]
    if run.lab != "cuda" or not kept:
        return
    worst = max(kept, key=lambda trial: trial.left_bytes or 0)
    yield warning(
        "gpu-memory-left",
        quantity("Left", worst.left_bytes, "bytes"),
        title=f"{format_bytes(worst.left_bytes)} of GPU memory were still used when all processes had ended",
        detail=f"The case: {worst.title}, {worst.processes} processes. Another process that took memory "
        "meanwhile would look the same.",
        advice="Run it again while nothing else uses the GPU.",
    )
