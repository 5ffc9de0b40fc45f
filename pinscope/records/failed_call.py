"""What a row of a trace says of calls that failed."""

from __future__ import annotations

from typing import Literal

from pinscope.records.base import Count, Record


class FailedCall(Record):
    """Calls of one function of CUDA, on one line, that returned the same error."""

    failed_calls: Count | None = None
    """Of the program's row: calls that returned an error; not there where they were not noticed."""
    error: Count | None = None
    """CUDA's code, which runtime and driver share."""
    error_name: str | None = None
    """Its name, such as ``cudaErrorHostMemoryAlreadyRegistered``; of functions of the driver ``CUDA_ERROR_…``."""
    is_elsewhere: bool | None = None
    """The thread that made the call runs no Python: the line is where the main thread stood meanwhile."""
    follows_lost_context: bool | None = None
    """A kernel had failed before, so that each call of the process failed."""
    earlier: Literal["taken", "released", "before"] | None = None
    """What stood at the earlier line: ``taken`` (the range was allocated or registered there, and still was),
    ``released`` (it had been given back there) or ``before`` (the last call that was recorded before: of an error by a
    kernel, which was launched between the two lines, of one that an unnoticed call left, and of calls without a
    line)."""
    earlier_file: str | None = None
    """Its file."""
    earlier_line: Count | None = None
    """The line."""
    noticed_file: str | None = None
    """File of the first other line whose thread read the error that the call had left behind, and took it for its
    own."""
    noticed_line: Count | None = None
    """That line."""
    noticed_count: Count | None = None
    """How often it read it."""
