"""How much GPU memory a pinned gigabyte takes: pin growing amounts, and read what is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from pinscope.errors import NotPossible
from pinscope.experiments.contract import AnyExperiment, BareParams, Bytes, Several, parameter
from pinscope.experiments.page_tables.reading import read_page_tables
from pinscope.lab.backing import HUGE_PAGE, touch
from pinscope.lab.harness import Harness
from pinscope.lab.protocol import Lab
from pinscope.records.budget import Budget
from pinscope.records.environment import Environment
from pinscope.records.run import Backing, LabKind, Observation
from pinscope.units import format_bytes, parse_bytes

Pinning = Literal["pinned", "registered"]
SMALLEST_TOTAL = 8 * 2**20
PAGE = 4096


class PageTablesParams(BareParams):
    """How much to pin, in which steps and ways."""

    total: Bytes = parameter("Most memory", "Host memory that each way has pinned after its last step.")
    steps: int = parameter(
        "Steps", "Number of equal steps in which each way pins it. What is used is read after each step.",
        unit="count", ge=4, le=1024,
    )  # fmt: skip
    memory: Several[Pinning] = parameter(
        "Ways", "Pinned when it is allocated (cudaHostAlloc), or ordinary memory registered (cudaHostRegister)."
    )
    backings: Several[Backing] = parameter(
        "Backings",
        "Pages under registered memory: small pages (4k), transparent huge pages (thp), reserved huge pages (hugetlb) "
        "or shared memory (shm).",
    )
    all_devices: bool = parameter(
        "All GPUs", "Make a context on every GPU of this machine, and read how much memory each GPU uses."
    )

    @classmethod
    def preset(cls, lab: LabKind, quick: bool) -> PageTablesParams:
        if lab == "host":
            total, steps = ("128MiB", 16) if quick else ("1GiB", 64)
        else:
            total, steps = ("4GiB", 64) if quick else ("12GiB", 192)
        backings: tuple[Backing, ...] = ("4k", "thp") if quick else ("4k", "thp", "shm", "hugetlb")
        return cls(
            total=parse_bytes(total), steps=steps, memory=("pinned", "registered"), backings=backings, all_devices=True
        )

    def smaller(self) -> PageTablesParams | None:
        """Without hugetlb pages, which few machines reserve; then half as much."""
        if "hugetlb" in self.backings and len(self.backings) > 1:
            return self.with_overrides({"backings": tuple(name for name in self.backings if name != "hugetlb")})
        return self.with_overrides({"total": self.total // 2}) if self.total >= 2 * SMALLEST_TOTAL else None

    @property
    def step_bytes(self) -> int:
        """One step, in whole pages."""
        return max(self.total // self.steps // PAGE, 1) * PAGE


class PageTablesObservation(Observation):
    """What was used on one device at one moment. ``repeat`` is the step."""

    memory: Pinning
    """How it was pinned."""
    backing: Backing | None
    """``None`` for memory that CUDA allocates itself."""
    phase: Literal["before", "held", "freed"]
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


@dataclass(frozen=True)
class Labels:
    """One way of pinning."""

    memory: Pinning
    backing: Backing | None

    @property
    def words(self) -> str:
        """For people."""
        return f"{self.memory} ({self.backing})" if self.backing else self.memory


class PageTables:
    """Pins growing amounts and reads GPU memory after each step."""

    name = "page_tables"
    title = "Page tables"
    summary = "GPU memory that pinned host memory takes"
    question = "How much GPU memory does a pinned gigabyte take, on how many GPUs, and does it come back?"
    method = (
        "To copy from pinned memory a GPU needs its page table: 8 bytes of GPU memory for each page. The memory is "
        "pinned in equal steps and held; after each step the memory used on every GPU is read, by NVML and by "
        "cudaMemGetInfo. A first step is pinned and freed before the count, and the contexts are made before it, so "
        "that neither is in the figures. A GPU's memory is taken in steps of 2 MiB, so any two readings bound the "
        "bytes of page table per pinned byte: by the growth between them, one step less and one step more. What all "
        "pairs leave is the interval that is given, and 8 bytes divided by it is the page size it implies. Ordinary "
        "memory is touched by one thread and then registered, each timed apart. What other processes take or give "
        "back on the GPU meanwhile is in the figures too. On the host model the memory is locked, and the page tables "
        "are those that the kernel keeps for the process (VmPTE)."
    )
    labs: Mapping[LabKind, str | None] = {"cuda": None, "host": None}
    Params = PageTablesParams
    Observation = PageTablesObservation

    def budget(self, params: PageTablesParams, environment: Environment) -> Budget:
        """One way at a time; about 0.6 s a GiB to touch, pin and free."""
        taken = {labels.backing: _taken_bytes(params, labels.backing, environment) for labels in _ways(params)}
        return Budget(
            pinned_bytes=params.step_bytes * params.steps,
            # What is left of the huge page under each step is taken, but not pinned.
            pageable_bytes=max(taken.values()) - params.step_bytes * params.steps,
            # As if in 4 KiB pages, twice: entries and steps.
            device_bytes=2 * params.total // 512 + 64 * 2**20,
            hugetlb_bytes=taken.get("hugetlb", 0),
            seconds=2.0 + 0.6 * sum(_taken_bytes(params, labels.backing, environment) for labels in _ways(params))
            / 2**30,
        )  # fmt: skip

    def measure(self, params: PageTablesParams, lab: Lab, harness: Harness) -> Iterator[PageTablesObservation]:
        """Every way in turn."""
        ways = self._possible(params, lab, harness)
        with ExitStack() as stack:
            others = [index for index in lab.peers() if index != lab.device] if params.all_devices else []
            labs = [lab, *(stack.enter_context(lab.peer(index)) for index in others)]
            for number, labels in enumerate(ways):

                def progress(share: float, number: int = number, labels: Labels = labels) -> None:
                    amount = format_bytes(int(share * params.total))
                    harness.progress((number + share) / len(ways), f"{labels.words}: {amount}")

                yield from _grow(params, labs, labels, harness.clock, progress)
        harness.progress(1.0, "done")

    def _possible(self, params: PageTablesParams, lab: Lab, harness: Harness) -> list[Labels]:
        """The ways this machine can go; the others are noted."""
        ways, reasons = [], []
        for labels in _ways(params):
            reason = lab.why_not(labels.memory, backing=labels.backing or "4k")
            if reason:
                harness.note(f"Left out: {labels.words}. {reason}")
                reasons.append(reason)
            else:
                ways.append(labels)
        if not ways:
            raise NotPossible(f"nothing can be pinned in the ways asked for: {reasons[0]}")
        return ways

    read = staticmethod(read_page_tables)
    """Bytes of page table per pinned byte, the page size it implies, and what comes back."""


def _ways(params: PageTablesParams) -> list[Labels]:
    ways: list[Labels] = []
    for memory in params.memory:
        ways += [Labels(memory, None)] if memory == "pinned" else [Labels(memory, one) for one in params.backings]
    return ways


def _taken_bytes(params: PageTablesParams, backing: Backing | None, environment: Environment) -> int:
    """What all steps of one way take: on huge pages each step takes whole ones, however little of them it pins."""
    pages = {"thp": HUGE_PAGE, "hugetlb": environment.huge_pages.hugetlb_page_bytes or HUGE_PAGE}
    page = pages.get(backing or "", PAGE)
    return -(-params.step_bytes // page) * page * params.steps


def _grow(
    params: PageTablesParams,
    labs: Sequence[Lab],
    labels: Labels,
    clock: Callable[[], float],
    progress: Callable[[float], None],
) -> Iterator[PageTablesObservation]:
    """Pin step by step, reading each device after each; then free all and read once more."""
    own, size = labs[0], params.step_bytes

    def observe(
        phase: Literal["before", "held", "freed"],
        step: int,
        *,
        touch_seconds: float | None = None,
        pin_seconds: float | None = None,
        free_seconds: float | None = None,
        warmup: bool = False,
    ) -> Iterator[PageTablesObservation]:
        for lab in labs:
            state, timed = lab.memory_state(), lab is own
            yield PageTablesObservation(
                repeat=step, warmup=warmup, memory=labels.memory, backing=labels.backing, phase=phase,
                device=lab.device, devices=len(labs), bytes=step * size, step_bytes=size if step else 0,
                device_used_bytes=state.device_used_bytes, nvml_used_bytes=state.nvml_used_bytes,
                pinned_bytes=state.pinned_bytes, page_table_bytes=state.page_table_bytes,
                touch_seconds=touch_seconds if timed else None, pin_seconds=pin_seconds if timed else None,
                free_seconds=free_seconds if timed else None,
            )  # fmt: skip

    with ExitStack() as first:
        touched, pinned = _pin(first, own, labels, size, clock)
        yield from observe("held", 1, touch_seconds=touched, pin_seconds=pinned, warmup=True)
    yield from observe("before", 0)
    with ExitStack() as held:
        for step in range(1, params.steps + 1):
            progress((step - 1) / params.steps)
            touched, pinned = _pin(held, own, labels, size, clock)
            yield from observe("held", step, touch_seconds=touched, pin_seconds=pinned)
        begun = clock()
    yield from observe("freed", 0, free_seconds=clock() - begun)


def _pin(
    stack: ExitStack, lab: Lab, labels: Labels, nbytes: int, clock: Callable[[], float]
) -> tuple[float | None, float]:
    """Pin one step more: seconds of touching, where that is a part of its own, and of pinning."""
    if labels.backing is None:
        begun = clock()
        stack.enter_context(lab.host_buffer(nbytes, labels.memory))
        return None, clock() - begun
    memory = stack.enter_context(lab.ordinary_memory(nbytes, labels.backing))
    begun = clock()
    touch(memory)
    touched = clock()
    stack.enter_context(lab.register(memory))
    return touched - begun, clock() - touched


EXPERIMENT: AnyExperiment = PageTables()
