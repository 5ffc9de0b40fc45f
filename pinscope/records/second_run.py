"""What a trace keeps of a second run of the program, with lines pinned or waited for."""

from __future__ import annotations

from pinscope.records.base import Count, Record, Seconds


class SecondRunFields(Record):
    """Fields of a trace's rows."""

    estimated_seconds: Seconds | None = None
    """What pinning was expected to save, by the first run."""
    same_output: bool | None = None
    """Whether both runs wrote the same to stdout."""
    gather_seconds: Seconds | None = None
    """How long the CPU copied into pinned buffers."""
    wait_seconds: Seconds | None = None
    """How long the CPU waited for the GPU to have read a buffer that it needed again; of a DataLoader, how long the
    loop waited for its batches, beside receiving them: by the median one."""
    pin_seconds: Seconds | None = None
    """How long pinning the buffers took."""
    pinned_bytes: Count | None = None
    """Of the buffers."""
    reason: str | None = None
    """Why copies of the line were left as they were, or what was pinned instead; of large copies and calls of libraries
    what was done to the data on the CPU."""
    # With a wait behind asynchronous copies:
    needed: bool | None = None
    """Whether the output differs where this line alone is not waited for; not there where that was not tried."""
    output: str | None = None
    """What differs: ``stdout``, ``the exit code``, the name of a ``pinscope.check``, or the function that saved;
    ``count`` is the number of the first such array that differs, 0 where their number does."""
    same_twice: bool | None = None
    """Whether two runs with waits gave the same."""
    arrays: Count | None = None
    """How many lines of the first run saved or named arrays."""
