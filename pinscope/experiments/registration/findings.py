"""What a registration run found out: who pays again, beside what, and what GPUs add."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pinscope.analysis.models import GRANULE_BYTES
from pinscope.analysis.statistics import exceeds, measured
from pinscope.analysis.texts import Costed, Text, joined, saying
from pinscope.experiments.registration.reading import RATE, SOURCES, Registrations, all_of, pages_words
from pinscope.records.run import quantity
from pinscope.units import format_bytes, format_count

AGAIN = 1.5
"""Times the first process's page tables, or the memory: from here on others have paid, or were counted, again."""
TEXTS: Mapping[str, Text] = {
    "every-process-pays": Text(
        when="page tables of several processes are 1.5 times those of the first, or more",
        title="Each of {apart.processes} processes pays again for the same memory: {apart.table_bytes:bytes} of page "
        "tables, {more:.1f} times those of one",
        detail="The first process took {first:bytes} for {apart.bytes:bytes}.[ One owner took {owned:bytes} for "
        "{served}.]",
        advice="[Not worth a change for GPU memory at this size: one owner would save {little:bytes}, beside "
        "{beside:bytes} {kind}. ]Where far more memory is shared, let one process own and pin it and copy into the "
        "others' {buffers}.",
    ),
    "contexts-beside-tables": Text(
        when="contexts and page tables of the processes are known",
        title="A process's CUDA context takes {context:bytes}, its page table {table:bytes}",
        detail="Below {even:bytes} of pinned memory a process's context takes more GPU memory than its page table.",
        advice="Count a context for every process on every GPU that it uses, whatever it pins.",
    ),
    "host-counts-again": Text(
        when="the host counts 1.5 times the memory as pinned, or more",
        title="The host counts {apart.host_pinned_bytes:bytes} as pinned for {apart.bytes:bytes} of memory",
        detail="Linux counts {apart.bytes:bytes} once for each of {apart.processes} registrations; only "
        "{apart.bytes:bytes} of memory is used.",
        advice="Do not read the host's count of pins as an amount of memory where processes share what they pin.",
    ),
    "page-tables-everywhere": Text(
        when="processes with a context on every GPU register memory, and page tables are what their arithmetic says",
        title="{registering}",
        detail="Each process takes 8 bytes of GPU memory for each 4 KiB page, on every GPU on which it has a context.[ "
        "With one process per GPU, each with a context there alone, page tables take {own} on a GPU.]",
        advice="Give a process only the GPUs that it uses (CUDA_VISIBLE_DEVICES): on the others it takes neither page "
        "tables nor a context.",
    ),
    "through-opened": Text(
        when="a process copied into memory of another GPU",
        title="Into another GPU's memory a process copies at {host:rate} from pinned memory[, at {better:rate} from "
        "its GPU]",
        detail="The slowest of {count} combinations of GPUs; the memory was opened by CUDA IPC.",
        advice="Where page tables matter, one process can pin what several need, and copy it into the GPU memory of "
        "the others. Give them what a GPU holds already from that GPU, where that is faster.",
    ),
    "gpu-memory-left": Text(
        when="more GPU memory than two steps of the meter is still used when all processes have ended",
        title="{worst.left_bytes:bytes} of GPU memory were still used when all processes had ended",
        detail="The case: {worst.title}. Another process that took memory meanwhile would look the same.",
        advice="Run it again while nothing else uses the GPU.",
        severity="warning",
    ),
}
say = saying(TEXTS)


def _pays(shared: Registrations) -> Iterator[Costed]:
    """Where every process pays for the same memory again."""
    (apart, owner), cuda = shared.both, shared.run.lab == "cuda"
    if apart is None or apart.table_bytes is None or apart.processes < 2:
        return
    first = apart.table_steps[0]
    if first < (GRANULE_BYTES if cuda else 1) or apart.table_bytes < AGAIN * first:
        return
    owned, beside = owner.table_bytes if owner else None, shared.beside_bytes
    once = first if owned is None else owned
    saved, cost = apart.table_bytes - once, (beside + apart.table_bytes) / (beside + once)
    alike = (trial.processes for trial in shared.trials if (trial.strategy, trial.table_bytes) == ("one_owner", owned))
    values: dict[str, Any] = {"first": first, "owned": owned, "beside": beside, "more": apart.table_bytes / first}
    yield say(
        "every-process-pays",
        quantity("Page tables of the first process", first, "bytes"),
        quantity(f"Page tables of {all_of(apart.processes)}", apart.table_bytes, "bytes"),
        *([quantity("Page tables with one owner", once, "bytes")] if owner else []),
        cost=cost,
        severity="by cost",
        apart=apart,
        little=saved if shared.saves_little(saved) else None,
        served=" and for ".join(format_count(count, "process") for count in sorted(alike)),
        kind="for their contexts" if cuda else "of shared memory",
        buffers="GPU buffers (cudaIpcOpenMemHandle)" if cuda else "buffers",
        **values,
    )


def _contexts(shared: Registrations) -> Iterator[Costed]:
    """Unless others gave memory back meanwhile."""
    apart, _ = shared.both
    if apart and apart.context_bytes and apart.table_bytes and min(apart.context_bytes, apart.table_bytes) > 0:
        context, table = apart.context_bytes / apart.processes, apart.table_bytes / apart.processes
        sizes: dict[str, Any] = {"context": round(context), "table": round(table)}
        evidence = (
            quantity("Contexts of all", apart.context_bytes, "bytes"),
            quantity("Page tables of all", apart.table_bytes, "bytes"),
        )
        yield say("contexts-beside-tables", *evidence, even=round(apart.bytes * context / table), **sizes)


def _counted_again(shared: Registrations) -> Iterator[Costed]:
    apart, _ = shared.both
    if apart and apart.processes > 1 and (apart.host_pinned_bytes or 0) >= AGAIN * apart.bytes:
        yield say("host-counts-again", quantity("Host pins", apart.host_pinned_bytes, "bytes"), apart=apart)


def _tables(shared: Registrations) -> Iterator[Costed]:
    """Page tables on each GPU, where they are what their arithmetic says."""
    known = [table for table in shared.on_gpus if table.table_bytes is not None]
    words = pages_words(shared)
    if words and all(table.table_bytes == table.expected_bytes for table in known):
        own = sorted({table.table_bytes or 0 for table in known if table.contexts == "own_gpu"})
        evidence = (quantity(table.title, table.table_bytes, "bytes") for table in known)
        say_own = joined(list(map(format_bytes, own))) or None
        yield say("page-tables-everywhere", *evidence, registering=words, own=say_own)


def _through(shared: Registrations) -> Iterator[Costed]:
    """How fast copies through opened memory are; from a GPU where host memory is slower."""
    rates = {source: [opened.rates[source] for opened in shared.opened if source in opened.rates] for source in SOURCES}
    host, device = (min(own, key=lambda rate: rate.median, default=None) for own in rates.values())
    if host:
        better = device if device and exceeds(device, host) else None
        evidence = (
            measured(f"{opened.title}, {SOURCES[source]}", rate, RATE)
            for opened in shared.opened[:4]
            for source, rate in opened.rates.items()
        )
        values: dict[str, Any] = {"host": host.median, "count": len(rates["host"]), "better": better and better.median}
        yield say("through-opened", *evidence, **values)


def _left(shared: Registrations) -> Iterator[Costed]:
    """GPU memory that stayed used when all processes had ended."""
    worst = max(shared.trials, key=lambda trial: trial.left_bytes or 0, default=None)
    if worst and shared.run.lab == "cuda" and (worst.left_bytes or 0) > 2 * GRANULE_BYTES:
        yield say("gpu-memory-left", quantity("Left", worst.left_bytes, "bytes"), worst=worst)


RULES = (_pays, _contexts, _counted_again, _tables, _through, _left)
