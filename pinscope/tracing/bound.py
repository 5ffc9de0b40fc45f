"""Python as it was when this process began: what the recorder calls.

A program may replace ``time.sleep``, ``os.open`` or ``len``, as tests and gevent do. So the recorder's modules import
from here, and :func:`bind` their built-in functions.
"""

from __future__ import annotations

import builtins
import signal
from _json import encode_basestring_ascii, make_encoder

TYPE_CHECKING = False  # every Python process pays for what is imported here, and typing is dear
if TYPE_CHECKING:
    import _thread
    import os
    import time
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any
else:
    import _thread as threads_now
    import os as os_now
    import time as time_now


def _copied(module: ModuleType) -> Any:
    copy = type(module)(module.__name__)
    vars(copy).update(vars(module))
    return copy


if not TYPE_CHECKING:
    _thread, os, time = map(_copied, (threads_now, os_now, time_now))
_builtins = dict(vars(builtins))
__all__ = ["_thread", "as_json", "bind", "os", "start_thread", "time"]
_pieces = make_encoder(None, repr, encode_basestring_ascii, None, ": ", ", ", False, False, True)
_join = "".join


def bind(module: dict[str, Any]) -> None:
    """Have what a module defines from now on use built-in functions as they are now.

    Args:
        module: its ``globals()``, in which Python looks them up (docs.python.org, "Execution model").
    """
    module["__builtins__"] = _builtins


def as_json(document: Any) -> bytes:
    """Text, numbers, and lists and dictionaries of them, as JSON, by code in C alone."""
    return _join(_pieces(document, 0)).encode()


def start_thread(work: Callable[[], None]) -> None:
    """Run something in a thread of its own, which the program's ``threading`` does not know. A signal is for the
    program's threads, also one that all of them have blocked."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        _thread.start_new_thread(work, ())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
