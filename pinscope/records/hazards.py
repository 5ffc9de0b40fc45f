"""What a trace keeps of data that is used before its asynchronous copy is done."""

from __future__ import annotations

from pinscope.records.base import Count, Record


class HazardFields(Record):
    """Fields of a trace's rows of kind ``early_read``, ``waited`` and ``difference``, and of ``before`` beside them."""

    # Copies that were read before a wait:
    in_flight_count: Count | None = None
    """Reads while the copy still ran; the others came when it happened to be done."""
    copy_file: str | None = None
    """File of the line that copied."""
    copy_line: Count | None = None
    """That line."""
    # What was waited for in a second run of the program:
    needed: bool | None = None
    """Whether the output differs where this line alone is not waited for; not there where that was not tried."""
    output: str | None = None
    """What differs: ``stdout``, ``the exit code``, the name of a ``pinscope.check``, or the function that saved;
    ``count`` is the number of the first such array that differs, 0 where their number does."""
    same_twice: bool | None = None
    """Whether two runs with waits gave the same."""
    arrays: Count | None = None
    """How many lines of the first run saved or named arrays."""
