"""A campaign: seeded attempts at breaking PinScope, counted, with every failing input kept.

A campaign is small in ``scripts/test`` and whole in ``scripts/test-faults``. What once failed lies in ``corpus/`` and
is tried first, always.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

CORPUS = Path(__file__).parent / "corpus"
WHOLE = os.environ.get("PINSCOPE_FAULTS") == "whole"
whole_only = pytest.mark.skipif(not WHOLE, reason="scripts/test-faults runs it")
"""For what has a cheaper test of the same promise elsewhere."""
SEED = int(os.environ.get("PINSCOPE_FAULTS_SEED", "20261122"))
KINDS = (
    "kills", "bundles", "parameters", "proc trees", "I/O errors", "database restarts", "requests", "signals",
    "surroundings",
)  # fmt: skip
"""What attempts are counted as."""


@dataclass
class Campaign:
    """Attempts of one test.

    Attributes:
        name: of the campaign; its failing inputs lie in ``corpus/NAME``.
        counted: attempts by kind.
        failures: one line each: the attempt, by its number or seed, and what it did.
        measured: figures to be printed with the counts, one line each.
    """

    name: str
    counted: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    measured: list[str] = field(default_factory=list)

    def size(self, *, sample: int, whole: int) -> int:
        """How many attempts to make: a sample in ``scripts/test``, all in ``scripts/test-faults``."""
        return whole if WHOLE else sample

    def random(self, attempt: int = 0) -> random.Random:
        """Random numbers of one attempt: the same in each run with the same seed."""
        return random.Random(f"{SEED} {self.name} {attempt}")

    def count(self, kind: str, attempts: int = 1) -> None:
        """Enter attempts that were made."""
        if kind not in KINDS:
            raise ValueError(f"{kind!r} is none of {', '.join(KINDS)}")
        self.counted[kind] += attempts

    def fail(self, what: str, failing_input: bytes | None = None, name: str = "input") -> None:
        """Enter a failure; its input is kept in the corpus, where the next run tries it first."""
        self.failures.append(what)
        if failing_input is not None:
            folder = CORPUS / self.name
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(failing_input)

    def corpus(self) -> Iterator[tuple[str, bytes]]:
        """Name and content of each input that failed once."""
        folder = CORPUS / self.name
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            yield path.name, path.read_bytes()
