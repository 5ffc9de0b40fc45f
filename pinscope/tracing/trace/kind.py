"""A trace is the recording of a program; `pinscope trace` makes it."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from pinscope.analysis.kind import Kind
from pinscope.records.parameters import Inputs, parameter
from pinscope.records.trace_row import TraceRow
from pinscope.text import encodable

Text = Annotated[str, AfterValidator(encodable)]
"""Of the program, which need not be UTF-8."""
MOST_CHARACTERS = 32_768
"""Of a command that is kept."""


def _shortened(words: tuple[str, ...]) -> tuple[str, ...]:
    """The first words of a command, and how many there are more."""
    room = MOST_CHARACTERS
    for place, word in enumerate(words):
        room -= len(word) + 1
        if room < 0:
            return (*words[:place], f"… {len(words) - place:,} more")
    return words


class TraceParams(Inputs):
    """What was traced."""

    program: Annotated[tuple[Text, ...], AfterValidator(_shortened)] = parameter(
        "Program", "A file, or -m and a module, and its arguments.", (), unit="command"
    )
    stacks: bool = parameter("Lines of Python recorded", "The Python stack of each call was read.", True)
    part: Text | None = parameter("Part", "Name of the part of the program that pinscope.trace recorded.", None)
    start_after: float = parameter("Recorded from", "Seconds after the program's start.", 0.0, unit="seconds")
    for_seconds: float | None = parameter("Recorded for", "Empty: to the end.", None, unit="seconds")
    only_parts: bool = parameter("Parts only", "Recorded only inside the parts that pinscope.trace names.", False)
    children: bool = parameter("Child processes recorded", "Also the Python processes that it starts.", True)
    pinned_h2d: float | None = parameter(
        "Pinned copies to the GPU", "Rate of large ones, for the estimates.", None, unit="bytes/second"
    )
    pinned_d2h: float | None = parameter(
        "Pinned copies from the GPU", "Rate of large ones, for the estimates.", None, unit="bytes/second"
    )
    pageable_h2d: float | None = parameter(
        "Pageable copies to the GPU", "Rate of large ones, for the estimates.", None, unit="bytes/second"
    )
    pinned_from: str | None = parameter("Where these rates come from", "A run of bandwidth.", None)
    gathered_bytes: tuple[int, ...] = parameter("Pieces gathered", "Sizes of the pieces.", (), unit="bytes")
    gathered_h2d: tuple[float, ...] = parameter(
        "Gathered and copied to the GPU", "By one thread, for each of these sizes.", (), unit="bytes/second"
    )
    gathered_d2h: tuple[float, ...] = parameter(
        "Copied from the GPU and spread", "By one thread, for each of these sizes.", (), unit="bytes/second"
    )
    gathered_from: str | None = parameter("Where these rates of gathering come from", "A run of scatter.", None)
    what_if: tuple[str, ...] = parameter("Lines pinned by --what-if", "Their copies came from pinned memory.", ())
    what_if_of: str | None = parameter("Run of the program as it is", "What --what-if compares with.", None)


class Trace:
    """What a program copied and pinned, and the lines that did it."""

    name = "trace"
    title = "Trace"
    question = "Which line of this program copies pageable memory, and what would pinning it save?"
    Params = TraceParams
    Observation = TraceRow


KIND: Kind = Trace()
