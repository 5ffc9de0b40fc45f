"""A program that was traced: not an experiment, but read like one. `pinscope trace` makes it."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from pinscope.experiments.contract import AnyKind, Inputs, parameter
from pinscope.experiments.trace.arithmetic import SAVED_IF_PINNED
from pinscope.experiments.trace.reading import read_trace
from pinscope.records.trace_row import TraceRow
from pinscope.text import encodable

Text = Annotated[str, AfterValidator(encodable)]
"""Of the program, which need not be UTF-8."""


class TraceParams(Inputs):
    """What was traced."""

    program: tuple[Text, ...] = parameter(
        "Program", "A file, or -m and a module, and its arguments.", (), unit="command"
    )
    stacks: bool = parameter("Lines of Python recorded", "The Python stack of each call was read.", True)
    part: Text | None = parameter("Part", "Name of the part of the program that pinscope.trace recorded.", None)
