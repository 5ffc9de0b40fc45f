"""Whose fault an exception is that reached our code inside the program: ours, or the program's, which has handlers of
signals.

Python runs those in its main thread wherever that stands, also in our code.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from types import TracebackType
from typing import Any

from pinscope.tracing.bound import bind
from pinscope.tracing.stacks import OURS

bind(globals())

_OWN_MODULES = (
    "bound", "cupti_library", "error_filter", "faults", "host_calls", "host_data", "lanes", "later", "library_calls",
    "library_log", "loader_origins", "managed", "mapped_file", "pending", "process_end", "recorder", "source_memory",
    "spool_folder", "stacks", "waits", "watch_reads",
)  # fmt: skip
_OWN_FILES = frozenset([*(f"{OURS}/{name}.py" for name in _OWN_MODULES), json.__file__, json.encoder.__file__])


def is_of_the_program(error: BaseException) -> bool:
    """Whether a handler of a signal raised it, which ran inside our code in the main thread."""
    return isinstance(error, KeyboardInterrupt) or own_traceback(error) is not None


def answered(ask: Callable[..., Any], *arguments: Any) -> Any:
    """What a tensor or an array says; ``None`` of one that cannot, such as one of a class that is made otherwise."""
    try:
        return ask(*arguments)
    except Exception as error:
        if is_of_the_program(error):
            raise
        return None


def own_traceback(error: BaseException) -> TracebackType | None:
    """Without our frames."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in _OWN_FILES:
        trace = trace.tb_next
    return trace
