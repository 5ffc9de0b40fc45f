"""What runs of one name are, as far as reading them goes."""

from __future__ import annotations

from typing import Protocol

from pinscope.records.parameters import Inputs
from pinscope.records.run import Observation


class Kind(Protocol):
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
