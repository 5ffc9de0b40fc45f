"""Opening a lab by the name of its place, as a process does that works for another one's measurement."""

from __future__ import annotations

from pinscope.lab.hostmodel import HostModelLab
from pinscope.lab.protocol import Lab


def open_lab(place: str, seed: int) -> Lab:
    """A lab on the device that :attr:`Lab.place` of another process names."""
    if place == HostModelLab.place:
        return HostModelLab(seed=seed)
    from pinscope.lab.cuda import CudaLab  # noqa: PLC0415 - imports CuPy, which the host model does not need

    return CudaLab(0, {0: place}, seed)
