"""How much faster is a PyTorch training loop with pin_memory and non_blocking, and what does it pin?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from importlib.util import find_spec
from itertools import product
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field

from pinscope.errors import NotEnoughMemory, NotPossible
from pinscope.experiments.contract import AnyExperiment, BareParams
from pinscope.experiments.dataloader.findings import read_dataloader
from pinscope.experiments.dataloader.reading import LEAST_BATCHES, LEAST_RUNS, MOST_RUNS, MSER_BATCH
from pinscope.experiments.dataloader.ways import BACKLOGS, PREFETCHED, Loading
from pinscope.lab.harness import Harness
from pinscope.lab.protocol import Lab
from pinscope.probes.installation import install_command
from pinscope.records.budget import Budget
from pinscope.records.environment import Environment
from pinscope.records.parameters import Several, ascending, by_comma, parameter
from pinscope.records.run import LabKind, Observation
from pinscope.units import format_bytes

Choice = Literal["on", "off"]
TORCH_BYTES = 2 * 2**30
"""GPU memory for PyTorch's kernels, the network and its activations, roughly."""
LEAST_STEPS = MSER_BATCH * LEAST_BATCHES
START_SECONDS = 10.0
STEP_BYTES_PER_SECOND = 3e9
"""Batches a second that a loop reaches, roughly (measured on an H200 host: 3 to 4.5 GB/s)."""


class DataloaderParams(BareParams):
    """Batches, and which loaders to compare."""

    batch: int = parameter("Batch", "Number of images in a batch.", unit="count", ge=1, le=4096)
    pixels: int = parameter(
        "Pixels",
        "Height and width of an image, in pixels; an image has three channels of 4 bytes each.",
        224,
        unit="count",
        ge=32,
        le=2048,
    )
    workers: Annotated[
        tuple[Annotated[int, Field(ge=0, le=64)], ...],
        BeforeValidator(by_comma),
        Field(min_length=1),
        AfterValidator(ascending),
    ] = parameter(
        "Workers", "Number of processes that make batches; with 0, the training program makes them.", unit="count"
    )
    pin_memory: Several[Choice] = parameter("pin_memory", "Whether the DataLoader copies batches to pinned memory.")
    non_blocking: Several[Choice] = parameter("non_blocking", "Whether the program asks for asynchronous copies.")
    steps: int = parameter(
        "Steps",
        f"Number of training steps of each combination. It is raised to {BACKLOGS} times the number of "
        f"batches that the workers make ahead ({PREFETCHED} each), if that is larger. The first steps, before the "
        "steady state, are found and left out.",
        unit="count",
        ge=LEAST_STEPS,
        le=10_000,
    )
    rounds: int = parameter(
        "Rounds",
        "Number of times that each combination is started and measured. The 95 % intervals come from the "
        "spread between rounds.",
        5,
        unit="count",
        ge=LEAST_RUNS,
        le=MOST_RUNS,
    )

    @classmethod
    def preset(cls, lab: LabKind, quick: bool) -> Self:
        return cls(
            batch=64,
            workers=(2,) if quick else (0, 2, 8),
            pin_memory=("off", "on"),
            non_blocking=("off", "on"),
            steps=40 if quick else 80,
            rounds=3 if quick else 4,
        )

    def smaller(self) -> Self | None:
        return self.with_overrides({"batch": self.batch // 2}) if self.batch > 1 else None


class DataloaderObservation(Observation):
    """One step of training."""

    round: int = 0
    """In which round; each starts every combination anew. Runs before there were rounds have one."""
    pin_memory: bool
    """The DataLoader's setting."""
    non_blocking: bool
    """How batches were copied to the GPU."""
    workers: int
    """Worker processes; 0: the program makes the batches."""
    batch_bytes: int
    """The images of one batch."""
    wait_seconds: float
    """The program waited for the loader."""
    make_seconds: float | None = None
    """A worker (or, without workers, the program) made this batch; ``None``: an older run, which did not time it."""
    pin_seconds: float | None = None
    """It was copied to pinned memory, by PyTorch's one pinning thread (or the program); ``None``: it was not."""
    issue_seconds: float
    """The calls that start the copies held the program."""
    copy_seconds: float
    """Copies of this batch, by device events."""
    compute_seconds: float
    """Kernels of this step, by device events."""
    stall_seconds: float
    """The GPU computed nothing between the last step and this one."""
    step_seconds: float
    """From the end of one step's kernels to the end of the next one's."""
    wrong_items: int
    """Items that are not those that belong there."""
    pinned_bytes: int | None
    """What the host's count of pinned pages had grown by since this combination began, after its last step."""


class Dataloader:
    """A training loop with every combination of pin_memory, non_blocking and workers."""

    name = "dataloader"
    title = "Data loader"
    summary = "Gain of pin_memory and non_blocking in PyTorch"
    question = "How much faster is a PyTorch training loop with pin_memory and non_blocking, and what does it pin?"
    labs: Mapping[LabKind, str | None] = {"cuda": None, "host": "PyTorch pins memory for a GPU only"}
    Params = DataloaderParams
    Observation = DataloaderObservation

    def budget(self, params: DataloaderParams, environment: Environment) -> Budget:
        """Pinned batches are rounded up to powers of two; each worker makes some ahead.

        Raises:
            NotPossible: PyTorch is not installed.
            NotEnoughMemory: /dev/shm is too small for the batches of the workers.
        """
        if find_spec("torch") is None:
            raise NotPossible(f"PyTorch is not installed here; run: {install_command('torch')}")
        loading = _loading(params, max(params.workers))
        _check_shared_memory(loading.shared_bytes, environment.limits.shm_free_bytes)
        batch = loading.batch_bytes
        at_once = loading.ahead + 2
        combinations = len(params.pin_memory) * len(params.non_blocking)
        steps = sum(_loading(params, workers).at_least(params.steps) for workers in params.workers)
        return Budget(
            pinned_bytes=at_once * 2 ** (batch - 1).bit_length(),
            pageable_bytes=2 * at_once * batch + loading.made_bytes,
            device_bytes=TORCH_BYTES + 8 * batch,
            seconds=START_SECONDS
            + params.rounds * combinations * (len(params.workers) + steps * batch / STEP_BYTES_PER_SECOND),
        )

    def measure(self, params: DataloaderParams, lab: Lab, harness: Harness) -> Iterator[DataloaderObservation]:
        """Every combination in turn."""
        from pinscope.experiments.dataloader.torch_loader import Trainer  # noqa: PLC0415 - imports PyTorch
        from pinscope.lab.cuda_pinning import CudaCalls  # noqa: PLC0415 - imports CuPy
        from pinscope.lab.torch_pinned import empty_pinned_cache, version  # noqa: PLC0415 - imports PyTorch

        harness.note(f"PyTorch {version()}.")
        trainer = Trainer(CudaCalls.here().ordinal, lambda address, nbytes: lab.host_nodes.look([(address, nbytes)]))
        if not empty_pinned_cache():
            harness.note("This PyTorch cannot give its pinned memory back: what is pinned adds up.")
        cases = _cases(params)
        for done, (number, loading) in enumerate(cases):
            harness.progress(done / len(cases), _message(loading))
            empty_pinned_cache()
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
                    batch_bytes=loading.batch_bytes,
                    pinned_bytes=held,
                    **asdict(step),
                )
        empty_pinned_cache()

    read = staticmethod(read_dataloader)
    """Steps a second of each combination, and where the time goes."""


def _cases(params: DataloaderParams) -> list[tuple[int, Loading]]:
    """Every round with all combinations; every second one backwards, so that what drifts meets all alike."""
    settings = list(product(params.workers, params.pin_memory, params.non_blocking))
    return [
        (number, Loading(params.batch, params.pixels, workers, pin == "on", asynchronous == "on"))
        for number in range(params.rounds)
        for workers, pin, asynchronous in (reversed(settings) if number % 2 else settings)
    ]


def _message(loading: Loading) -> str:
    pin, asynchronous = ("on" if value else "off" for value in (loading.pin_memory, loading.non_blocking))
    return f"pin_memory {pin}, non_blocking {asynchronous}, {loading.workers} workers"


def _loading(params: DataloaderParams, workers: int) -> Loading:
    """With everything on: what takes most memory."""
    return Loading(params.batch, params.pixels, workers, pin_memory=True, non_blocking=True)


def _check_shared_memory(need: int, free: int | None) -> None:
    """Workers hand batches over through /dev/shm, of which a container has 64 MiB unless it is given more."""
    if free is not None and need > free:
        raise NotEnoughMemory(
            f"the loader's workers need {format_bytes(need)} in /dev/shm, but only {format_bytes(free)} is free there; "
            f"give the container more (docker run --shm-size={-(-need // 2**20)}m) or take no workers (--set workers=0)"
        )


EXPERIMENT: AnyExperiment = Dataloader()
