"""How much GPU memory a pinned gigabyte takes: pin growing amounts, and read what is used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Annotated, Literal, cast, get_args

from pydantic import Field

from pinscope.experiments.contract import AnyExperiment, BareParams, Case, Progress, possible
from pinscope.experiments.page_tables import ways
from pinscope.experiments.page_tables.ways import Labels, Pinning, Steps
from pinscope.lab.backing import PAGE
from pinscope.lab.harness import Harness
from pinscope.lab.protocol import Lab
from pinscope.records.environment import Environment
from pinscope.records.parameters import Bytes, Several, parameter
from pinscope.records.run import Backing, LabKind, Observation
from pinscope.units import format_bytes, parse_bytes

SMALLEST_TOTAL = 8 * 2**20
Phase = Literal["before", "held", "freed"]
Times = tuple[float | None, float | None]


class PageTablesParams(BareParams):
    """How much to pin, in which steps and ways."""

    total: Bytes = parameter("Most memory", "Host memory that each way has pinned after its last step.")
    steps: int = parameter(
        "Steps",
        "Number of equal steps in which each way pins it. What is used is read after each step.",
        unit="count",
        ge=4,
        le=1024,
    )
    memory: Several[Pinning] = parameter(
        "Ways", "; ".join(f"{name}: {way.help}" for name, way in ways.WAYS.items()) + "."
    )
    backings: Several[Backing] = parameter(
        "Backings",
        f"Pages under registered memory. {'; '.join(f'{name}: {way.title}' for name, way in ways.BACKINGS.items())}.",
    )
    all_devices: bool = parameter(
        "All GPUs", "Make a context on every GPU of this machine, and read how much memory each GPU uses."
    )

    @classmethod
    def preset(cls, lab: LabKind, quick: bool) -> PageTablesParams:
        if lab == "host":
            total, steps = ("128MiB", 16) if quick else ("1GiB", 64)
        else:
            total, steps = ("2GiB", 64) if quick else ("6GiB", 96)
        return cls(
            total=parse_bytes(total),
            steps=steps,
            memory=("pinned", "registered") if quick or lab == "host" else get_args(Pinning),
            backings=("4k", "thp") if quick else cast("tuple[Backing, ...]", tuple(ways.BACKINGS)),
            all_devices=True,
        )

    def smaller(self) -> PageTablesParams | None:
        """Half as much."""
        return self.with_overrides({"total": self.total // 2}) if self.total >= 2 * SMALLEST_TOTAL else None

    @property
    def asked(self) -> Steps:
        """The steps, in whole pages."""
        return Steps(max(self.total // self.steps // PAGE, 1) * PAGE, self.steps)


class PageTablesObservation(Observation):
    """What was used on one device at one moment. ``repeat`` is the step."""

    memory: Pinning
    """How it was pinned, such as ``pinned``, ``registered`` or ``created``."""
    backing: Backing | None
    """``None`` for memory that CUDA allocates itself."""
    phase: Phase
    """``before`` the first step, while memory is ``held``, or after it was ``freed``."""
    device: int
    """Index of the GPU."""
    devices: int
    """GPUs with a context of this process."""
    bytes: Annotated[int, Field(ge=0)]
    """Pinned by this way at the moment."""
    step_bytes: int
    """Pinned by the last step."""
    device_used_bytes: int | None = None
    """Of the GPU, by everybody: cudaMemGetInfo."""
    nvml_used_bytes: int | None = None
    """Of the GPU, by everybody: NVML, without what the driver reserves."""
    pinned_bytes: int | None = None
    """Pinned on the whole host."""
    page_table_bytes: int | None = None
    """The kernel's page tables of this process."""
    touch_seconds: float | None = None
    """Writing to each page of the step for the first time, by one thread; of the run's own device only."""
    pin_seconds: float | None = None
    """Allocating pinned memory, or registering touched memory; likewise."""
    free_seconds: float | None = None
    """Giving all of it back; likewise."""


class PageTables:
    """Pins growing amounts and reads GPU memory after each step."""

    name = "page_tables"
    title = "Page tables"
    summary = "GPU memory that pinned host memory takes"
    question = "How much GPU memory does a pinned gigabyte take, on how many GPUs, and does it come back?"
    labs: Mapping[LabKind, str | None] = {"cuda": None, "host": None}
    Params = PageTablesParams
    Observation = PageTablesObservation
    start_seconds = 1.5

    def cases(self, params: PageTablesParams, environment: Environment | None = None) -> list[Case[Labels]]:
        """One way at a time; about 0.5 s a GiB to touch, pin and free.

        Reserved pages count where there is no other way: a way for which too few are reserved is left out.
        """
        asked, every, cases = params.asked, ways.ways(params.memory, params.backings), []
        only_reserved = all(labels.backing in ways.RESERVED for labels in every)
        for labels in every:
            taken = ways.taken_bytes(labels, asked, environment)
            cases.append(
                Case(
                    labels.words,
                    labels,
                    0.5 * taken / 2**30,
                    pinned_bytes=asked.whole,
                    # What is left of the huge page under each step is taken, but not pinned.
                    pageable_bytes=taken - asked.whole if only_reserved or labels.backing not in ways.RESERVED else 0,
                    # As if in 4 KiB pages, twice: entries and steps.
                    device_bytes=2 * params.total // 512 + 64 * 2**20,
                    hugetlb_bytes=taken if only_reserved and labels.backing == "hugetlb" else 0,
                )
            )
        return cases

    def measure(self, params: PageTablesParams, lab: Lab, harness: Harness) -> Iterator[PageTablesObservation]:
        """Every way in turn."""
        cases = possible(
            self.cases(params), harness, lambda labels: (labels.words, ways.why_not(lab, labels, params.asked))
        )
        for labels in (case.what for case in cases):
            if (whole := ways.steps_of(labels, params.asked).whole) < params.asked.whole:
                harness.note(f"{labels.words}: {format_bytes(whole)} only. No more pages of 1 GiB are free.")
        with ExitStack() as stack:
            others = [index for index in lab.peers() if index != lab.device] if params.all_devices else []
            labs = [lab, *(stack.enter_context(lab.peer(index)) for index in others)]
            for labels in Progress(cases, harness):
                yield from _grow(params.asked, labs, labels, harness)


def _grow(asked: Steps, labs: Sequence[Lab], labels: Labels, harness: Harness) -> Iterator[PageTablesObservation]:
    """Pin step by step, reading each device after each; then free all and read once more."""
    own, steps, clock = labs[0], ways.steps_of(labels, asked), harness.clock
    size = steps.bytes

    def observe(
        phase: Phase, step: int, times: Times = (None, None), *, free: float | None = None, warmup: bool = False
    ) -> Iterator[PageTablesObservation]:
        for lab in labs:
            state = lab.memory_state()
            touch, pin, freeing = (*times, free) if lab is own else (None, None, None)
            yield PageTablesObservation(
                repeat=step,
                warmup=warmup,
                memory=labels.memory,
                backing=labels.backing,
                phase=phase,
                device=lab.device,
                devices=len(labs),
                bytes=step * size,
                step_bytes=size if step else 0,
                device_used_bytes=state.device_used_bytes,
                nvml_used_bytes=state.nvml_used_bytes,
                pinned_bytes=state.pinned_bytes,
                page_table_bytes=state.page_table_bytes,
                touch_seconds=touch,
                pin_seconds=pin,
                free_seconds=freeing,
            )

    with ways.pinning(own, labels, size, clock) as pin_step:
        with ExitStack() as first:
            yield from observe("held", 1, pin_step(first), warmup=True)
        yield from observe("before", 0)
        with ExitStack() as held:
            for step in range(1, steps.count + 1):
                harness.check_cancelled()
                yield from observe("held", step, pin_step(held))
            begun = clock()
        yield from observe("freed", 0, free=clock() - begun)


EXPERIMENT: AnyExperiment = PageTables()
