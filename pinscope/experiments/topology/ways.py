"""Who issues the copies of several GPUs, from where opened memory is filled, and how sentences name GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pinscope.analysis.conclusions import joined
from pinscope.analysis.ways import LineStyle, Way, way
from pinscope.records.run import Direction

OneWay = Literal["h2d", "d2h"]
WAYS: Mapping[str, Way] = {
    "one_process": way("one process", style=LineStyle("pinned")),
    "process_each": way("one process per GPU", style=LineStyle("workers")),
}
"""Who issues."""
SOURCES: Mapping[Literal["host", "device"], Way] = {
    "host": way("From the opener's pinned memory", "its pinned memory"),
    "device": way("From the opener's own GPU", "its own GPU's memory"),
}
"""Where the process that opened another GPU's memory copies from."""
CONTEXTS: Mapping[str, str] = {"every_gpu": "every GPU", "own_gpu": "one GPU each"}
"""Where the processes that register have contexts."""
FLOWS: Mapping[Direction, tuple[OneWay, ...]] = {"h2d": ("h2d",), "d2h": ("d2h",), "bidirectional": ("h2d", "d2h")}
"""What is measured, and the copies of each GPU that go on at once."""
TOWARDS: Mapping[str, str] = {"h2d": "to the GPU", "d2h": "from the GPU", "bidirectional": "both ways"}


def gpus_words(gpus: Sequence[int]) -> str:
    """``GPU 0``, ``GPUs 0 and 1``."""
    return f"GPU{'s' if len(gpus) > 1 else ''} {joined([str(gpu) for gpu in gpus])}"


def issuer(name: str) -> str:
    """Who issues, for people."""
    return WAYS[name].title
