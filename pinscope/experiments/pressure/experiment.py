"""What pinned memory takes from everybody else on the host: pin growing amounts, and ask an ordinary process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pydantic import model_validator

from pinscope.analysis.page_table_model import GRANULE_BYTES
from pinscope.errors import NotEnoughMemory
from pinscope.experiments.contract import AnyExperiment, BareParams
from pinscope.experiments.pressure.findings import read_pressure_run
from pinscope.lab.budget import safe_pinned_bytes
from pinscope.lab.cached_file import folder_for
from pinscope.lab.child_processes import Child, ChildProcesses, Reply
from pinscope.lab.harness import Harness
from pinscope.lab.protocol import Lab
from pinscope.probes.host_memory import HostPressure, read_pressure
from pinscope.probes.limits import read_limits
from pinscope.records.budget import Budget
from pinscope.records.environment import Environment, Limits
from pinscope.records.parameters import Bytes, Seconds, Share, parameter
from pinscope.records.run import LabKind, Lasted, Observation, Positive
from pinscope.units import format_bytes, parse_bytes

Phase = Literal["before", "held", "after"]
PAGE = 4096
SMALLEST = 64 * 2**20
"""Less than this moves the host's figures no more than everybody else does."""
SMALLEST_FILE = 16 * 2**20
PACE = 4e9
"""Bytes/second at which memory is pinned and given back, for the estimate of a run's length (measured on an H200)."""
LEAST_ROUNDS, MOST_ROUNDS = 3, 200
START_SECONDS = 30.0
"""For the ordinary process to write its file: 512 MiB at 17 MB/s."""
GRACE_SECONDS = 10.0
"""How much longer than it was given it may take to answer before it is taken for hung."""


class PressureParams(BareParams):
    """How much to pin, in which steps, and what the ordinary process does."""

    share: Share = parameter(
        "Share of what is safe",
        "Percentage of the amount that is safe to pin here; at least 64 MiB are pinned.",
        gt=0,
        le=1,
    )
    cap: Bytes = parameter("Most memory", "Upper limit of the amount to pin, however much is safe.")
    steps: int = parameter("Steps", "Number of equal steps in which it is pinned.", unit="count", ge=1, le=64)
    floor: Bytes = parameter(
        "Floor", "Stop before less memory than this is available on the host or left in the container."
    )
    file: Bytes = parameter(
        "File", "Length of the file that an ordinary process, which pins nothing, reads again and again meanwhile."
    )
    sample: Bytes = parameter(
        "Fresh memory",
        "Amount of fresh memory that this process touches, page by page, in each round.",
        multiple_of=PAGE,
    )
    step_seconds: Seconds = parameter(
        "Time per step", "How long this process works at each step, three rounds at least.", gt=0, le=600
    )

    @model_validator(mode="after")
    def _fits(self) -> PressureParams:
        if self.cap < SMALLEST:
            raise ValueError(
                f"cap: must be {format_bytes(SMALLEST)} or more; less is lost among what other programs do"
            )
        return self

    @classmethod
    def preset(cls, lab: LabKind, quick: bool) -> PressureParams:
        return cls(
            share=0.5 if quick else 0.65,
            cap=parse_bytes("2GiB" if quick else "16GiB"),
            steps=4 if quick else 10,
            floor=parse_bytes("1GiB"),
            file=parse_bytes("128MiB" if quick else "512MiB"),
            sample=parse_bytes("16MiB" if quick else "64MiB"),
            step_seconds=0.5 if quick else 2.0,
        )

    def smaller(self) -> PressureParams | None:
        """Half as much pinned, then half as long a file: the limits on locked memory bind far below the host's."""
        if self.cap >= 2 * SMALLEST:
            return self.with_overrides({"cap": max(self.cap // 2 // PAGE * PAGE, SMALLEST)})
        return self.with_overrides({"file": self.file // 2 // PAGE * PAGE}) if self.file >= 2 * SMALLEST_FILE else None

    def step_bytes(self, limits: Limits) -> int:
        """What one step pins here, in whole pages: never more in all than the share and the cap allow.

        RLIMIT_MEMLOCK is not looked at: it binds on the host lab only, where the budget is checked against it.
        """
        without = limits.model_copy(update={"memlock_headroom_bytes": None})
        total = min(int(self.share * safe_pinned_bytes(without, "host")), self.cap)
        return max(total, SMALLEST) // self.steps // PAGE * PAGE


class PressureObservation(Observation):
    """One round of the ordinary process (``kind`` = process), or one reading of the host (``kind`` = host)."""

    kind: Literal["process", "host"]
    """``process`` (one round of the ordinary process) or ``host`` (one reading)."""
    phase: Phase
    """``before`` anything was pinned, while it was ``held``, or ``after``."""
    step: int
    """0 before and after."""
    bytes: int
    """Pinned by this run at the moment."""
    target_bytes: int
    """What the run means to pin in all."""
    elapsed_seconds: float
    """Since the run began to measure."""
    # One round of the ordinary process:
    fault_pages: int | None = None
    """Pages of fresh memory that it touched."""
    fault_median_seconds: Lasted | None = None
    """For one of them."""
    fault_longest_seconds: Lasted | None = None
    """For the slowest of them."""
    file_bytes: Positive | None = None
    """Length of its file; ``None`` where there could be none."""
    file_cached_bytes: int | None = None
    """How much of the file was in the page cache before it read it again."""
    read_bytes: int | None = None
    """How much of its file it read again."""
    read_seconds: Lasted | None = None
    """How long that took."""
    # One reading of the host, before a step changed anything (begin) or at its end:
    moment: Literal["begin", "end"] | None = None
    """``begin`` or ``end`` of the step."""
    floor_reached: bool | None = None
    """The next step, or this one, would have left less than the floor."""
    available_bytes: int | None = None
    """What programs can still get without swapping (MemAvailable)."""
    cgroup_headroom_bytes: int | None = None
    """What the tightest control group leaves."""
    free_bytes: int | None = None
    """Free pages."""
    per_cpu_bytes: int | None = None
    """Free pages on the processors' lists, counted neither as free nor as available."""
    cached_bytes: int | None = None
    """In the page cache."""
    swap_in_bytes: int | None = None
    """Swapped in since boot; the others that count or add up likewise."""
    swap_out_bytes: int | None = None
    """Swapped out since boot."""
    memory_some_seconds: float | None = None
    """At least one task stalled for memory, since boot."""
    memory_full_seconds: float | None = None
    """All tasks stalled for memory at once, since boot."""
    io_some_seconds: float | None = None
    """At least one task stalled for input or output, since boot."""
    io_full_seconds: float | None = None
    """All tasks stalled for input or output at once, since boot."""
    pin_seconds: float | None = None
    """Pinning the step."""
    release_seconds: float | None = None
    """Giving all of it back."""

    def needs(self) -> tuple[str, Iterable[str]]:
        """A round has the times of its faults, and of a file that it read; a reading of the host its memory."""
        if self.kind == "host":
            return "a reading of the host", ("moment", "available_bytes")
        of_file = ("file_bytes", "read_seconds") if self.read_bytes or self.file_cached_bytes is not None else ()
        return "a round", ("fault_median_seconds", "fault_longest_seconds", *of_file)


class Bystander(ChildProcesses[int]):
    """An ordinary process beside the run, from the run's side: gone on leaving, whatever happens between.

    Args:
        folder: where its file is to be; ``None`` for no file.
        file_bytes: how long the file is.
        sample_bytes: how much fresh memory it touches each round.
        seconds: how long one round may take.
        check: called while waiting; raises to stop.
        grace: how much longer it may take before it is taken for hung.
    """

    def __init__(
        self,
        folder: str | None,
        file_bytes: int,
        sample_bytes: int,
        seconds: float,
        check: Callable[[], None],
        grace: float = GRACE_SECONDS,
    ) -> None:
        work = {"folder": folder, "file_bytes": file_bytes, "sample_bytes": sample_bytes}
        child = Child("the ordinary process beside the run", "pinscope.lab.ordinary_process", work)
        super().__init__({0: child}, seconds + grace, check, ready_limit=START_SECONDS)
        self._seconds = seconds

    def feel(self) -> Reply:
        """One round, by the names of an observation.

        Raises:
            MeasurementFailed: it died, hung or broke off.
        """
        order = {"do": "feel", "seconds": self._seconds}
        return self.ask("touching memory and reading its file", {0: order})[0][1]


class Pressure:
    """Pins growing amounts beside an ordinary process."""

    name = "pressure"
    title = "Pressure"
    summary = "What pinned memory takes from other programs"
    question = "What does pinned memory take from everybody else on the host?"
    labs: Mapping[LabKind, str | None] = {"cuda": None, "host": None}
    Params = PressureParams
    Observation = PressureObservation

    def budget(self, params: PressureParams, environment: Environment) -> Budget:
        """All steps at once with their page table, the fresh memory, and the file, though the kernel may drop it.

        Raises:
            NotEnoughMemory: not even the first step stays above the floor.
        """
        step = params.step_bytes(environment.limits)
        _check_floor(environment.limits, step, params.floor)
        total = step * params.steps
        seconds = 1.0 + params.file / 2e8 + (params.steps + 2) * params.step_seconds + 2 * total / PACE
        return Budget(
            pinned_bytes=total,
            pageable_bytes=params.file + params.sample,
            device_bytes=total // 512 + GRANULE_BYTES,
            seconds=seconds,
        )

    def measure(self, params: PressureParams, lab: Lab, harness: Harness) -> Iterator[PressureObservation]:
        """Before, every step until the floor, and after."""
        limits = read_limits()
        step = _step_now(params, limits, lab.kind, harness.budget)
        _check_floor(limits, step, params.floor)
        folder, reason = folder_for(params.file)
        if folder is None:
            harness.note(f"Left out: reading a file. {reason}; TMPDIR names another folder.")
        for field, missing in read_pressure().missing.items():
            if field in PressureObservation.model_fields and field != "cgroup_headroom_bytes":
                harness.note(f"Not known: {field}. {missing}.")
        harness.progress(0.0, "starting the ordinary process")
        with (
            Bystander(folder, params.file, params.sample, params.step_seconds, harness.check_cancelled) as beside,
            ExitStack() as held,
        ):
            file = params.file if folder is not None else None
            yield from _Course(params, harness, beside, step, file, harness.clock()).all(lab, held)

    read = staticmethod(read_pressure_run)
    """What everybody lost, and from which amount on it was felt."""


def _check_floor(limits: Limits, step: int, floor: int) -> None:
    left = limits.host_available_bytes
    if limits.cgroup_headroom_bytes is not None:
        left = min(left, limits.cgroup_headroom_bytes)
    if left - step < floor:
        raise NotEnoughMemory(
            f"the first step pins {format_bytes(step)}, and of {format_bytes(left)} available here that leaves less "
            f"than the floor of {format_bytes(floor)}; free memory, lower the floor, or take more steps"
        )


def _step_now(params: PressureParams, limits: Limits, lab: LabKind, budget: Budget | None) -> int:
    """What one step pins with the memory there is now: within the budget that the run was started with."""
    total = min(params.step_bytes(limits) * params.steps, safe_pinned_bytes(limits, lab))
    if budget is not None:
        total = min(total, budget.pinned_bytes)
    step = total // params.steps // PAGE * PAGE
    if step * params.steps < SMALLEST // 2:
        raise NotEnoughMemory(
            f"only {format_bytes(total)} is safe to pin here now; a run takes {format_bytes(SMALLEST)} at least"
        )
    return step


@dataclass
class _Course:
    """The phases of one run, and where it is.

    Attributes:
        params: what was asked for.
        harness: clock, progress, notes.
        beside: the ordinary process.
        step_bytes: what each step pins.
        file_bytes: length of the ordinary process's file, if it has one.
        begun: when the run began to measure.
        phase, step, pinned, floor_reached: as in an observation.
    """

    params: PressureParams
    harness: Harness
    beside: Bystander
    step_bytes: int
    file_bytes: int | None
    begun: float
    phase: Phase = "before"
    step: int = 0
    pinned: int = 0
    floor_reached: bool = False

    def all(self, lab: Lab, held: ExitStack) -> Iterator[PressureObservation]:
        """Before, every step, after. ``held`` is what is pinned."""
        yield self._host("begin", read_pressure())
        yield from self._rounds()
        yield self._host("end", read_pressure())
        for step in range(1, self.params.steps + 1):
            pressure = read_pressure()
            if self._stops(pressure, self.step_bytes):
                break
            self.phase, self.step = "held", step
            yield self._host("begin", pressure)
            begun = self.harness.clock()
            held.enter_context(lab.host_buffer(self.step_bytes, "pinned"))
            pinned = self.harness.clock() - begun
            self.pinned += self.step_bytes
            yield from self._rounds()
            yield self._host("end", read_pressure(), pin_seconds=pinned)
            if self.floor_reached:
                break
        self.phase, self.step = "after", 0
        yield self._host("begin", read_pressure())
        begun = self.harness.clock()
        held.close()
        released = self.harness.clock() - begun
        self.pinned = 0
        yield from self._rounds()
        yield self._host("end", read_pressure(), release_seconds=released)

    def _stops(self, pressure: HostPressure, more: int) -> bool:
        """Whether pinning so much more would leave less than the floor; then a note says so."""
        if pressure.left_bytes - more >= self.params.floor:
            return False
        self.floor_reached = True
        self.harness.note(
            f"Stopped by itself with {format_bytes(self.pinned)} pinned: {format_bytes(pressure.left_bytes)} was "
            f"left, and {f'the next step of {format_bytes(more)} would have gone' if more else 'that is'} below the "
            f"floor of {format_bytes(self.params.floor)}."
        )
        return True

    def _rounds(self) -> Iterator[PressureObservation]:
        """The ordinary process works for the time of a step; the first round before anything is pinned warms up."""
        seconds = self.params.step_seconds
        stage = {"before": 0, "held": self.step, "after": self.params.steps + 1}[self.phase]
        words = f"{format_bytes(self.pinned)} pinned" if self.pinned else f"{self.phase} pinning"
        begun = self.harness.clock()
        for number in range(MOST_ROUNDS):
            spent = self.harness.clock() - begun
            if number >= LEAST_ROUNDS and spent >= seconds:
                return
            self.harness.progress((stage + min(spent / seconds, 1.0)) / (self.params.steps + 2), words)
            if self.phase == "held" and self._stops(read_pressure(), 0):
                return
            warmup = self.phase == "before" and number == 0
            yield self._row("process", number, warmup, file_bytes=self.file_bytes, **self.beside.feel())

    def _host(self, moment: Literal["begin", "end"], pressure: HostPressure, **values: Any) -> PressureObservation:
        figures = {name: value for name, value in asdict(pressure).items() if name != "missing"}
        return self._row("host", 0, False, moment=moment, floor_reached=self.floor_reached, **figures, **values)

    def _row(self, kind: Literal["process", "host"], repeat: int, warmup: bool, **values: Any) -> PressureObservation:
        return PressureObservation(
            repeat=repeat,
            warmup=warmup,
            kind=kind,
            phase=self.phase,
            step=self.step,
            bytes=self.pinned,
            target_bytes=self.step_bytes * self.params.steps,
            elapsed_seconds=self.harness.clock() - self.begun,
            **values,
        )


EXPERIMENT: AnyExperiment = Pressure()
