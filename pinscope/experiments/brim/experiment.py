"""Too much pinned memory, shown: in a control group of its own, pin until others there are killed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import model_validator

from pinscope.analysis.page_table_model import GRANULE_BYTES
from pinscope.errors import NotEnoughMemory, NotPossible
from pinscope.experiments.brim.findings import read_brim_run
from pinscope.experiments.brim.ways import WayName
from pinscope.experiments.contract import AnyExperiment, BareParams
from pinscope.lab.cached_file import folder_for
from pinscope.lab.child_processes import Child, ChildDied, ChildProcesses, Order
from pinscope.lab.harness import Harness
from pinscope.lab.own_group import OwnGroup, find_place, swap_bytes
from pinscope.lab.protocol import Lab
from pinscope.probes.group_memory import GroupMemory
from pinscope.records.budget import Budget
from pinscope.records.environment import Environment
from pinscope.records.parameters import Bytes, Seconds, Several, Share, parameter
from pinscope.records.run import LabKind, Lasted, Observation, Positive
from pinscope.units import format_bytes, format_share, parse_bytes

DISK, MEMORY = 1.2e9, 5e9
"""Bytes/second of a disk and of memory, for the estimate of a run's length (measured on an H200 host)."""
SMALLEST = 256 * 2**20
"""A group must hold two interpreters and what they work on."""
WORK_SHARE = 0.125
"""Of the limit: length of the file that an ordinary process reads in each round, and the memory that it writes to."""
START_SECONDS = 90.0
"""To write a file of gigabytes on a slow disk, and to open a GPU."""
GRACE_SECONDS = 60.0
"""How much longer than it was given one may take to answer before it is taken for hung: memory may come from a disk."""
LEAST_ROUNDS = 3
COARSE = 3
"""Steps up to three quarters of what the group has left: nothing happens there."""
PAGE = 4096
Swapping = Literal["without", "with"]
Phase = Literal["before", "held", "after"]
Who = Literal["inside", "outside"]
Ended = Literal["killed", "refused"]
Rounds = Sequence[Mapping[str, Any]]


class BrimParams(BareParams):
    """How large the group is, in which steps it is filled, and what the ordinary processes do."""

    group: Bytes = parameter(
        "Group's limit", "Memory that the control group made for the run may have; it is filled to this limit."
    )
    step: Share = parameter(
        "Step",
        "Percentage of the limit that one step pins near the brim; the cliff is found as precisely.",
        ge=0.001,
        le=0.05,
    )
    step_seconds: Seconds = parameter(
        "Time per step", "How long the ordinary processes work at each step, three rounds at least.", gt=0, le=60
    )
    swap: Several[Swapping] = parameter(
        "Swap", "Whether memory of the group may be swapped out: without, with, or both after one another."
    )

    @model_validator(mode="after")
    def _fits(self) -> BrimParams:
        if self.group < SMALLEST:
            raise ValueError(f"group: must be {format_bytes(SMALLEST)} or more; two programs need that")
        return self

    @classmethod
    def preset(cls, lab: LabKind, quick: bool) -> BrimParams:
        group = {"cuda": ("2GiB", "4GiB"), "host": ("512MiB", "4GiB")}[lab][not quick]
        return cls(
            group=parse_bytes(group),
            step=0.05 if quick else 0.025,
            step_seconds=0.3 if quick else 1.0,
            swap=("without",) if quick else ("without", "with"),
        )

    def smaller(self) -> BrimParams | None:
        """A group half as large."""
        if self.group < 2 * SMALLEST:
            return None
        return self.with_overrides({"group": max(self.group // 2 // PAGE * PAGE, SMALLEST)})

    def bytes_of(self, share: float) -> int:
        """A share of the limit, in whole pages."""
        return int(self.group * share) // PAGE * PAGE


class BrimObservation(Observation):
    """One round of an ordinary process, one reading of the group, or what it was charged for a way of pinning."""

    kind: Literal["round", "group", "charge"]
    """``round``, ``group`` or ``charge``."""
    swap: bool
    """Whether memory of the group could be swapped out."""
    limit_bytes: Positive
    """The group's limit."""
    phase: Phase
    """``before`` anything was pinned, while it was ``held``, or ``after`` all of it."""
    step: int
    """0 before and after."""
    bytes: int
    """Pinned in the group at the moment, or meant to be in this step."""
    # One round of an ordinary process:
    who: Who | None = None
    """``inside`` or ``outside`` of the group."""
    file_bytes: Positive | None = None
    """Length of its file; ``None`` where there could be none."""
    file_cached_bytes: int | None = None
    """How much of it was in the page cache before it was read."""
    read_bytes: int | None = None
    """How much of it was read."""
    read_seconds: Lasted | None = None
    """How long that took."""
    write_seconds: Lasted | None = None
    """How long it took to write to all of its memory."""
    major_faults: int | None = None
    """Pages of its memory that had to come from the disk."""
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
    pin_seconds: Lasted | None = None
    """Pinning the step."""
    ended: Ended | None = None
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
        """A round has its times, a charge its amounts."""
        if self.kind == "charge":
            return "a charge", ("way", "asked_bytes", "charged_bytes")
        if self.kind == "group":
            return "a reading of the group", ()
        of_file = ("file_bytes", "read_seconds") if self.read_bytes or self.file_cached_bytes is not None else ()
        return "a round", ("who", "write_seconds", *of_file)


class Brim:
    """Fills a control group with pinned memory until a process in it is killed."""

    name = "brim"
    title = "Pinned to the brim"
    summary = "Where too much pinned memory stalls and kills others"
    question = "From which amount of pinned memory on do other programs stall, and when are they killed?"
    labs: Mapping[LabKind, str | None] = {"cuda": None, "host": None}
    Params = BrimParams
    Observation = BrimObservation

    def budget(self, params: BrimParams, environment: Environment) -> Budget:
        """The group's limit counts as pinned, whatever fills it; outside are another file and its process's memory.

        Raises:
            NotPossible: no control group can be made here, with what is needed.
        """
        if (place := find_place()).value is None:
            raise NotPossible(str(place.reason))
        work = params.bytes_of(WORK_SHARE)
        from_disk = max(params.step_seconds, LEAST_ROUNDS * (work / DISK + work / MEMORY))
        steps = (5 + 0.2 / params.step) * params.step_seconds + WORK_SHARE / params.step * from_disk
        return Budget(
            pinned_bytes=params.group,
            pageable_bytes=2 * work,
            device_bytes=params.group // 512 + GRANULE_BYTES,
            seconds=len(_groups(params)) * (3.0 + 2 * work / DISK + steps),
        )

    def measure(self, params: BrimParams, lab: Lab, harness: Harness) -> Iterator[BrimObservation]:
        """One group after the other."""
        folder, reason = folder_for(params.bytes_of(WORK_SHARE))
        if folder is None:
            harness.note(f"Left out: reading a file. {reason}; TMPDIR names another folder.")
        wanted = _groups(params)
        if "with" in params.swap and "with" not in wanted:
            harness.note("Left out: a group whose memory may be swapped out. This host has no swap.")
        for number, swap in enumerate(wanted):
            part = (number / len(wanted), (number + 1) / len(wanted))
            yield from _Climb(params, lab, harness, folder, swap == "with", part).all()

    read = staticmethod(read_brim_run)
    """Where the cliff is, and what was felt outside."""


def _groups(params: BrimParams) -> tuple[Swapping, ...]:
    """Those that make sense here: without swap there is nothing to swap out to."""
    return params.swap if swap_bytes() else ("without",)


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


class _Workers(ChildProcesses[str]):
    """Processes in the group, or outside: an ordinary one, in the group also one that pins (``holder``).

    Args:
        children: what to start.
        seconds: how long the ordinary one works at a step.
        check: called while waiting; raises to stop.
    """

    def __init__(self, children: Mapping[str, Child], seconds: float, check: Callable[[], None]) -> None:
        super().__init__(children, seconds + GRACE_SECONDS, check, ready_limit=START_SECONDS)
        self._work: Mapping[str, Order] = {"ordinary": {"do": "work", "seconds": seconds, "rounds": LEAST_ROUNDS}}

    def begin(self) -> None:
        """Have the ordinary one work; :meth:`rounds` waits for it."""
        self.tell(self._work)

    def rounds(self) -> Rounds:
        """Its rounds.

        Raises:
            ChildDied: it was killed.
            MeasurementFailed: it hung or broke off.
        """
        rounds: Rounds = self.answers("working", self._work)["ordinary"][1]["rounds"]
        return rounds

    def work(self) -> Rounds:
        """Both; errors as of :meth:`rounds`."""
        self.begin()
        return self.rounds()

    def pin(self, nbytes: int, way: WayName = "registered") -> None:
        """Pin so much more.

        Raises:
            NotEnoughMemory: it was refused.
            ChildDied: the kernel killed the process that pins.
        """
        self.ask("pinning", {"holder": {"do": "pin", "nbytes": nbytes, "way": way}})

    def release(self) -> None:
        """Give back all that is pinned."""
        self.ask("giving back", {"holder": {"do": "release"}})


@dataclass
class _Climb:
    """One group, filled, and where it is.

    Attributes:
        params: what was asked for.
        lab: where memory is pinned.
        harness: clock, progress, notes.
        folder: where files are to be; ``None`` for none.
        swap: whether the group's memory may be swapped out.
        part: of the run's progress that this is.
        phase, step, pinned: as in an observation.
        stalled: when the group was last read, and for how long its tasks had stalled by then.
    """

    params: BrimParams
    lab: Lab
    harness: Harness
    folder: str | None
    swap: bool
    part: tuple[float, float]
    phase: Phase = "before"
    step: int = 0
    pinned: int = 0
    stalled: tuple[float, float] = (0.0, 0.0)

    def all(self) -> Iterator[BrimObservation]:
        """Before, every step, and after the group is gone."""
        self._tell(0.0, "making a control group")
        with self._workers({"ordinary": self._ordinary("outside the group", None)}) as outside:
            with OwnGroup(self.params.group, self.swap) as group:
                pinning = {"place": self.lab.place, "seed": 0}
                module = "pinscope.experiments.brim.child_holder"
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

    def _workers(self, children: Mapping[str, Child]) -> _Workers:
        return _Workers(children, self.params.step_seconds, self.harness.check_cancelled)

    def _ordinary(self, place: str, group: str | None) -> Child:
        """In a group it is the one to be killed first."""
        work = self.params.bytes_of(WORK_SHARE)
        given = {"folder": self.folder, "file_bytes": work, "memory_bytes": work, "victim": group is not None}
        return Child(f"the ordinary process {place}", "pinscope.lab.ordinary_process", given, group)

    def _charges(self, group: OwnGroup, inside: _Workers) -> Iterator[BrimObservation]:
        """What the group is charged for each way of pinning."""
        asked = self.params.bytes_of(1 / 16)
        for way in inside.ready["holder"]["ways"]:
            before = group.read().used_bytes
            inside.pin(asked, way)
            after = group.read().used_bytes
            inside.release()
            if before is not None and after is not None:
                yield self._row("charge", way=way, asked_bytes=asked, charged_bytes=after - before)

    def _steps(self, group: OwnGroup, inside: _Workers, outside: _Workers) -> Iterator[BrimObservation]:
        outside.begin()
        yield from self._rounds("inside", inside.work(), warmups=1)
        yield from self._rounds("outside", outside.rounds(), warmups=1)
        reading = group.read()
        yield self._group_row(reading)
        limit = self.params.group
        for number, target in enumerate(
            amounts(limit, reading.used_bytes or 0, self.params.bytes_of(self.params.step)), 1
        ):
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

    def _group_row(self, reading: GroupMemory, **values: Any) -> BrimObservation:
        begun, before = self.stalled
        now, stalled = self.harness.clock(), reading.stalled_seconds
        share = (stalled - before) / (now - begun) if stalled is not None and begun else None
        self.stalled = (now, stalled or 0.0)
        return self._row(
            "group",
            **{
                name: getattr(reading, name)
                for name in ("used_bytes", "cache_bytes", "swap_bytes", "refaults", "kills")
            },
            stalled_share=share,
            **values,
        )

    def _rounds(self, who: Who, rounds: Rounds, warmups: int = 0) -> Iterator[BrimObservation]:
        file = self.params.bytes_of(WORK_SHARE) if self.folder else None
        for number, felt in enumerate(rounds):
            warmup = number < warmups
            yield self._row("round", number, warmup, who=who, file_bytes=file, **felt)

    def _tell(self, fraction: float, message: str) -> None:
        first, last = self.part
        self.harness.progress(first + fraction * (last - first), message)

    def _row(self, kind: Any, repeat: int = 0, warmup: bool = False, **values: Any) -> BrimObservation:
        return BrimObservation(
            repeat=repeat,
            warmup=warmup,
            kind=kind,
            swap=self.swap,
            limit_bytes=self.params.group,
            phase=self.phase,
            step=self.step,
            bytes=self.pinned,
            **values,
        )


EXPERIMENT: AnyExperiment = Brim()
