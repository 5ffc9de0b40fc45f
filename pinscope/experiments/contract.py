"""What an experiment is, and the parameter types that forms and command-line options are made from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Protocol, Self, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import PydanticUndefined

from pinscope.analysis.rows import Row as Row  # noqa: PLC0414 - experiments are written with it
from pinscope.analysis.statistics import LEAST_VALUES
from pinscope.errors import InvalidParameter
from pinscope.experiments.cases import Case, whole_budget
from pinscope.lab.harness import Harness, Precision
from pinscope.lab.placement import ANY, NEAR
from pinscope.lab.protocol import Lab
from pinscope.records.budget import Budget
from pinscope.records.environment import Environment
from pinscope.records.finding import Reading
from pinscope.records.run import ExperimentRun, LabKind, Observation, Run
from pinscope.text import quoted
from pinscope.units import parse_bytes, parse_seconds, parse_share

MOST_CHARACTERS = 4096
"""Of a parameter as text: hundreds of sizes."""


def by_comma(value: Any) -> Any:
    """Lists come as text from the command line: ``4KiB,1MiB``."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


def _size(value: Any) -> int:
    try:
        return parse_bytes(value)
    except InvalidParameter as error:
        raise ValueError(str(error)) from None


def _distinct(values: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(values))


def ascending(values: tuple[int, ...]) -> tuple[int, ...]:
    """Each once, the least first."""
    return tuple(sorted(set(values)))


def _multiple_of_8(value: int) -> int:
    if value % 8:
        raise ValueError("a size must be a multiple of 8 bytes")
    return value


def _node(value: str) -> str:
    word = value.strip().lower()
    if word in (NEAR, ANY):
        return word
    if not (word.isascii() and word.isdigit() and len(word) <= 4):
        raise ValueError(f"must be {NEAR}, {ANY} or the number of a NUMA node")
    return str(int(word))


_Item = TypeVar("_Item")
_IN_BYTES = Field(json_schema_extra={"unit": "bytes"})
Bytes = Annotated[int, BeforeValidator(_size), Field(gt=0), AfterValidator(_multiple_of_8), _IN_BYTES]
"""A size in bytes; takes ``64KiB``, ``1e9`` …"""
Sizes = Annotated[
    tuple[Bytes, ...], BeforeValidator(by_comma), Field(min_length=1), AfterValidator(ascending), _IN_BYTES
]
"""Sizes in bytes, ascending; takes a list by comma."""
Counts = Annotated[
    tuple[Annotated[int, Field(ge=1, le=64)], ...],
    BeforeValidator(by_comma),
    Field(min_length=1, json_schema_extra={"unit": "count"}),
    AfterValidator(ascending),
]
"""Whole numbers from 1 to 64, ascending; takes a list by comma."""
Several = Annotated[tuple[_Item, ...], BeforeValidator(by_comma), Field(min_length=1), AfterValidator(_distinct)]
"""One or more of a set of words; takes a list by comma."""


Node = Annotated[str, BeforeValidator(str), AfterValidator(_node)]
"""``near``, ``any`` or the number of a NUMA node."""


def _share(value: Any) -> Any:
    """``2%`` is 0.02; anything else is for the type to take or refuse."""
    if isinstance(value, str):
        with suppress(InvalidParameter):
            return parse_share(value)
    return value


def _seconds(value: Any) -> Any:
    """``10m`` is 600; likewise."""
    if isinstance(value, str):
        with suppress(InvalidParameter):
            return parse_seconds(value)
    return value


Share = Annotated[float, BeforeValidator(_share), Field(json_schema_extra={"unit": "share"})]
"""A part of something: 0.02 or ``2%``."""
Seconds = Annotated[float, BeforeValidator(_seconds), Field(json_schema_extra={"unit": "seconds"})]
"""A length of time: 2 or ``2s``."""


def sizes(text: str) -> tuple[int, ...]:
    """Sizes of a preset: ``4KiB 1MiB``."""
    return tuple(map(parse_bytes, text.split()))


def parameter(
    title: str, description: str, default: Any = PydanticUndefined, *, unit: str | None = None, **limits: Any
) -> Any:
    """A field of a parameter model, as form and command line show it; ``limits`` are pydantic's, such as ``ge=1``."""
    if unit:
        limits["json_schema_extra"] = {"unit": unit}
    return Field(default, title=title, description=description, **limits)


class Inputs(BaseModel):
    """Checked values. The form and the command-line options are generated from the fields: see :func:`parameter`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @classmethod
    def preset(cls, lab: LabKind, quick: bool) -> Self:
        """Defaults for a lab, in full or quick size."""
        raise NotImplementedError(f"{cls.__name__} has no preset for {lab}, quick={quick}")

    def smaller(self) -> Self | None:
        """The next smaller variant, for a preset that is more than a machine can hold; ``None`` if there is none."""
        return None

    def with_overrides(self, overrides: Mapping[str, Any]) -> Self:
        """These parameters with some replaced, validated anew.

        Raises:
            InvalidParameter: unknown name or value out of range, in one line.
        """
        unknown = sorted(set(overrides) - set(type(self).model_fields))
        if unknown:
            known = ", ".join(type(self).model_fields)
            raise InvalidParameter(f"no parameter {quoted(unknown[0])}; there are: {known}")
        for name, value in overrides.items():
            if isinstance(value, str) and len(value) > MOST_CHARACTERS:
                raise InvalidParameter(f"{name}: {len(value):,} characters are too many; at most {MOST_CHARACTERS:,}")
        try:
            return type(self).model_validate({**self.model_dump(), **overrides})
        except ValidationError as error:
            raise InvalidParameter(_one_line(error)) from None


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
        "Repeat until the median is known to within ± this percentage, with 95 % confidence if repeats do "
        "not depend on one another.",
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


_PLAINER = {
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_parsing": "must be a number",
    "bool_parsing": "must be yes or no",
    "too_short": "needs at least one value",
}
"""What pydantic would say of a value in its own terms, by its kind of complaint."""


def _one_line(error: ValidationError) -> str:
    """The first complaint of pydantic as one line: what was wrong and what is allowed."""
    first = error.errors()[0]
    name = ".".join(str(part) for part in first["loc"][:1])
    message = _PLAINER.get(first["type"]) or first["msg"].removeprefix("Value error, ")
    message = message.replace("Input should be", "must be")
    given = first.get("input")
    shown = f" (given: {quoted(given)})" if isinstance(given, str | int | float) else ""
    if shown and quoted(given) in message:
        shown = ""  # said already
    return f"{name}: {message}{shown}" if name else f"{message}{shown}"  # no name: several fields do not fit together


RunT_contra = TypeVar("RunT_contra", bound=Run, contravariant=True)
ParamsT = TypeVar("ParamsT", bound=BareParams)
ObservationT_co = TypeVar("ObservationT_co", bound=Observation, covariant=True)


class Kind(Protocol[RunT_contra]):
    """What runs of one name are, as far as reading them goes. Every experiment is one; a kept live view is another."""

    @property
    def name(self) -> str:
        """As runs carry it; of an experiment, the word on the command line."""
        ...

    @property
    def title(self) -> str: ...
    @property
    def question(self) -> str: ...
    @property
    def Params(self) -> type[Inputs]: ...  # noqa: N802 - a class
    @property
    def Observation(self) -> type[Observation]: ...  # noqa: N802 - a class

    def read(self, run: RunT_contra, rows: Sequence[Row]) -> Reading:
        """Headline, tables and findings of a run, from its rows alone."""
        ...


class Measured(Kind[ExperimentRun], Protocol[ParamsT, ObservationT_co]):
    """A named, parameterised, controlled procedure that asks one question.

    ``measure`` yields observations as they come; each is stored at once. ``read`` derives everything else.
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

    def measure(self, params: ParamsT, lab: Lab, harness: Harness) -> Iterator[ObservationT_co]: ...


class Experiment(Measured[ParamsT, ObservationT_co], Protocol[ParamsT, ObservationT_co]):
    """One whose budget and progress follow from its cases."""

    @property
    def start_seconds(self) -> float:
        """Until the first reading, roughly."""
        ...

    def cases(self, params: ParamsT, environment: Environment | None = None) -> Sequence[Case[Any]]:
        """All that a run measures, in its order. The environment is known before a run, and ``None`` within it."""
        ...


class Budgeted(Measured[ParamsT, ObservationT_co], Protocol[ParamsT, ObservationT_co]):
    """One that states its budget itself, as long as not all have cases."""

    def budget(self, params: ParamsT, environment: Environment) -> Budget: ...


AnyKind = Kind[Any]
AnyExperiment = Experiment[Any, Any] | Budgeted[Any, Any]


def budget_of(experiment: AnyExperiment, params: BareParams, environment: Environment) -> Budget:
    """What a run takes: as many bytes at one time as its largest case, and the seconds of all cases.

    Raises:
        NotPossible: the machine lacks what every case needs.
    """
    if hasattr(experiment, "budget"):
        return experiment.budget(params, environment)
    return whole_budget(experiment.cases(params, environment), experiment.start_seconds)
