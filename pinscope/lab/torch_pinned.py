"""PyTorch's pinned memory, as experiments need it. Imports PyTorch (extra ``torch``)."""

from __future__ import annotations

import torch


def why_not_torch() -> str | None:
    """Why this PyTorch cannot use the GPU, and what to do; ``None`` if it can."""
    if torch.cuda.is_available():
        return None
    built = torch.version.cuda
    how = f"for CUDA {built} and finds no GPU that it can use" if built else "without CUDA"
    return (
        f"PyTorch {version()} was built {how}; install a build that fits this driver (nvidia-smi tells its CUDA "
        "version) into PinScope's environment"
    )


def empty_pinned_cache() -> bool:
    """Give pinned memory that PyTorch keeps for later back; false where this PyTorch has no way to."""
    empty = getattr(torch._C, "_host_emptyCache", None)
    if empty is None:
        return False
    empty()
    return True


def version() -> str:
    """PyTorch's."""
    return str(torch.__version__)
