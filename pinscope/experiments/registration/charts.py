"""What a registration run looks like: GPU memory by what it is for, the rate together, and the time to get there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from pinscope.analysis.rows import Rows, median
from pinscope.charts.chart import Chart
from pinscope.charts.plot import RATE, Length, Scale, TimePart, lengths, parts_of_time
from pinscope.experiments.registration.reading import Registrations, Trial
from pinscope.experiments.registration.ways import WAYS
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bytes

PAGES = Scale("Page tables (MiB)", 2**20, format_bytes)
MEMORY = Scale("GPU memory of all processes (GiB)", 2**30, format_bytes)
KINDS = {name: TimePart(way.title, way.style.colour) for name, way in WAYS.items() if way.style}
MEMORY_PARTS = (TimePart("contexts", "reference"), TimePart("buffers", "device"), TimePart("page tables", "page_table"))
TIME_PARTS = (
    TimePart("start-up (all at once)", "reference"),
    TimePart("touching", "touch"),
    TimePart("pinning (one after the other)", "pinned"),
)


def draw(run: ExperimentRun, rows: Rows) -> Iterator[Chart]:
    """The charts of a registration run; only those for which something was measured."""
    trials = Registrations(run, rows).trials
    tables = _bars(trials, lambda trial: trial.table_bytes)
    rates = _bars(trials, lambda trial: median(trial.bytes_per_second))
    memory = {
        trial.title: (trial.context_bytes, trial.buffer_bytes or 0, trial.table_bytes)
        for trial in trials
        if trial.context_bytes is not None and trial.table_bytes is not None
    }
    times = {
        trial.title: (trial.start_seconds or 0.0, trial.touch_seconds or 0.0, trial.pin_seconds * trial.pinners)
        for trial in trials
        if trial.pin_seconds is not None
    }
    if tables:
        where = f"memory of GPU {run.device}" if run.lab == "cuda" else "the kernel's page tables of the processes"
        yield lengths(
            "registration-tables",
            "Page tables of all processes",
            f"What {where} grew by while the processes pinned the same {format_bytes(trials[0].bytes)}. Where each "
            "registers it, every process pays again.",
            {"": tables},
            PAGES,
            "Page tables of all processes",
        )
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
    if rates:
        yield lengths(
            "registration-rate",
            "How fast all copy at once",
            "Medians over the rounds: all bytes over the time from the first beginning to the last end.",
            {"": rates},
            RATE,
            "Rate of all processes together",
        )
    if times:
        yield parts_of_time(
            "registration-times",
            "How long it takes until all have pinned",
            "Start-up is the median of the processes. Shared memory is touched by the first process only; the owner's "
            "pinning includes touching.",
            TIME_PARTS,
            times,
            "Time until all processes had pinned",
        )


def _bars(trials: Sequence[Trial], value: Callable[[Trial], float | None]) -> list[Length]:
    known = [(trial, length) for trial in trials if (length := value(trial)) is not None]
    return [Length(trial.title, length, KINDS[trial.strategy]) for trial, length in known]
