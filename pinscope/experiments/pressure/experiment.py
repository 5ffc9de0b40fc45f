"""What pinned memory takes from others: on the host up to what is safe, or in a control group until it is full."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pinscope.analysis.models import GRANULE_BYTES
from pinscope.errors import NotEnoughMemory, NotPossible
from pinscope.experiments.contract import AnyExperiment, BareParams, Case
from pinscope.experiments.pressure.ways import LEAST_ROUNDS, Rounds, WayName, Workers, ordinary
from pinscope.lab.cgroup_sandbox import CgroupSandbox, find_place, swap_bytes
from pinscope.lab.child_processes import MOST_ROUNDS, Child, ChildDied, folder_for
from pinscope.lab.harness import Harness, safe_pinned_bytes
from pinscope.lab.protocol import Lab
from pinscope.probes.host_memory import GroupMemory, HostPressure, read_limits, read_pressure
from pinscope.records.base import Budget
from pinscope.records.environment import Environment, Limits
from pinscope.records.parameters import Bytes, Seconds, Several, Share, parameter
from pinscope.records.run import LabKind, Lasted, Observation, Positive
from pinscope.units import format_bytes, format_share, parse_bytes

Phase = Literal["before", "held", "after"]
Swapping = Literal["without", "with"]
Who = Literal["inside", "outside"]
PAGE = 4096
SMALLEST = 64 * 2**20
"""Less than this moves the host's figures no more than everybody else does."""
SMALLEST_FILE = 16 * 2**20
SAMPLE = 2**24
"""Fresh memory that the ordinary process touches in each round on the host, page by page."""
SMALLEST_GROUP = 256 * 2**20
"""It must hold two interpreters and what they work on."""
PACE, DISK, MEMORY = 4e9, 1.2e9, 5e9
"""Bytes/second of pinning and freeing, of a disk and of memory, to estimate a run's length (measured on an H200)."""
WORK_SHARE = 0.125
"""Of a group's limit: length of the file that an ordinary process reads in each round, and the memory it writes to."""
COARSE = 3
"""Steps up to three quarters of what the group has left: nothing happens there."""
NO_SWAP = (
    "Left out: a group whose memory may be swapped out. This host has no swap. Root adds some: fallocate -l 4G FILE; "
    "chmod 600 FILE; mkswap FILE; swapon FILE, on ext4 or xfs; elsewhere on a loop device (losetup -f --show FILE)."
)
GROUP = ("used_bytes", "cache_bytes", "swap_bytes", "refaults", "kills")
"""What an observation takes from the group's account."""


class PressureParams(BareParams):
    """How much to pin, in which steps, and what the ordinary process does."""

    share: Share = parameter(
        "Share of what is safe",
        "Percentage of the amount that is safe to pin here; at least 64 MiB are pinned.",
        gt=0,
        le=1,
    )
    cap: Bytes = parameter("Most memory", "Upper limit of the amount to pin, however much is safe.", ge=SMALLEST)
    steps: int = parameter("Steps", "Number of equal steps in which it is pinned.", unit="count", ge=1, le=64)
    floor: Bytes = parameter(
        "Floor", "Stop before less memory than this is available on the host or left in the container."
    )
    file: Bytes = parameter(
        "File", "Length of the file that an ordinary process, which pins nothing, reads again and again meanwhile."
    )
    step_seconds: Seconds = parameter(
        "Time per step", "How long this process works at each step, three rounds at least.", gt=0, le=600
    )

    group: Literal["none", "limited"] = parameter(
        "Control group",
        "Where memory is pinned. none: on the host, never more than is safe; limited: in a control group made for the "
        "run, which limit, step and swap describe, until the kernel kills a process in it.",
    )
    limit: Bytes = parameter(
        "Group's limit", "Memory that this group may have; it is filled to this limit.", ge=SMALLEST_GROUP
    )
    step: Share = parameter(
        "Group's step",
        "Percentage of the limit that one step pins near the end; the cliff is found as precisely.",
        ge=0.001,
        le=0.05,
    )
    swap: Several[Swapping] = parameter(
        "Group's swap", "Whether memory of the group may be swapped out: without, with, or both after one another."
    )

    @classmethod
    def preset(cls, lab: LabKind, quick: bool) -> PressureParams:
        return cls(
            share=0.5 if quick else 0.65,
            cap=parse_bytes("2GiB" if quick else "16GiB"),
            steps=4 if quick else 10,
            floor=parse_bytes("1GiB"),
            file=parse_bytes("128MiB" if quick else "512MiB"),
            step_seconds=0.4 if quick else 2.0,
            group="none",
            limit=parse_bytes({"cuda": "2GiB", "host": "512MiB"}[lab] if quick else "4GiB"),
            step=0.05 if quick else 0.025,
            swap=("without",) if quick else ("without", "with"),
        )

    def smaller(self) -> PressureParams | None:
        """A group half as large; on the host half as much pinned, then half as long a file: the limits on locked
        memory bind far below the host's."""
        names = {"limit": SMALLEST_GROUP} if self.group == "limited" else {"cap": SMALLEST, "file": SMALLEST_FILE}
        for name, least in names.items():
            if (nbytes := getattr(self, name)) >= 2 * least:
                return self.with_overrides({name: max(nbytes // 2 // PAGE * PAGE, least)})
        return None

    def step_bytes(self, limits: Limits) -> int:
        """What one step pins here, in whole pages: never more in all than the share and the cap allow.

        RLIMIT_MEMLOCK is not looked at: it binds on the host lab only, where the budget is checked against it.
        """
        without = limits.model_copy(update={"memlock_headroom_bytes": None})
        total = min(int(self.share * safe_pinned_bytes(without, "host")), self.cap)
        return max(total, SMALLEST) // self.steps // PAGE * PAGE

    def bytes_of(self, share: float) -> int:
        """A share of the group's limit, in whole pages."""
        return int(self.limit * share) // PAGE * PAGE

    def swaps(self) -> tuple[Swapping, ...]:
        """The groups that make sense here: without swap there is nothing to swap out to."""
        return self.swap if swap_bytes() else ("without",)


class PressureObservation(Observation):
    """One round of an ordinary process, one reading of the host or the group, or what a group was charged.

    Without a control group there are ``process`` and ``host``; with one ``round``, ``group`` and ``charge``.
    """

    kind: Literal["process", "host", "round", "group", "charge"]
    """``process`` (a round of the ordinary process beside the run), ``host`` (a reading of it), ``round`` (of an
    ordinary process in the group or outside), ``group`` (a reading of it) or ``charge`` (for one way of pinning)."""
    phase: Phase
    """``before`` anything was pinned, while it was ``held``, or ``after``."""
    step: int
    """0 before and after."""
    bytes: int
    """Pinned by this run at the moment; in a group, or meant to be in this step."""
    target_bytes: int | None = None
    """What the run means to pin on the host in all."""
    elapsed_seconds: float | None = None
    """Since such a run began to measure."""
    swap: bool | None = None
    """Whether memory of the group could be swapped out."""
    limit_bytes: Positive | None = None
    """The group's limit."""
    # One round of an ordinary process:
    who: Who | None = None
    """``inside`` or ``outside`` of the group."""
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
    write_seconds: Lasted | None = None
    """How long it took to write to all of its memory."""
    major_faults: int | None = None
    """Pages of its memory that had to come from the disk."""
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
    """Pinning the step; in a group too."""
    release_seconds: float | None = None
    """Giving all of it back."""
    # A reading of the group, at the end of a step:
    used_bytes: int | None = None
    """Charged to the group in all."""
    cache_bytes: int | None = None
    """Of that, pages of files."""
    swap_bytes: int | None = None
    """Of the group's memory, swapped out."""
    refaults: int | None = None
    """Pages of files that were dropped and read again, since the group was made."""
    kills: int | None = None
    """Processes that the kernel killed for want of memory in the group."""
    stalled_share: float | None = None
    """Share of the step's time in which tasks of the group waited for memory."""
    ended: Literal["killed", "refused"] | None = None
    """How pinning ended in this step: a process was ``killed``, or it was ``refused``."""
    victim: Literal["ordinary", "holder"] | None = None
    """Whom the kernel killed."""
    gone: bool | None = None
    """After all: whether the group and its processes are gone."""
    # What the group was charged:
    way: WayName | None = None
    """Kind of pinned memory."""
    asked_bytes: Positive | None = None
    """Pinned that way."""
    charged_bytes: int | None = None
    """What the group's account grew by."""

    def needs(self) -> tuple[str, Iterable[str]]:
        """A round has its times, a reading of the host its memory, a charge its amounts."""
        on_host = ("target_bytes", "elapsed_seconds")
        of_file = ("file_bytes", "read_seconds") if self.read_bytes or self.file_cached_bytes is not None else ()
        return {
            "process": ("a round", (*on_host, "fault_median_seconds", "fault_longest_seconds", *of_file)),
            "host": ("a reading of the host", (*on_host, "moment", "available_bytes")),
            "round": ("a round", ("limit_bytes", "who", "write_seconds", *of_file)),
            "group": ("a reading of the group", ("limit_bytes",)),
            "charge": ("a charge", ("limit_bytes", "way", "asked_bytes", "charged_bytes")),
        }[self.kind]


class Pressure:
    """Pins growing amounts beside an ordinary process, on the host or in a control group."""

    name = "pressure"
    title = "Pressure"
    summary = "What pinned memory takes from other programs"
    question = "What does pinned memory take from other programs, and when do they stall or die of it?"
    labs: Mapping[LabKind, str | None] = {"cuda": None, "host": None}
    Params = PressureParams
    Observation = PressureObservation

    start_seconds = 1.0

    def cases(self, params: PressureParams, environment: Environment | None = None) -> list[Case[Swapping | None]]:
        """The host with all steps and their page table, and what the ordinary process works on; or one group after the
        other, whose whole limit counts as pinned, whatever fills it.

        Raises:
            NotEnoughMemory: on the host not even the first step stays above the floor.
            NotPossible: no control group can be made here, with what is needed.
        """
        if params.group == "limited":
            others, seconds = _in_group_takes(params)
            tables = params.limit // 512 + GRANULE_BYTES
            return [Case(f"group {swap} swap", swap, seconds, params.limit, others, tables) for swap in params.swaps()]
        limits = read_limits() if environment is None else environment.limits
        step = params.step_bytes(limits)
        _check_floor(limits, step, params.floor)
        pinned, others = step * params.steps, params.file + SAMPLE
        seconds = 1.0 + params.file / 2e8 + (params.steps + 2) * params.step_seconds + 2 * pinned / PACE
        return [Case("host", None, seconds, pinned, others, pinned // 512 + GRANULE_BYTES)]

    def measure(self, params: PressureParams, lab: Lab, harness: Harness) -> Iterator[PressureObservation]:
        """On the host before, every step until the floor, and after; or one group after the other."""
        folder, reason = folder_for(params.bytes_of(WORK_SHARE) if params.group == "limited" else params.file)
        if folder is None:
            harness.note(f"Left out: reading a file. {reason}; TMPDIR names another folder.")
        if params.group == "none":
            yield from _on_host(params, lab, harness, folder)
            return
        cases = self.cases(params)
        if "with" in params.swap and "with" not in [case.what for case in cases]:
            harness.note(NO_SWAP)
        for number, case in enumerate(cases):
            part = (number / len(cases), (number + 1) / len(cases))
            yield from _InGroup(params, harness, folder, lab, case.what == "with", part).all()


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


def _on_host(params: PressureParams, lab: Lab, harness: Harness, folder: str | None) -> Iterator[PressureObservation]:
    limits = read_limits()
    step = _step_now(params, limits, lab.kind, harness.budget)
    _check_floor(limits, step, params.floor)
    for field, missing in read_pressure().missing.items():
        if field in PressureObservation.model_fields and field != "cgroup_headroom_bytes":
            harness.note(f"Not known: {field}. {missing}.")
    harness.progress(0.0, "starting the ordinary process")
    name = "the ordinary process beside the run"
    child = ordinary(name, folder, file_bytes=params.file, sample_bytes=SAMPLE)
    with Workers({"ordinary": child}, params.step_seconds, harness.check_cancelled) as beside, ExitStack() as held:
        yield from _OnHost(params, harness, folder, beside, step, harness.clock()).all(lab, held)


@dataclass
class _Course:
    """The phases of one run, and where it is; ``phase``, ``step`` and ``pinned`` as in an observation.

    Attributes:
        folder: where files are to be; ``None`` for none.
    """

    params: PressureParams
    harness: Harness
    folder: str | None

    def __post_init__(self) -> None:
        self.phase: Phase = "before"
        self.step = self.pinned = 0

    def row(self, kind: Any, repeat: int = 0, warmup: bool = False, **values: Any) -> PressureObservation:
        """An observation of now."""
        place = {"phase": self.phase, "step": self.step, "bytes": self.pinned}
        return PressureObservation(repeat=repeat, warmup=warmup, kind=kind, **place, **values)


@dataclass
class _OnHost(_Course):
    """Up to what is safe."""

    beside: Workers
    step_bytes: int
    begun: float
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
            file = self.params.file if self.folder is not None else None
            yield self._row("process", number, warmup, file_bytes=file, **self.beside.feel())

    def _host(self, moment: Literal["begin", "end"], pressure: HostPressure, **values: Any) -> PressureObservation:
        figures = {name: value for name, value in asdict(pressure).items() if name != "missing"}
        return self._row("host", moment=moment, floor_reached=self.floor_reached, **figures, **values)

    def _row(self, kind: str, repeat: int = 0, warmup: bool = False, **values: Any) -> PressureObservation:
        target, elapsed = self.step_bytes * self.params.steps, self.harness.clock() - self.begun
        return self.row(kind, repeat, warmup, target_bytes=target, elapsed_seconds=elapsed, **values)


def _in_group_takes(params: PressureParams) -> tuple[int, float]:
    """Bytes of what is outside of a group, another file and its process's memory, and the seconds of a group.

    Raises:
        NotPossible: no control group can be made here.
    """
    if (place := find_place()).value is None:
        raise NotPossible(str(place.reason))
    work = params.bytes_of(WORK_SHARE)
    from_disk = max(params.step_seconds, LEAST_ROUNDS * (work / DISK + work / MEMORY))
    steps = (5 + 0.2 / params.step) * params.step_seconds + WORK_SHARE / params.step * from_disk
    return 2 * work, 3.0 + 2 * work / DISK + steps


def amounts(limit: int, used: int, step: int) -> Iterator[int]:
    """Bytes to have pinned, one after the other: three large steps, then small ones up to the limit.

    Args:
        limit: of the group.
        used: by all that is in it before anything is pinned.
        step: of the small ones.
    """
    quarter = max(limit - used, 0) // (COARSE + 1) // PAGE * PAGE
    pinned = 0
    while pinned + step <= limit:
        pinned += quarter if quarter > step and pinned < COARSE * quarter else step
        yield pinned


@dataclass
class _InGroup(_Course):
    """One group, filled.

    Attributes:
        part: of the run's progress that this is.
        stalled: when the group was last read, and for how long its tasks had stalled by then.
    """

    lab: Lab
    swap: bool
    part: tuple[float, float]
    stalled: tuple[float, float] = (0.0, 0.0)

    def all(self) -> Iterator[PressureObservation]:
        """Before, every step, and after the group is gone."""
        self._tell(0.0, "making a control group")
        with self._workers({"ordinary": self._ordinary("outside the group", None)}) as outside:
            with CgroupSandbox(self.params.limit, self.swap) as group:
                pinning = {"device_id": self.lab.device_id, "seed": 0}
                module = "pinscope.experiments.pressure.ways"
                children = {
                    "holder": Child("the process that pins in the group", module, pinning, group.folder),
                    "ordinary": self._ordinary("in the group", group.folder),
                }
                with self._workers(children) as inside:
                    yield from self._charges(group, inside)
                    yield from self._steps(group, inside, outside)
            self.phase, self.step, self.pinned = "after", 0, 0
            self._tell(0.99, "after")
            yield from self._rounds("outside", outside.work())
        yield self._row("group", gone=group.is_gone())

    def _workers(self, children: Mapping[str, Child]) -> Workers:
        return Workers(children, self.params.step_seconds, self.harness.check_cancelled)

    def _ordinary(self, place: str, group: str | None) -> Child:
        """In a group it is the one to be killed first."""
        work = self.params.bytes_of(WORK_SHARE)
        given = {"file_bytes": work, "memory_bytes": work, "victim": group is not None}
        return ordinary(f"the ordinary process {place}", self.folder, group, **given)

    def _charges(self, group: CgroupSandbox, inside: Workers) -> Iterator[PressureObservation]:
        """What the group is charged for each way of pinning."""
        asked = self.params.bytes_of(1 / 16)
        for way in inside.ready["holder"]["ways"]:
            before = group.read().used_bytes
            inside.pin(asked, way)
            after = group.read().used_bytes
            inside.ask("giving back", {"holder": {"do": "release"}})
            if before is not None and after is not None:
                yield self._row("charge", way=way, asked_bytes=asked, charged_bytes=after - before)

    def _steps(self, group: CgroupSandbox, inside: Workers, outside: Workers) -> Iterator[PressureObservation]:
        outside.begin()
        yield from self._rounds("inside", inside.work(), warmups=1)
        yield from self._rounds("outside", outside.rounds(), warmups=1)
        reading = group.read()
        yield self._group_row(reading)
        limit, step = self.params.limit, self.params.bytes_of(self.params.step)
        for number, target in enumerate(amounts(limit, reading.used_bytes or 0, step), 1):
            more = target - self.pinned
            self.phase, self.step, self.pinned = "held", number, target
            self._tell(0.1 + 0.85 * target / limit, f"{format_bytes(target)} pinned ({format_share(target / limit)})")
            outside.begin()
            ended, victim, seconds = None, None, None
            begun = self.harness.clock()
            try:
                inside.pin(more)
                seconds = self.harness.clock() - begun
                yield from self._rounds("inside", inside.work())
            except NotEnoughMemory:
                ended = "refused"
            except ChildDied:
                ended, victim = "killed", "ordinary" if inside.lives("holder") else "holder"
            yield from self._rounds("outside", outside.rounds())
            yield self._group_row(group.read(), ended=ended, victim=victim, pin_seconds=seconds)
            if ended:
                return

    def _group_row(self, reading: GroupMemory, **values: Any) -> PressureObservation:
        begun, before = self.stalled
        now, stalled = self.harness.clock(), reading.stalled_seconds
        share = (stalled - before) / (now - begun) if stalled is not None and begun else None
        self.stalled = (now, stalled or 0.0)
        return self._row("group", **{name: getattr(reading, name) for name in GROUP}, stalled_share=share, **values)

    def _rounds(self, who: Who, rounds: Rounds, warmups: int = 0) -> Iterator[PressureObservation]:
        file = self.params.bytes_of(WORK_SHARE) if self.folder else None
        for number, felt in enumerate(rounds):
            yield self._row("round", number, number < warmups, who=who, file_bytes=file, **felt)

    def _tell(self, fraction: float, message: str) -> None:
        first, last = self.part
        self.harness.progress(first + fraction * (last - first), message)

    def _row(self, kind: str, repeat: int = 0, warmup: bool = False, **values: Any) -> PressureObservation:
        return self.row(kind, repeat, warmup, swap=self.swap, limit_bytes=self.params.limit, **values)


EXPERIMENT: AnyExperiment = Pressure()
