"""What does it cost to allocate and free a pinned buffer, and how many copies repay that?"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, Literal

from pinscope.analysis.pytorch_pinned import SETTING_NAMES, pool_settings, rounded_up
from pinscope.analysis.ways import of_kind
from pinscope.errors import MeasurementFailed, NotEnoughMemory
from pinscope.experiments.allocation.findings import read_allocation
from pinscope.experiments.allocation.ways import WAYS, WayName, least_bytes, source, why_no_page_faults, why_not_way
from pinscope.experiments.contract import AnyExperiment, Params
from pinscope.lab.backing import why_not_backing
from pinscope.lab.budget import CONTEXT_BYTES
from pinscope.lab.child_processes import Child, ChildProcesses, Order
from pinscope.lab.harness import Harness, Precision
from pinscope.lab.protocol import Lab
from pinscope.probes.installation import install_command
from pinscope.records.budget import Budget
from pinscope.records.environment import Environment
from pinscope.records.parameters import Bytes, Several, Sizes, parameter, sizes
from pinscope.records.run import Backing, HostMemory, LabKind, Lasted, Observation, Positive
from pinscope.units import format_bytes

PoolStep = Literal["before", "held", "dropped", "again", "emptied"]
OneWay = Literal["h2d", "d2h"]
LEAST = 3
PACE = 4e9
"""Bytes/second at which memory is got and freed on average, for the estimate of a run's length."""
SHARE_OF_TIME = 0.45
"""Of the time that all ways would take at this pace: pools and malloc take none, and many stop early (an H200)."""
START_SECONDS = 3.0
"""Until the first reading."""
COPIED: tuple[Backing | None, ...] = ("4k", "thp", None)
"""What copies are timed from and to: pageable memory in small and in huge pages, and pinned memory."""
STEPS: tuple[tuple[PoolStep, Mapping[str, Any]], ...] = (
    ("held", {"do": "take"}),
    ("dropped", {"do": "drop"}),
    ("again", {"do": "take"}),
    ("emptied", {"do": "empty"}),
)
"""What happens one after the other, and the order for it. Before ``emptied`` the tensor is dropped once more."""
STEP_SECONDS = 60.0
CHILD_SECONDS = 6.0
"""What one setting takes about: PyTorch's start, a context, and the memory."""
_MODULE = "pinscope.experiments.allocation.torch_pool"


def _ways(lab: LabKind, quick: bool) -> Any:
    """Names of the ways that a run takes; a quick one leaves out those that are rarer."""
    return tuple(
        name
        for name, way in WAYS.items()
        if (not quick or "quick" in way.kinds) and (lab == "cuda" or "host" in way.kinds)
    )


class AllocationParams(Params):
    """Which buffers to get, and how."""

    repeats: int = parameter(
        "Most repeats",
        "Number of repeats after which to stop, whatever the precision is by then.",
        20,
        unit="count",
        ge=LEAST,
        le=10_000,
    )
    sizes: Sizes = parameter(
        "Buffer sizes",
        "Sizes of the buffers. Each is allocated and freed again and again, and copies of its size are timed.",
    )
    ways: Several[WayName] = parameter(
        "Ways to get a buffer", f"{'; '.join(f'{name}: {way.help}' for name, way in WAYS.items())}."
    )
    directions: Several[OneWay] = parameter(
        "Directions",
        "Copies that are timed, to find how many of them repay the time to pin a buffer: host to device "
        "(h2d) or device to host (d2h).",
    )

    pytorch: bool = parameter(
        "PyTorch's pool",
        "Look at PyTorch's pool of pinned memory, each of its settings in a process of its own: what it takes for a "
        "request, and what it keeps.",
        False,
    )
    pytorch_bytes: Bytes = parameter(
        "PyTorch's request", "Size of the tensor that is asked for from PyTorch's pool.", 1300 * 2**20
    )

    @classmethod
    def preset(cls, lab: LabKind, quick: bool) -> AllocationParams:
        if lab == "host":
            chosen = "64KiB 1MiB 16MiB" if quick else "4KiB 64KiB 1MiB 16MiB 64MiB 256MiB"
        else:
            chosen = "64KiB 4MiB 128MiB" if quick else "4KiB 64KiB 1MiB 16MiB 256MiB 1GiB"
        return cls(
            sizes=sizes(chosen),
            ways=_ways(lab, quick),
            directions=("h2d", "d2h"),
            pytorch=lab == "cuda" and not quick,
            precision=0.05,
            repeats=15 if quick else 30,
            time_limit=0.1 if quick else 1.0,
        )

    def harness_precision(self) -> Precision:
        """Few repeats are enough: a buffer of many GiB takes seconds each time."""
        return Precision(relative=self.precision, least=LEAST, most=self.repeats, seconds=self.time_limit, warmups=1)

    def smaller(self) -> AllocationParams | None:
        """Without what takes most: PyTorch's pool, or the largest size."""
        if self.pytorch and rounded_up(self.pytorch_bytes) > sum(self.sizes):
            return self.with_overrides({"pytorch": False})
        return self.with_overrides({"sizes": self.sizes[:-1]}) if len(self.sizes) > 1 else None


BUFFER_VALUES = ("way", "get_seconds", "give_back_seconds")
POOL_VALUES = ("step", "setting", "settings", "version")
COPY_VALUES = ("memory", "direction", "wall_seconds")


class AllocationObservation(Observation):
    """One buffer got and given back, one copy from or to one, or one step of a look at PyTorch's pool (``kind``)."""

    kind: Literal["buffer", "copy", "pool"]
    """``buffer`` (got and given back), ``copy``, or ``pool`` (PyTorch's)."""
    bytes: Positive
    """Size of the buffer, the copy or the tensor."""
    # One buffer:
    way: WayName | None = None
    """How the buffer was got, such as ``fresh_4k``, ``pinned``, ``registered_thp`` or ``cupy_pool``."""
    get_seconds: Lasted | None = None
    """Until the buffer was there, touched and pinned as its way says."""
    touch_seconds: float | None = None
    """Of that: writing to every page, by one thread."""
    register_seconds: float | None = None
    """Of that: pinning memory that was there already."""
    unregister_seconds: float | None = None
    """Unpinning memory that stays, before it was given back."""
    give_back_seconds: Lasted | None = None
    """Until it was gone, unregistering included."""
    page_faults: int | None = None
    """Of the measuring process while it got the buffer; ``None`` where the kernel does not count them."""
    # One copy:
    memory: HostMemory | None = None
    """Kind of the host memory."""
    backing: Backing | None = None
    """Pages under pageable memory."""
    direction: OneWay | None = None
    """``h2d`` (host to device) or ``d2h``."""
    wall_seconds: float | None = None
    """From before the call until the copy was complete, by the host clock."""
    # PyTorch's pool after one step:
    step: PoolStep | None = None
    """``before`` the tensor, while it is ``held``, after it was ``dropped``, ``again``, or the pool was ``emptied``."""
    setting: str | None = None
    """Name of the setting: ``in_force``, ``none``, ``register``, ``segment`` or ``unrounded``."""
    settings: str | None = None
    """The environment variables that were in force, and their values; empty for none."""
    version: str | None = None
    """PyTorch's."""
    pool_seconds: float | None = None
    """To take the tensor."""
    pool_bytes: int | None = None
    """Blocks that PyTorch has pinned, in use or kept (``torch.cuda.host_memory_stats``)."""
    pinned_bytes: int | None = None
    """Pinned on the whole host."""
    nvml_used_bytes: int | None = None
    """Of the GPU, by everybody."""

    def needs(self) -> tuple[str, Iterable[str]]:
        """A buffer has its way and times, a copy its kind, direction and time, a pool its setting."""
        return f"a {self.kind}", {"buffer": BUFFER_VALUES, "copy": COPY_VALUES, "pool": POOL_VALUES}[self.kind]


class Allocation:
    """Ways to get a buffer × size, and what copies of that size gain from pinning."""

    name = "allocation"
    title = "Allocation"
    summary = "Cost of a pinned buffer, and how many copies repay it"
    question = "What does it cost to allocate and free a pinned buffer, and how many copies repay that?"
    labs: Mapping[LabKind, str | None] = {"cuda": None, "host": None}
    Params = AllocationParams
    Observation = AllocationObservation

    def budget(self, params: AllocationParams, environment: Environment) -> Budget:
        """One buffer at a time; a pool keeps one of each size."""
        largest, every = max(params.sizes), sum(params.sizes)
        pinned = every if set(of_kind(WAYS, "keeps")) & set(params.ways) else largest
        times = len(params.ways) + len(COPIED) * len(params.directions)
        each = sum(
            min(params.repeats * (size / PACE + 1e-4), params.time_limit + 4 * size / PACE) for size in params.sizes
        )
        audited = rounded_up(params.pytorch_bytes) if params.pytorch else 0
        return Budget(
            pinned_bytes=max(pinned, audited),
            pageable_bytes=largest,
            device_bytes=max(largest, CONTEXT_BYTES + audited // 512 if audited else 0),
            seconds=times * each * SHARE_OF_TIME
            + START_SECONDS
            + (CHILD_SECONDS * len(pool_settings("", audited)) if audited else 0.0),
        )

    def measure(self, params: AllocationParams, lab: Lab, harness: Harness) -> Iterator[AllocationObservation]:
        """Every way with every size, then the copies."""
        total = len(params.ways) * len(params.sizes) + 1
        if uncounted := why_no_page_faults():
            harness.note(f"Not known: page faults, and so whether fresh memory was fresh. {uncounted}.")
        for number, way in enumerate(params.ways):
            fitting = self._fitting(way, params, lab, harness)
            if not fitting:
                continue
            with source(lab, way) as buffers:
                for place, size in enumerate(fitting):
                    harness.progress(
                        (number * len(params.sizes) + place) / total, f"{way.replace('_', '-')} {format_bytes(size)}"
                    )
                    counted: list[float] = []
                    for turn in harness.turns(params.harness_precision(), counted):
                        times = buffers.once(size, harness.clock)
                        if not turn.warmup:
                            counted.append(times.get_seconds + times.give_back_seconds)
                        yield AllocationObservation(
                            kind="buffer",
                            repeat=turn.repeat,
                            warmup=turn.warmup,
                            bytes=size,
                            way=way,
                            **vars(times) | ({"page_faults": None} if uncounted else {}),
                        )
        harness.progress((total - 1) / total, "copies")
        for backing in COPIED:
            if backing and (reason := why_not_backing(backing)):
                harness.note(f"Left out: copies from pageable memory in huge pages. {reason}")
                continue
            yield from self._copies(params, lab, harness, backing)
        if params.pytorch:
            for values in _audit(params.pytorch_bytes, lab, harness):
                yield AllocationObservation(kind="pool", **values)

    def _fitting(self, way: WayName, params: AllocationParams, lab: Lab, harness: Harness) -> list[int]:
        """The sizes of which this machine gives buffers this way; the others are noted."""
        name, least = way.replace("_", "-"), least_bytes(way)
        if small := [size for size in params.sizes if size < least]:
            harness.note(f"Left out: {name}, up to {format_bytes(small[-1])}. A page is {format_bytes(least)}.")
        fitting: list[int] = []
        for size in params.sizes[len(small) :]:
            if reason := why_not_way(lab, way, size):
                harness.note(f"Left out: {name}, {format_bytes(size)}. {reason}")
                break  # larger ones cannot be had either
            fitting.append(size)
        return fitting

    def _copies(
        self, params: AllocationParams, lab: Lab, harness: Harness, backing: Backing | None
    ) -> Iterator[AllocationObservation]:
        """Copies of every size, complete, from or to pageable memory in pages of one sort; ``None``: pinned memory."""
        largest = max(params.sizes)
        memory: HostMemory = "pageable" if backing else "pinned"
        place = lab.ordinary_memory(largest, backing) if backing else lab.host_buffer(largest, memory)
        with place as host, lab.device_buffer(largest) as device, lab.stream() as stream:
            lab.copy_to_host(host, device, stream)
            for size in params.sizes:
                for direction in params.directions:
                    there, here = device.part(0, size), host.part(0, size)
                    counted: list[float] = []
                    for turn in harness.turns(params.harness_precision(), counted):
                        begun = harness.clock()
                        if direction == "h2d":
                            lab.copy_to_device(there, here, stream)
                        else:
                            lab.copy_to_host(here, there, stream)
                        stream.synchronize()
                        seconds = harness.clock() - begun
                        if not turn.warmup:
                            counted.append(seconds)
                        yield AllocationObservation(
                            kind="copy",
                            repeat=turn.repeat,
                            warmup=turn.warmup,
                            bytes=size,
                            memory=memory,
                            backing=backing,
                            direction=direction,
                            wall_seconds=seconds,
                        )

    read = staticmethod(read_allocation)
    """Seconds per GiB, break-even copies, what a pool saves."""


def _audit(nbytes: int, lab: Lab, harness: Harness) -> Iterator[Mapping[str, Any]]:
    """Values of an observation for each setting and step. A setting that cannot be measured is noted."""
    if reason := _why_no_audit(lab):
        harness.note(f"Left out: PyTorch's pool. {reason}")
        return
    for setting, chosen in pool_settings(version("torch"), nbytes).items():
        if setting == "none" and not any(map(os.environ.get, SETTING_NAMES)):
            continue  # the same as what is in force
        if chosen.reason:
            harness.note(f"Left out: PyTorch's pool, {setting}. {chosen.reason}")
            continue
        harness.progress(1.0, f"PyTorch's pool: {setting}")
        try:
            yield from _steps(setting, chosen.text, nbytes, lab, harness)
        except (MeasurementFailed, NotEnoughMemory) as error:
            harness.note(f"Left out: PyTorch's pool, {setting}. {error}")


def _why_no_audit(lab: Lab) -> str | None:
    """Why PyTorch's pool cannot be looked at here; ``None`` if it can."""
    if lab.kind != "cuda":
        return "It needs a GPU."
    if find_spec("torch") is None:
        return f"PyTorch is not installed here; run: {install_command('torch')}"
    return None


def _steps(setting: str, text: str | None, nbytes: int, lab: Lab, harness: Harness) -> Iterator[Mapping[str, Any]]:
    child = Child("PyTorch's process", _MODULE, {"place": lab.place, "settings": text})
    with ChildProcesses({0: child}, STEP_SECONDS, harness.check_cancelled) as processes:

        def ask(order: Order) -> Mapping[str, Any]:
            return processes.ask(f"looking at its pool ({setting})", {0: order})[0][1]

        def values(step: PoolStep, reply: Mapping[str, Any]) -> Mapping[str, Any]:
            state = lab.memory_state()
            return {
                "bytes": nbytes,
                "repeat": 0,
                "warmup": False,
                "step": step,
                "setting": setting,
                **started,
                "pool_seconds": reply.get("seconds"),
                "pool_bytes": reply.get("pool_bytes"),
                "pinned_bytes": state.pinned_bytes,
                "nvml_used_bytes": state.nvml_used_bytes,
            }

        reply = ask({"do": "start"})
        started = {"settings": reply["in_force"], "version": reply["version"]}
        yield values("before", {})
        for step, order in STEPS:
            if step == "emptied":
                ask({"do": "drop"})
            yield values(step, ask({**order, "nbytes": nbytes} if order["do"] == "take" else order))


EXPERIMENT: AnyExperiment = Allocation()
