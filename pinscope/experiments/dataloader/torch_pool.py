"""A process that pins through PyTorch with settings of its own: they are read once, when PyTorch first allocates.

A program that :mod:`pinscope.lab.child_processes` starts.
"""

from __future__ import annotations

import os
import sys
import time

from pinscope.analysis.rules import SETTING_NAMES
from pinscope.errors import NotPossible
from pinscope.lab.child_processes import Reply, serve_requests
from pinscope.probes.host_memory import pinned_bytes


class TorchPool:
    """What the process can do: each public method is an order.

    Args:
        ordinal: CUDA's number of the GPU.
        settings: of PyTorch's allocators; ``None`` leaves those in force.
    """

    def __init__(self, ordinal: int, settings: str | None) -> None:
        self._ordinal = ordinal
        if settings is not None:
            for name in SETTING_NAMES:
                os.environ.pop(name, None)
        if settings:
            os.environ[SETTING_NAMES[0]] = settings

    def look(self, nbytes: int) -> Reply:
        """Pin a tensor of so many bytes, let go of it, pin it once more and empty the pool: fields of an observation.

        Raises:
            NotPossible: this PyTorch cannot use the GPU.
        """
        import torch  # noqa: PLC0415 - the settings must stand before

        from pinscope.lab.torch_pinned import empty_pinned_cache, version, why_not_torch  # noqa: PLC0415

        def take() -> tuple[object, float]:
            begun = time.perf_counter()
            taken = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
            return taken, time.perf_counter() - begun

        def grown() -> int | None:
            now = pinned_bytes().value
            return None if now is None or before is None else now - before

        if reason := why_not_torch():
            raise NotPossible(reason)
        torch.cuda.set_device(self._ordinal)
        torch.ones(1, device="cuda")
        torch.cuda.synchronize()
        before = pinned_bytes().value
        tensor, seconds = take()
        held, pool = grown(), _pool_bytes()
        del tensor
        kept = grown()
        tensor, again = take()
        del tensor
        empty_pinned_cache()
        in_force = [f"{name}={os.environ[name]}" for name in SETTING_NAMES if os.environ.get(name)]
        return {
            "version": version(),
            "settings": " ".join(in_force),
            "pinned_bytes": held,
            "pool_bytes": pool,
            "kept_bytes": kept,
            "left_bytes": grown(),
            "pool_seconds": seconds,
            "again_seconds": again,
        }


def _pool_bytes() -> int | None:
    """Bytes of the blocks that PyTorch has pinned, in use or kept; ``None`` where this PyTorch does not tell.

    What is in use, ``active_bytes``, is wrong up to PyTorch 2.12.1: CachingHostAllocator's ``free`` does not count down
    for a block that no stream used, and ``get_free_block`` counts up again when it is handed out (pytorch#182404).
    """
    import torch  # noqa: PLC0415

    counts: dict[str, int] = getattr(torch.cuda, "host_memory_stats", dict)()
    # Up to which release ``allocated_bytes`` were those in use, beside ``reserved_bytes``, differs.
    return counts.get("reserved_bytes.current", counts.get("allocated_bytes.current"))


if __name__ == "__main__":
    sys.exit(serve_requests(TorchPool))
