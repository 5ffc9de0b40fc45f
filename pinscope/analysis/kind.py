"""What runs of one name are, as far as reading them goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from pinscope.analysis.read_rows import Row
from pinscope.records.finding import Reading
from pinscope.records.parameters import Inputs
from pinscope.records.run import Observation, Run

RunT_contra = TypeVar("RunT_contra", bound=Run, contravariant=True)


class Kind(Protocol[RunT_contra]):
    """Every experiment is one; a timeline and a trace, which are kept and read like one, are others."""

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


AnyKind = Kind[Any]
