"""What an experiment is, the parameters that experiments share, and the cases that one measures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Protocol, TypeVar

from pydantic import AfterValidator, BeforeValidator

from pinscope.analysis.read_rows import Kind
from pinscope.analysis.statistics import LEAST_VALUES
from pinscope.errors import NotPossible
from pinscope.lab.harness import Harness, Precision
from pinscope.lab.placement import ANY, NEAR
from pinscope.lab.protocol import Lab
from pinscope.records.base import Budget
from pinscope.records.environment import Environment
from pinscope.records.parameters import Inputs, Seconds, Share, parameter
from pinscope.records.run import LabKind, Observation

What = TypeVar("What")
Reason = tuple[str, str | None]
"""What of a case this machine may lack, and why it does; ``None``: the case can be measured."""


@dataclass(frozen=True)
class Case(Generic[What]):
    """What is measured between two looks at the progress.

    Attributes:
        words: what is measured, as the progress of the run says it.
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
    """Hands out cases, and reports the share of their seconds that has gone by."""

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


def _node(value: str) -> str:
    word = value.strip().lower()
    if word in (NEAR, ANY):
        return word
    if not (word.isascii() and word.isdigit() and len(word) <= 4):
        raise ValueError(f"must be {NEAR}, {ANY} or the number of a NUMA node")
    return str(int(word))


Node = Annotated[str, BeforeValidator(str), AfterValidator(_node)]
"""``near``, ``any`` or the number of a NUMA node."""


class BareParams(Inputs):
    """Parameters of an experiment. Those that repeat each combination take :class:`Params` instead."""

    node: Node = parameter(
        "NUMA node",
        "NUMA node of the host buffers and of the threads that copy: near (the GPU's node), any (wherever "
        "the system puts them), or the number of a node.",
        NEAR,
    )


class Params(BareParams):
    """Parameters of an experiment that repeats each combination until its median is known."""

    precision: Share = parameter(
        "Precision",
        "Repeat until the ± of the median is at most this percentage, but for what whole runs differ by.",
        0.01,
        gt=0,
        le=0.5,
    )
    repeats: int = parameter(
        "Most repeats",
        "Number of repeats after which to stop, whatever the precision is by then.",
        60,
        unit="count",
        ge=LEAST_VALUES,
        le=10_000,
    )
    time_limit: Seconds = parameter(
        "Time limit",
        "Time after which to stop repeating one combination, whatever the precision is by then.",
        2.0,
        gt=0,
        le=3600,
    )

    def harness_precision(self) -> Precision:
        """The stopping rule these parameters ask for."""
        return Precision(relative=self.precision, most=self.repeats, seconds=self.time_limit)


ParamsT = TypeVar("ParamsT", bound=BareParams)
ObservationT_co = TypeVar("ObservationT_co", bound=Observation, covariant=True)


class Experiment(Kind, Protocol[ParamsT, ObservationT_co]):
    """A named, parameterised, controlled procedure that asks one question.

    ``measure`` yields observations as they come; each is stored at once. Everything else is derived from them by
    functions beside it: ``reading.of(run, rows)`` makes them one object, or ``None`` while there is too little, which
    ``reading.verdict``, ``headline`` and ``tables``, ``findings.findings`` and ``charts.draw`` are given.
    """

    @property
    def summary(self) -> str:
        """What it is about, in some eight words, for lists."""
        ...

    @property
    def labs(self) -> Mapping[LabKind, str | None]:
        """Lab → ``None`` if the experiment has a meaning there, else why it has none."""
        ...

    @property
    def Params(self) -> type[ParamsT]: ...  # noqa: N802 - a class
    @property
    def Observation(self) -> type[ObservationT_co]: ...  # noqa: N802 - a class

    @property
    def start_seconds(self) -> float:
        """Until the first reading, roughly."""
        ...

    def cases(self, params: ParamsT, environment: Environment | None = None) -> Sequence[Case[Any]]:
        """All that a run measures, in its order. The environment is known before a run, and ``None`` within it."""
        ...

    def measure(self, params: ParamsT, lab: Lab, harness: Harness) -> Iterator[ObservationT_co]: ...


AnyExperiment = Experiment[Any, Any]


def budget_of(experiment: AnyExperiment, params: BareParams, environment: Environment) -> Budget:
    """What a run takes: as many bytes at one time as its largest case, and the seconds of all cases.

    Raises:
        NotPossible: the machine lacks what every case needs.
    """
    return whole_budget(experiment.cases(params, environment), experiment.start_seconds)
