"""How much faster is a PyTorch training loop with pin_memory and non_blocking, and what does it pin?"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from itertools import product
from typing import Annotated, Any, Literal, Self

from pydantic import Field

from pinscope.analysis.rules import rounded_up
from pinscope.errors import MeasurementFailed, NotEnoughMemory, NotPossible
from pinscope.experiments.contract import AnyExperiment, BareParams, Case, Progress
from pinscope.experiments.dataloader import torch_pool, ways
from pinscope.experiments.dataloader.reading import LEAST_BATCHES, LEAST_RUNS, MOST_RUNS, MSER_BATCH, OWN_TIMES
from pinscope.lab.child_processes import Child, ChildProcesses
from pinscope.lab.harness import CONTEXT_BYTES, Harness
from pinscope.lab.protocol import Lab
from pinscope.probes.environment import install_command
from pinscope.records.environment import Environment
from pinscope.records.parameters import Ascending, Several, parameter
from pinscope.records.run import LabKind, Lasted, Observation, Positive
from pinscope.units import format_bytes

Choice = Literal["on", "off"]
Workers = Annotated[int, Field(ge=0, le=64)]
Training = tuple[int, ways.Loading] | None
"""In which round, and with which loader."""
TORCH_BYTES = 2 * 2**30
"""GPU memory for PyTorch's kernels, the network and its activations, roughly."""
LEAST_STEPS = MSER_BATCH * LEAST_BATCHES
STEP_BYTES_PER_SECOND = 2e9
"""Of batches, that a loop reaches, roughly (measured on an H200 host: 3 to 4.5 GB/s, on an H100's 1.5)."""
POOL_SECONDS = 24.0
"""What a look at the pool takes about: a start of PyTorch and a context for each setting."""
LOOK_SECONDS = 60.0
"""After which a process that looks at the pool is given up."""


class DataloaderParams(BareParams):
    """Batches, and which loaders to compare."""

    batch: int = parameter(
        "Batch",
        f"Number of images in a batch, each of {ways.PIXELS} by {ways.PIXELS} pixels in {ways.CHANNELS} channels of 4 "
        "bytes.",
        unit="count",
        ge=1,
        le=4096,
    )
    workers: Ascending[Workers] = parameter(
        "Workers", "Number of processes that make batches; with 0, the training program makes them.", unit="count"
    )
    pin_memory: Several[Choice] = parameter("pin_memory", "Whether the DataLoader copies batches to pinned memory.")
    non_blocking: Several[Choice] = parameter("non_blocking", "Whether the program asks for asynchronous copies.")
    batches: Several[ways.BatchKind] = parameter(
        "Kinds of batches",
        "; ".join(f"{kind}: {way.help}" for kind, way in ways.BATCHES.items()) + ". The first is measured in every "
        "combination, others with the most workers, and with pin_memory and non_blocking both off or both on.",
        ("one",),
    )
    steps: int = parameter(
        "Steps",
        f"Number of training steps of each combination. It is raised to {ways.BACKLOGS} times the number of "
        f"batches that the workers make ahead ({ways.PREFETCHED} each), if that is larger. The first steps, before the "
        "steady state, are found and left out.",
        unit="count",
        ge=LEAST_STEPS,
        le=10_000,
    )
    rounds: int = parameter(
        "Rounds",
        "Number of times that each combination is started and measured. Each gives one value; from 8 on a figure "
        "has its ±.",
        5,
        unit="count",
        ge=LEAST_RUNS,
        le=MOST_RUNS,
    )
    pool: bool = parameter(
        "PyTorch's pool",
        "Look at PyTorch's pool of pinned memory, each of its settings in a process of its own: what it takes for a "
        "batch, and what it keeps.",
        False,
    )

    @classmethod
    def preset(cls, lab: LabKind, quick: bool) -> Self:
        return cls(
            batch=16 if quick else 64,
            workers=(2,) if quick else (0, 2, 8),
            pin_memory=("off", "on"),
            non_blocking=("off", "on"),
            steps=40 if quick else 80,
            rounds=3 if quick else 4,
            batches=("one",) if quick else tuple(ways.BATCHES),
            pool=not quick,
        )

    def smaller(self) -> Self | None:
        return self.with_overrides({"batch": self.batch // 2}) if self.batch > 1 else None


STEP_LABELS = ("pin_memory", "non_blocking", "workers", "wrong_items")
POOL_VALUES = ("setting", "settings", "version")


class DataloaderObservation(Observation):
    """One step of training, or one look at PyTorch's pool (``kind``)."""

    kind: Literal["step", "pool"] = "step"
    """``step`` (of training), or ``pool`` (PyTorch's, with one of its settings)."""
    batch_bytes: Positive
    """The images of one batch; the tensor that the pool is asked for."""
    pinned_bytes: int | None
    """What the host's count of pinned pages had grown by since this combination began, after its last step; of a look
    at the pool, while the tensor was there."""
    batch_kind: ways.BatchKind = "one"
    """``one`` tensor, ``many``, or one of items that are ``slow`` to make."""
    # One step:
    round: int = 0
    """In which round; each starts every combination anew."""
    pin_memory: bool | None = None
    """The DataLoader's setting."""
    non_blocking: bool | None = None
    """How batches were copied to the GPU."""
    workers: Workers | None = None
    """Worker processes; 0: the program makes the batches."""
    wait_seconds: float | None = None
    """The program waited for the loader."""
    make_seconds: float | None = None
    """A worker (or, without workers, the program) made this batch; ``None``: an older run, which did not time it."""
    pin_seconds: float | None = None
    """It was copied to pinned memory, by PyTorch's one pinning thread (or the program); ``None``: it was not."""
    issue_seconds: float | None = None
    """The calls that start the copies held the program."""
    copy_seconds: float | None = None
    """Copies of this batch, by device events."""
    compute_seconds: float | None = None
    """Kernels of this step, by device events."""
    stall_seconds: float | None = None
    """The GPU computed nothing between the last step and this one."""
    step_seconds: float | None = None
    """From the end of one step's kernels to the end of the next one's."""
    wrong_items: int | None = None
    """Items that are not those that belong there."""
    # PyTorch's pool with one of its settings:
    setting: str | None = None
    """Name of the setting: ``in_force``, ``none``, ``register``, ``segment`` or ``unrounded``."""
    settings: str | None = None
    """The environment variables that were in force, and their values; empty for none."""
    version: str | None = None
    """PyTorch's."""
    pool_bytes: int | None = None
    """Blocks that PyTorch had pinned while the tensor was there (``torch.cuda.host_memory_stats``)."""
    kept_bytes: int | None = None
    """Still pinned, by the host's count, when the tensor was gone."""
    left_bytes: int | None = None
    """Still pinned, by the host's count, when the pool had been emptied."""
    pool_seconds: Lasted | None = None
    """To take the tensor."""
    again_seconds: Lasted | None = None
    """To take one of its size once more."""

    def needs(self) -> tuple[str, Iterable[str]]:
        """A step has its settings and times, a pool its setting."""
        return f"a {self.kind}", POOL_VALUES if self.kind == "pool" else (*STEP_LABELS, *OWN_TIMES)


class Dataloader:
    """A training loop with every combination of pin_memory, non_blocking and workers."""

    name = "dataloader"
    title = "Data loader"
    summary = "Gain of pin_memory and non_blocking in PyTorch"
    question = "How much faster is a PyTorch training loop with pin_memory and non_blocking, and what does it pin?"
    labs: Mapping[LabKind, str | None] = {"cuda": None, "host": "PyTorch pins memory for a GPU only"}
    Params = DataloaderParams
    Observation = DataloaderObservation
    start_seconds = 6.0
    """Also of PyTorch's import."""

    def cases(self, params: DataloaderParams, environment: Environment | None = None) -> list[Case[Training]]:
        """Every round with all combinations; every second one backwards, so that what drifts meets all alike.

        Pinned batches are rounded up to powers of two; each worker makes some ahead.

        Raises:
            NotPossible: PyTorch is not installed.
            NotEnoughMemory: /dev/shm is too small for the batches of the workers.
        """
        if find_spec("torch") is None:
            raise NotPossible(f"PyTorch is not installed here; run: {install_command('torch')}")
        usual = params.batches[0]
        settings = [
            ways.Loading(params.batch, workers, pin == "on", asynchronous == "on", kind)
            for kind, workers, pin, asynchronous in product(
                params.batches, params.workers, params.pin_memory, params.non_blocking
            )
            if kind == usual or (workers == max(params.workers) and pin == asynchronous)
        ]
        if environment:
            need = max(loading.shared_bytes for loading in settings)
            _check_shared_memory(need, environment.limits.shm_free_bytes)
        cases = [
            _case(number, loading, params.steps)
            for number in range(params.rounds)
            for loading in (reversed(settings) if number % 2 else settings)
        ]
        if params.pool:
            batch = settings[0].batch_bytes
            device = TORCH_BYTES + 8 * batch + CONTEXT_BYTES
            cases.append(Case("PyTorch's pool", None, POOL_SECONDS, rounded_up(batch), device_bytes=device))
        return cases

    def measure(self, params: DataloaderParams, lab: Lab, harness: Harness) -> Iterator[DataloaderObservation]:
        """Every combination in turn."""
        from pinscope.experiments.dataloader.torch_loader import Trainer  # noqa: PLC0415 - imports PyTorch
        from pinscope.lab.cuda_memory import CudaCalls  # noqa: PLC0415 - imports CuPy
        from pinscope.lab.torch_pinned import empty_pinned_cache, version  # noqa: PLC0415 - imports PyTorch

        harness.note(f"PyTorch {version()}.")
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each tensor that a worker hands over takes one
        ordinal = CudaCalls.here().ordinal
        trainer = Trainer(ordinal, lambda address, nbytes: lab.host_nodes.look([(address, nbytes)]))
        if not empty_pinned_cache():
            harness.note("This PyTorch cannot give its pinned memory back: what is pinned adds up.")
        for training in Progress(self.cases(params), harness):
            empty_pinned_cache()
            if training is None:
                nbytes = params.batch * ways.IMAGE_BYTES
                for values in _looks(version(), nbytes, ordinal, harness):
                    yield DataloaderObservation(kind="pool", repeat=0, warmup=False, **values)
                continue
            number, loading = training
            before = lab.memory_state().pinned_bytes
            with trainer.trained(loading, loading.at_least(params.steps), harness.check_cancelled) as steps:
                after = lab.memory_state().pinned_bytes
            held = None if before is None or after is None else after - before
            nodes = lab.host_nodes.take()
            for place, step in enumerate(steps):
                lab.host_nodes.add(nodes)
                yield DataloaderObservation(
                    repeat=place,
                    round=number,
                    pin_memory=loading.pin_memory,
                    non_blocking=loading.non_blocking,
                    workers=loading.workers,
                    batch_kind=loading.kind,
                    batch_bytes=loading.batch_bytes,
                    pinned_bytes=held,
                    **step,
                )
        empty_pinned_cache()


def _looks(release: str, nbytes: int, ordinal: int, harness: Harness) -> Iterator[Mapping[str, Any]]:
    """What this release's pool does with one request, by setting; one that cannot be measured is noted."""
    for setting, chosen in torch_pool.pool_settings(release, nbytes).items():
        if setting == "none" and not any(map(os.environ.get, torch_pool.SETTING_NAMES)):
            continue  # the same as what is in force
        try:
            if chosen.reason:
                raise MeasurementFailed(chosen.reason)
            child = Child("PyTorch's process", torch_pool.__name__, {"ordinal": ordinal, "settings": chosen.text})
            with ChildProcesses({0: child}, LOOK_SECONDS, harness.check_cancelled) as processes:
                reply = processes.ask(f"looking at its pool ({setting})", {0: {"do": "look", "nbytes": nbytes}})[0][1]
            yield {"setting": setting, "batch_bytes": nbytes, **reply}
        except (MeasurementFailed, NotEnoughMemory) as error:
            harness.note(f"Left out: PyTorch's pool, {setting}. {error}")


def _case(number: int, loading: ways.Loading, steps: int) -> Case[Training]:
    pin, asynchronous = ("on" if value else "off" for value in (loading.pin_memory, loading.non_blocking))
    batch, at_once = loading.batch_bytes, loading.ahead + 2
    tensors = -(-batch // loading.tensor_bytes)
    slow = ways.SLOW_SECONDS * loading.batch / max(loading.workers, 1) if loading.kind == "slow" else 0.0
    kind = "" if loading.kind == "one" else f", {ways.BATCHES[loading.kind].title}"
    return Case(
        f"pin_memory {pin}, non_blocking {asynchronous}, {loading.workers} workers{kind}",
        (number, loading),
        0.5 + loading.at_least(steps) * (batch / STEP_BYTES_PER_SECOND + slow),
        pinned_bytes=at_once * tensors * rounded_up(loading.tensor_bytes),
        pageable_bytes=2 * at_once * batch + ways.KINDS * ways.IMAGE_BYTES,  # forked workers share the images
        device_bytes=TORCH_BYTES + 8 * batch,
    )


def _check_shared_memory(need: int, free: int | None) -> None:
    """Workers hand batches over through /dev/shm, of which a container has 64 MiB unless it is given more."""
    if free is not None and need > free:
        raise NotEnoughMemory(
            f"the loader's workers need {format_bytes(need)} in /dev/shm, but only {format_bytes(free)} is free there; "
            f"give the container more (docker run --shm-size={-(-need // 2**20)}m) or take no workers (--set workers=0)"
        )


EXPERIMENT: AnyExperiment = Dataloader()
