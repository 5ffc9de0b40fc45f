"""The doorway to host memory of the driver's own calls, which only a lab with a GPU has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from pinscope.errors import MeasurementFailed, NotPossible
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
    from pinscope.lab import cuda_driver_memory  # noqa: PLC0415 - imports CuPy

    with cuda_driver_memory.driver_memory(kind, kept=kept) as take:

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
    from pinscope.lab import cuda_driver_memory  # noqa: PLC0415 - imports CuPy

    try:
        least, recommended = map(format_bytes, cuda_driver_memory.granularities())
    except (NotPossible, MeasurementFailed):
        return None
    return f"cuMemCreate hands out host memory in steps of {least} at least; the driver recommends {recommended}."
