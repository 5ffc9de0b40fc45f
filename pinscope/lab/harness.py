"""What an experiment has beside its lab: repeats until a median is known, the guard that refuses what takes too much
memory, memory of the driver's own calls, and the lab of a helper process on the same device (:func:`open_lab`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from pinscope.analysis.rules import SAFE_SHARE
from pinscope.analysis.statistics import LEAST_VALUES, looks, summarize
from pinscope.errors import Cancelled, MeasurementFailed, NoDevice, NotEnoughMemory, NotPossible
from pinscope.lab.backing import touch, why_not_backing
from pinscope.lab.hostmodel import STAGING_BYTES, HostModelLab
from pinscope.lab.protocol import HostBuffer, Lab
from pinscope.records.base import Budget
from pinscope.records.environment import Device, HugePages, Limits
from pinscope.records.run import DriverMemory, LabKind
from pinscope.units import format_bytes, format_share

Clock = Callable[[], float]


@dataclass(frozen=True)
class Precision:
    """When to stop repeating.

    Attributes:
        relative: stop once ± is at most this share of the median, but for what whole runs differ by
            (:func:`looks` says when it is looked at).
        least: repeats to take in any case.
        most: repeats after which to stop in any case.
        seconds: time after which to stop in any case (``least`` is still reached).
        warmups: readings taken first and never counted.
    """

    relative: float = 0.01
    least: int = LEAST_VALUES
    most: int = 60
    seconds: float = 2.0
    warmups: int = 2


@dataclass(frozen=True)
class Turn:
    """One repeat to be measured: its number, whether it is a warm-up, and the values that count so far."""

    repeat: int
    warmup: bool
    values: list[float] = field(default_factory=list, compare=False, repr=False)

    def count(self, value: float) -> None:
        """What this repeat came to (any unit); of a warm-up it does not count."""
        if not self.warmup:
            self.values.append(value)

    @property
    def labels(self) -> dict[str, Any]:
        """As an observation carries them."""
        return {"repeat": self.repeat, "warmup": self.warmup}


class Harness:
    """Hands out turns and takes progress.

    Args:
        clock: seconds, monotonic. Passed in so that tests need not wait.
        report: called with (fraction, message) as the experiment goes on.
        cancelled: asked between turns; when true, :class:`Cancelled` is raised.
        note: called with what a reader of the run must know, such as a kind of memory left out and why.
        budget: what the run may take at most; for experiments that size themselves by the memory there is.
    """

    def __init__(
        self,
        clock: Clock = time.perf_counter,
        report: Callable[[float, str], None] = lambda _fraction, _message: None,
        cancelled: Callable[[], bool] = lambda: False,
        note: Callable[[str], None] = lambda _text: None,
        budget: Budget | None = None,
    ) -> None:
        self.clock = clock
        self.budget = budget
        self.note = note
        self._report = report
        self._cancelled = cancelled

    def progress(self, fraction: float, message: str) -> None:
        """Tell how far the experiment is (0 to 1) and what it does now."""
        self.check_cancelled()
        self._report(min(max(fraction, 0.0), 1.0), message)

    def check_cancelled(self) -> None:
        """Raise :class:`Cancelled` if somebody asked to stop."""
        if self._cancelled():
            raise Cancelled("the run was cancelled")

    def turns(self, precision: Precision, values: list[float] | None = None) -> Iterator[Turn]:
        """Turns until the median of ``values`` is known to ``precision.relative`` or a limit is reached.

        The caller has each turn :meth:`Turn.count` one value, or appends it to ``values`` if that is no warm-up.
        """
        values = [] if values is None else values
        for number in range(precision.warmups):
            self.check_cancelled()
            yield Turn(number, True, values)
        begun = self.clock()
        planned = [count for count in looks(precision.least, precision.most) if count < precision.most]
        for number in range(precision.most):
            self.check_cancelled()
            yield Turn(number, False, values)
            if len(values) < precision.least:
                continue
            if self.clock() - begun >= precision.seconds:
                return
            if planned and len(values) >= planned[0]:
                del planned[0]
                if summarize(values, drift=0.0).uncertainty <= precision.relative:
                    return


SAFE_HOST_SHARE = 0.8
"""Share of the free host memory, for all that a run takes: more invites the out-of-memory killer."""
SAFE_MEMLOCK_SHARE = 0.95
"""Share of what may still be locked: the limit is exact, only the libraries' own locked pages need room."""
SAFE_DEVICE_SHARE = 0.8
"""Share of the GPU's free memory: the CUDA context takes about 0.5 GiB of it, and other processes come and go."""
PROCESS_BYTES = 512 * 2**20
"""Set aside of host memory for each process: Python, NumPy, CuPy and the driver's part."""
CONTEXT_BYTES = 640 * 2**20
"""Set aside of GPU memory for each process with a context; one took about 520 MiB on an H200 with driver 580."""

_SMALLER = "choose smaller sizes"


@dataclass(frozen=True)
class Ceiling:
    """One limit on the memory a run may take.

    Attributes:
        name: what it is, for people.
        left_bytes: how much it leaves now.
        share: how much of that is safe to take.
        advice: what to do when it binds.
    """

    name: str
    left_bytes: int
    share: float
    advice: str

    @property
    def safe_bytes(self) -> int:
        """How much may be taken under this limit."""
        return max(int(self.left_bytes * self.share), 0)

    def check(self, need: int, purpose: str) -> None:
        """Raise :class:`NotEnoughMemory` if ``need`` bytes exceed the safe share."""
        if need > self.safe_bytes:
            raise NotEnoughMemory(
                f"the run needs {format_bytes(need)} of {purpose}, but only {format_bytes(self.safe_bytes)} is safe "
                f"here: {format_share(self.share)} of {format_bytes(self.left_bytes)} {self.name}; {self.advice}"
            )


def check_budget(
    budget: Budget, limits: Limits, device: Device | None, lab: LabKind, pages: HugePages | None = None
) -> None:
    """Refuse a run whose budget is not safe.

    Args:
        budget: what the run will take.
        limits: what the host leaves.
        device: the GPU it will run on; ``None`` on the host lab. Where the driver does not tell the GPU's free
            memory (it shares the host's), device memory counts as host memory.
        lab: where it will run.
        pages: the host's huge pages, for a run that needs hugetlb pages.

    Raises:
        NotEnoughMemory: what it needs, what is safe, which limit binds and what to do, in one line.
        NoDevice: no GPU was given for the ``cuda`` lab.
    """
    if lab == "cuda" and device is None:
        raise NoDevice("there is no such GPU here; 'pinscope doctor' lists what this machine has")
    if budget.hugetlb_bytes and (reason := why_not_backing("hugetlb", budget.hugetlb_bytes, pages)):
        raise NotEnoughMemory(reason)
    pinned = budget.pinned_bytes + _own_bytes(lab)
    _tightest(_pinned_ceilings(limits, lab)).check(pinned, "locked memory" if lab == "host" else "pinned memory")
    free = device.memory_free_bytes if device else None
    host = pinned + budget.pageable_bytes + (budget.device_bytes if free is None else 0)
    _tightest(_host_ceilings(limits, SAFE_HOST_SHARE)).check(host, "host memory")
    if device is not None and free is not None:
        ceiling = Ceiling(f"free on GPU {device.index}", free, SAFE_DEVICE_SHARE, f"{_SMALLER} or another GPU")
        ceiling.check(budget.device_bytes, "GPU memory")


def safe_pinned_bytes(limits: Limits, lab: LabKind) -> int:
    """How much one run may pin (lock, on the host lab) here."""
    return max(_tightest(_pinned_ceilings(limits, lab)).safe_bytes - _own_bytes(lab), 0)


def binding_limit(limits: Limits, lab: LabKind) -> str:
    """The limit that decides :func:`safe_pinned_bytes`, for people."""
    return _tightest(_pinned_ceilings(limits, lab)).name


def _own_bytes(lab: LabKind) -> int:
    """What the lab locks for itself while it is open."""
    return STAGING_BYTES if lab == "host" else 0


def _host_ceilings(limits: Limits, share: float) -> list[Ceiling]:
    where = "the host" if limits.node is None else f"NUMA node {limits.node}"
    ceilings = [Ceiling(f"available on {where}", limits.host_available_bytes, share, f"free memory or {_SMALLER}")]
    if limits.cgroup_headroom_bytes is not None:
        advice = f"give the container (its cgroup) more memory or {_SMALLER}"
        ceilings.append(Ceiling("left in the cgroup", limits.cgroup_headroom_bytes, share, advice))
    return ceilings


def _pinned_ceilings(limits: Limits, lab: LabKind) -> list[Ceiling]:
    """CUDA's pinned memory is not subject to RLIMIT_MEMLOCK (it shows no VmLck); the host lab's is."""
    ceilings = _host_ceilings(limits, SAFE_SHARE)
    if lab == "host" and limits.memlock_headroom_bytes is not None:
        advice = f"raise it (ulimit -l, 'memlock' in /etc/security/limits.conf, CAP_IPC_LOCK) or {_SMALLER}"
        ceilings.append(Ceiling("left under RLIMIT_MEMLOCK", limits.memlock_headroom_bytes, SAFE_MEMLOCK_SHARE, advice))
    return ceilings


def _tightest(ceilings: list[Ceiling]) -> Ceiling:
    return min(ceilings, key=lambda ceiling: ceiling.safe_bytes)


PROBED_BYTES = 2**21
"""Taken once to see whether a kind can be had, or to have used it."""
_NO_MEANING = "Memory of the NVIDIA driver's own calls is not part of the host model."


@contextmanager
def driver_memory(
    lab: Lab, kind: DriverMemory, *, kept: bool = False
) -> Iterator[Callable[[int], AbstractContextManager[HostBuffer]]]:
    """A function that gives host memory of one kind, near the calling thread, until this closes.

    ``kept``: a pool keeps what is given back; else it goes back to the system.

    Raises:
        NotPossible: the lab has none, or the driver is too old.
        NotEnoughMemory, MeasurementFailed: the driver refuses it; the function raises the same.
    """
    if lab.kind != "cuda":
        raise NotPossible(_NO_MEANING)
    from pinscope.lab import cuda_memory  # noqa: PLC0415 - imports CuPy

    with cuda_memory.driver_memory(kind, kept=kept) as take:

        @contextmanager
        def held(nbytes: int) -> Iterator[HostBuffer]:
            with take(nbytes) as memory, lab.host_nodes.holding(memory.address, nbytes):
                yield memory

        yield held


def why_not_driver_memory(lab: Lab, kind: DriverMemory) -> str | None:
    """Why this kind cannot be had here; ``None`` if it can. Tries it with little memory."""
    try:
        with driver_memory(lab, kind) as take, take(PROBED_BYTES):
            return None
    except (NotPossible, MeasurementFailed) as error:
        return str(error)


def use_each_part_once(lab: Lab) -> None:
    """Register memory and allocate pinned memory, copy from both and check it, and give all of it back."""
    pattern = lab.fresh_pattern()
    with ExitStack() as stack:
        memory = stack.enter_context(lab.ordinary_memory(PROBED_BYTES, "shm"))
        touch(memory)
        device = stack.enter_context(lab.device_buffer(PROBED_BYTES))
        stream = stack.enter_context(lab.stream())
        sources = (lab.register(memory), lab.host_buffer(PROBED_BYTES, "pinned"))
        for source in map(stack.enter_context, sources):
            lab.fill(source, pattern)
            lab.copy_to_device(device, source, stream)
            stream.synchronize()
            lab.wrong_words(device, pattern)


def open_lab(device_id: str, seed: int) -> Lab:
    """A lab on the device that a lab of another process names by :attr:`Lab.device_id`."""
    if device_id == HostModelLab.device_id:
        return HostModelLab(seed=seed)
    from pinscope.lab.cuda import CudaLab  # noqa: PLC0415 - imports CuPy, which the host model does not need

    return CudaLab(0, {0: device_id}, seed)
