"""PyTorch's pool of pinned memory: its settings, and a process that pins with them.

PyTorch reads them once, when it first allocates. So each has a process of its own, which
:mod:`pinscope.lab.child_processes` starts; only that one imports PyTorch.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass

from pinscope.analysis.rules import UNROUNDED_SINCE, rounded_up
from pinscope.errors import NotPossible
from pinscope.lab.child_processes import Reply, serve_requests
from pinscope.probes.host_memory import pinned_bytes

SETTING_NAMES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Environment variables with PyTorch's settings: the newer name first."""
REGISTER_THREADS = 8
"""That PyTorch touches with where it registers: more bring little, its documentation says."""


@dataclass(frozen=True)
class PoolSetting:
    """One way to set PyTorch's pool of pinned memory.

    Attributes:
        text: the value of PYTORCH_ALLOC_CONF; ``None`` leaves what is in force.
        reason: why it is not to be set here; ``None`` if it may be.
    """

    text: str | None
    reason: str | None = None


def pool_settings(version: str, nbytes: int) -> Mapping[str, PoolSetting]:
    """The settings that bear on a request of ``nbytes``, by name, for one release of PyTorch.

    ``in_force`` is whatever the environment says, ``none`` nothing at all.
    """
    release = tuple(map(int, re.findall(r"\d+", version)[:2]))
    segment = -(-rounded_up(nbytes) // 2**20)
    threads = f"pinned_num_register_threads:{REGISTER_THREADS}"
    return {
        "in_force": PoolSetting(None),
        "none": PoolSetting(""),
        "register": PoolSetting(f"pinned_use_cuda_host_register:True,{threads}"),
        "segment": PoolSetting(f"pinned_reserve_segment_size_mb:{segment}"),
        "unrounded": _unrounded(release),
    }


def _unrounded(release: tuple[int, ...]) -> PoolSetting:
    if release >= (2, 14):
        return PoolSetting("pinned_max_round_threshold_mb:1")
    if release >= (2, 13):
        return PoolSetting(None, "In PyTorch 2.13 it can corrupt memory (pytorch#192722).")
    known = ".".join(map(str, release)) or "this release"
    return PoolSetting(None, f"PyTorch {known} has no setting against the rounding; {UNROUNDED_SINCE} and later have.")


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
