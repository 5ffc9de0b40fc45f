"""What a trace keeps of processes that the program started and that are not recorded."""

from __future__ import annotations

from typing import Literal

from pinscope.records.base import Record
from pinscope.records.host_calls import Count

ChildKind = Literal["fork", "exec", "python", "native", "refused"]


class ChildFields(Record):
    """Fields of a trace's rows."""

    unrecorded: Count | None = None
    """Of the program: processes that it started, that used CUDA and were not recorded; a row of kind ``unrecorded``
    each."""
    unseen: Count | None = None
    """Of the program: processes that it started and that ended before PinScope could look at them."""
    child: ChildKind | None = None
    """What an unrecorded process is: a ``fork``, a recorded one that became another program (``exec``), a ``python``
    that did not let the recorder in, a ``native`` program, or one in which CUPTI ``refused``."""
    executable: str | None = None
    """Of an unrecorded process: name of its program's file."""
