"""Prices of pinning: what runs of this machine, or recordings, tell of page tables, contexts and time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal, TypeVar

from pinscope.analysis import pinning_strategy
from pinscope.analysis.models import ENTRY_BYTES, GPU_PAGE_SIZES, GRANULE_BYTES
from pinscope.analysis.read_rows import Row
from pinscope.errors import BadInput, InvalidParameter, UnknownName
from pinscope.experiments.page_tables.reading import cells_of
from pinscope.experiments.registration.reading import trials
from pinscope.experiments.registry import checked_rows
from pinscope.records.environment import Environment
from pinscope.records.registration import SHARED_STRATEGIES
from pinscope.records.run import ExperimentRun, Run
from pinscope.store.choice import NEWEST
from pinscope.store.recordings import recorded_runs
from pinscope.store.store import Store

Source = Literal["given", "measured", "recorded", "assumed"]
"""Where a price comes from: the user, a run of this machine, a recording that ships with PinScope, or nowhere."""


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
        strategy: its name in the experiment ``pinning_strategy``; of shared memory, in ``registration``.
        bytes_per_second: measured over ``measured_bytes``; of shared memory until all processes had pinned it.
        measured_bytes: how much was pinned then.
        longest_wait_seconds: of a neighbour's call while that much was pinned and given back; ``None`` where no
            neighbour was there.
        chunk_bytes: length of the chunks; ``None`` where all is pinned by one call.
        origin: where it comes from.
        processes: how many pinned it.
    """

    strategy: str
    bytes_per_second: float
    measured_bytes: int
    longest_wait_seconds: float | None
    chunk_bytes: int | None
    origin: Origin
    processes: int = 1

    def seconds_for(self, nbytes: int) -> float:
        """Seconds to pin this much at the same pace."""
        return nbytes / self.bytes_per_second

    def wait_for(self, nbytes: int) -> float | None:
        """The longest wait while this much is pinned; ``None`` unless it is what was measured.

        No rule is known by which waits grow with the amount: a run measures one amount.
        """
        return self.longest_wait_seconds if nbytes == self.measured_bytes else None


LARGEST_CHUNK_BYTES = 64 * 2**30
"""Pieces to advise where nothing else decides."""
_Price = TypeVar("_Price")
_Pinning = tuple[tuple[Pace, ...], pinning_strategy.Recommended[pinning_strategy.Recipe]]
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
    recipes: pinning_strategy.Recommended[pinning_strategy.Recipe] | None
    recorded: Environment | None


def like_run(store: Store, word: str) -> Run:
    """The run of that id or its only beginning, else the newest recording of a GPU with that word in its name.

    Raises:
        InvalidParameter: there is none.
        StoreFailed: the database cannot be read.
    """
    try:
        return store.run(word)
    except UnknownName as error:
        for run in sorted(recorded_runs(), key=lambda run: run.created_at, reverse=True):
            if any(word.lower() in device.name.lower() for device in run.environment.devices):
                return run
        raise InvalidParameter(f"like: {error}; nor is it a word of a recorded GPU's name") from None


def known_prices(
    store: Store,
    environment: Environment,
    like: Run | None = None,
    tells: Callable[[Pace], bool] = lambda _: True,
    sharers: int = 1,
) -> Prices:
    """The newest that a run of this machine's GPUs tells, else what a recording does, of the same GPU before others.

    Args:
        store: where runs are kept.
        environment: this machine.
        like: a run whose host the plan is for: it tells first, then runs of its machine, then of its GPU.
        tells: whether a pace says anything of the amount; a run with no such pace is passed over.
        sharers: how many processes share the memory.

    Raises:
        StoreFailed: the database cannot be read.
    """
    recorded: list[Environment] = []

    def first(experiment: str, read: Callable[[Origin, ExperimentRun, Sequence[Row]], _Price | None]) -> _Price | None:
        runs: Iterator[ExperimentRun] = nearest_runs(store, experiment, like.environment if like else environment)
        if isinstance(like, ExperimentRun) and (like.experiment, like.lab) == (experiment, "cuda"):
            runs = chain([like], runs)
        for run in runs:
            is_here = run.environment.machine_id == environment.machine_id and not run.recording
            origin = Origin("measured" if is_here else "recorded", run.id, run.gpu.name if run.gpu else None)
            try:
                price = read(origin, run, checked_rows(run.experiment, store.observations(run.id)))
            except (BadInput, ArithmeticError):  # rows that make no sense, as those of an imported run may
                continue
            if price:
                recorded.extend([] if is_here else [run.environment])
                return price
        return None

    def pinning(origin: Origin, run: ExperimentRun, rows: Sequence[Row]) -> _Pinning | None:
        price = _pinning(origin, run, rows) if sharers == 1 else _sharing(origin, rows, sharers)
        return price if any(map(tells, price[0])) else None

    paces, recommended = first("pinning_strategy" if sharers == 1 else "registration", pinning) or ((), None)
    return Prices(
        page=first("page_tables", _page_price) or ASSUMED,
        context=first("registration", _context_price),
        paces=paces,
        recipes=recommended,
        recorded=recorded[0] if recorded else None,
    )


def nearest_runs(store: Store, experiment: str, environment: Environment) -> Iterator[ExperimentRun]:
    """Runs of an experiment on a GPU that tell something of a machine: its own, newest first, then recordings, of the
    same model of GPU before others.

    Raises:
        StoreFailed: the database cannot be read.
    """
    models, recordings = {device.name for device in environment.devices}, []
    for run in store.each_run(experiment=experiment, lab="cuda", most=NEWEST):
        if not isinstance(run, ExperimentRun) or not run.observations:
            continue
        if run.recording:
            recordings.append(run)
        elif run.environment.machine_id == environment.machine_id:
            yield run
    yield from sorted(recordings, key=lambda run: not (run.gpu and run.gpu.name in models))


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


def _pinning(origin: Origin, run: ExperimentRun, rows: Sequence[Row]) -> _Pinning:
    """How fast each strategy pins, and which are recommended."""
    cells = pinning_strategy.strategy_cells(rows)
    paces = tuple(
        Pace(cell.strategy, cell.bytes_per_second, cell.bytes, cell.longest_wait.seconds, cell.chunk_bytes, origin)
        for cell in cells.values()
        if cell.strategy != pinning_strategy.IDLE and cell.bytes_per_second > 0
    )
    return paces, pinning_strategy.recipes_of(pinning_strategy.recommend(cells), run.params)


def _sharing(origin: Origin, rows: Sequence[Row], sharers: int) -> _Pinning:
    """How fast that many processes have shared memory pinned: of the least number measured that is no smaller."""
    known = [trial for trial in trials(rows) if trial.sharing in SHARED_STRATEGIES and trial.processes >= sharers]
    least = min((trial.processes for trial in known if trial.all_seconds), default=None)
    paces = tuple(
        Pace(trial.sharing, trial.bytes / trial.all_seconds, trial.bytes, None, None, origin, trial.processes)
        for trial in known
        if trial.sharing and trial.all_seconds and trial.processes == least
    )
    array, chunks = (
        pinning_strategy.Recipe(pinning_strategy.DEFAULT_SHARED, length, threads=0)
        for length in (None, LARGEST_CHUNK_BYTES)
    )
    return paces, pinning_strategy.Recommended(array, chunks, gentler_in_chunks=False)
