"""Labs, and host memory of the driver's own calls: CuPy is imported only where a GPU is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

from pinscope.errors import MeasurementFailed, NotPossible
from pinscope.lab.backing import touch
from pinscope.lab.hostmodel import HostModelLab
from pinscope.lab.protocol import HostBuffer, Lab
from pinscope.records.run import DriverMemory
from pinscope.units import format_bytes

PROBED_BYTES = 2**21
"""Taken once to see whether a kind can be had."""
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


def granularity_words(lab: Lab) -> str | None:
    """In which steps cuMemCreate hands out host memory, a sentence; ``None`` where the driver does not say."""
    if lab.kind != "cuda":
        return None
    from pinscope.lab import cuda_memory  # noqa: PLC0415 - imports CuPy

    try:
        least, recommended = map(format_bytes, cuda_memory.granularities())
    except (NotPossible, MeasurementFailed):
        return None
    return f"cuMemCreate hands out host memory in steps of {least} at least; the driver recommends {recommended}."


WARM_BYTES = 2 * 2**20


def use_each_part_once(lab: Lab) -> None:
    """Register memory and allocate pinned memory, copy from both and check it, and give all of it back."""
    pattern = lab.fresh_pattern()
    with ExitStack() as stack:
        memory = stack.enter_context(lab.ordinary_memory(WARM_BYTES, "shm"))
        touch(memory)
        device = stack.enter_context(lab.device_buffer(WARM_BYTES))
        stream = stack.enter_context(lab.stream())
        sources = (lab.register(memory), lab.host_buffer(WARM_BYTES, "pinned"))
        for source in map(stack.enter_context, sources):
            lab.fill(source, pattern)
            lab.copy_to_device(device, source, stream)
            stream.synchronize()
            lab.wrong_words(device, pattern)


def open_lab(place: str, seed: int) -> Lab:
    """A lab on the device that :attr:`Lab.place` of another process names."""
    if place == HostModelLab.place:
        return HostModelLab(seed=seed)
    from pinscope.lab.cuda import CudaLab  # noqa: PLC0415 - imports CuPy, which the host model does not need

    return CudaLab(0, {0: place}, seed)
