"""GPUs and directions as sentences name them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pinscope.analysis.conclusions import joined

TOWARDS: Mapping[str, str] = {"h2d": "to the GPU", "d2h": "from the GPU", "bidirectional": "both ways"}
ALL_TOWARDS: Mapping[str, str] = {"h2d": "to the GPUs", "d2h": "from the GPUs", "bidirectional": "both ways"}
BY: Mapping[str, str] = {"one_process": "one process", "process_each": "one process per GPU"}


def gpus_words(gpus: Sequence[int]) -> str:
    """``GPU 0``, ``GPUs 0 and 1``."""
    return f"GPU{'s' if len(gpus) > 1 else ''} {joined([str(gpu) for gpu in gpus])}"


def not_slower_words(gpus: Sequence[int]) -> str:
    """``GPUs 0 and 1 do not slow each other one way``, ``No two of 8 GPUs slow each other one way``."""
    who = f"{gpus_words(gpus)} do not" if len(gpus) == 2 else f"No two of {len(gpus)} GPUs"
    return f"{who} slow each other one way"


def groups_words(groups: Iterable[Sequence[int]]) -> str:
    """``GPUs 0 and 1 share an uplink, GPUs 2 and 3 another``."""
    first, *others = [gpus_words(group) for group in groups]
    return ", ".join([f"{first} share an uplink", *(f"{other} another" for other in others)])
