"""What a registration run looks like: GPU memory by what it is for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pinscope.charts.marks import Chart
from pinscope.charts.plot import Bar, Scale, TimePart, bars, parts_of_time
from pinscope.experiments.registration.reading import WAYS, PageTables, Registrations, Trial
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bytes

PAGES = Scale("Page tables (MiB)", 2**20, format_bytes)
MEMORY = Scale("GPU memory of all processes (GiB)", 2**30, format_bytes)
KINDS = {name: TimePart(way.title, way.style.colour) for name, way in WAYS.items() if way.style}
MEMORY_PARTS = (TimePart("contexts", "reference"), TimePart("buffers", "device"), TimePart("page tables", "page_table"))


def draw(run: ExperimentRun, shared: Registrations) -> Iterator[Chart]:
    """The charts of a registration run; only those for which something was measured."""
    del run
    yield from _tables(shared)
    yield from _trials(shared.trials)


def _tables(shared: Registrations) -> Iterator[Chart]:
    """Page tables on one GPU, and on each of several."""
    taken: Sequence[Trial | PageTables] = (*shared.trials, *shared.on_gpus)
    tables = [Bar(cell.title, size, KINDS[cell.strategy]) for cell in taken if (size := cell.table_bytes) is not None]
    if tables:
        memory = "memory of each GPU" if shared.on_gpus else f"memory of GPU {shared.run.device}"
        where = memory if shared.run.lab == "cuda" else "the kernel's page tables of the processes"
        yield bars(
            "registration-tables",
            "Page tables of all processes",
            f"What {where} grew by while the processes pinned the same {format_bytes(taken[0].bytes)}. Where "
            "each registers it, every process pays again.",
            {"": tables},
            PAGES,
            "Page tables of all processes",
        )


def _trials(trials: Sequence[Trial]) -> Iterator[Chart]:
    """What was taken for what on one GPU."""
    memory = {
        trial.title: (trial.context_bytes, trial.buffer_bytes or 0, trial.table_bytes)
        for trial in trials
        if trial.context_bytes is not None and trial.table_bytes is not None
    }
    if memory:
        yield parts_of_time(
            "registration-memory",
            "What GPU memory is taken for",
            "Readings of the whole GPU between the steps: contexts once the processes had started, buffers once they "
            "had taken them, page tables once they had pinned.",
            MEMORY_PARTS,
            memory,
            "GPU memory of all processes",
            axis=MEMORY,
        )
