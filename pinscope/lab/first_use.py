"""Opening a lab by the name of its place, and using each part of it once."""

from __future__ import annotations

from contextlib import ExitStack

from pinscope.lab.backing import touch
from pinscope.lab.hostmodel import HostModelLab
from pinscope.lab.protocol import Lab

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
        for source in (stack.enter_context(one) for one in sources):
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
