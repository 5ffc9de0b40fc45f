"""What a run measures, one case after the other, with what each takes: budget, progress and notes follow from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pinscope.errors import NotPossible
from pinscope.lab.harness import Harness
from pinscope.records.base import Budget

What = TypeVar("What")
Reason = tuple[str, str | None]
"""What of a case this machine may lack, and why it does; ``None``: the case can be measured."""


@dataclass(frozen=True)
class Case(Generic[What]):
    """What is measured between two looks at the progress.

    Attributes:
        words: for whoever watches the run.
        what: the experiment's own record of it.
        seconds: that it takes, roughly.
        pinned_bytes, pageable_bytes, device_bytes, hugetlb_bytes: held meanwhile, as in :class:`Budget`.
    """

    words: str
    what: What
    seconds: float
    pinned_bytes: int = 0
    pageable_bytes: int = 0
    device_bytes: int = 0
    hugetlb_bytes: int = 0


def whole_budget(cases: Sequence[Case[Any]], start_seconds: float) -> Budget:
    """Of a run that takes one case after the other: the most that one holds, and the seconds of all."""
    held = ("pinned_bytes", "pageable_bytes", "device_bytes", "hugetlb_bytes")
    most = {name: max((getattr(case, name) for case in cases), default=0) for name in held}
    return Budget(**most, seconds=start_seconds + sum(case.seconds for case in cases))


def possible(
    cases: Iterable[Case[What]], harness: Harness, why_not: Callable[[What], Reason], instead: str = ""
) -> list[Case[What]]:
    """The cases that this machine can do. What is left out is noted, once a reason.

    Args:
        cases: all of them.
        harness: takes the notes.
        why_not: of a case.
        instead: the setting that asks for what other machines can do.

    Raises:
        NotPossible: none can be done.
    """
    kept: list[Case[What]] = []
    left_out: dict[str, dict[str, None]] = {}
    for case in cases:
        which, why = why_not(case.what)
        if why:
            left_out.setdefault(why, {})[which] = None
        else:
            kept.append(case)
    if not kept:
        first = next(iter(left_out), "these parameters leave nothing").rstrip(".")
        hint = f". Other ways can be measured here: --set {instead}" if instead else ""
        raise NotPossible(f"nothing of what was asked for can be measured: {first}{hint}")
    for why, names in left_out.items():
        harness.note(f"Left out: {'; '.join(names)}. {why}")
    return kept


class Progress(Generic[What]):
    """Hands out cases, and reports the share of their seconds that has gone by.

    Args:
        cases: all of them; :meth:`through` hands out some at a time.
        harness: is told.
    """

    def __init__(self, cases: Sequence[Case[What]], harness: Harness) -> None:
        self._cases, self._harness = cases, harness
        self._done, self._all = 0.0, sum(case.seconds for case in cases)

    def __iter__(self) -> Iterator[What]:
        return self.through(self._cases)

    def through(self, cases: Iterable[Case[What]]) -> Iterator[What]:
        """These, one after the other."""
        for case in cases:
            self._harness.progress(self._done / self._all, case.words)
            yield case.what
            self._done += case.seconds
