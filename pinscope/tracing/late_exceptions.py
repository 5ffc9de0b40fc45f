"""What a signal's handler of the program raises inside a callback of ours, raised again once the callback is over."""

from __future__ import annotations

import _thread
import ctypes
import json
import sys
import time

LINGER_SECONDS = 0.001
"""So long after the callback in which it came, and so often until the thread is out of our code, it is tried."""


class LateExceptions:
    """Those of one process.

    Args:
        own_files: of the code that callbacks run.
    """

    def __init__(self, own_files: frozenset[str]) -> None:
        self._own_files = own_files
        self._raised_again: BaseException | None = None

    def take(self, error: BaseException) -> bool:
        """Raise it again in this thread, if it is of the program; false if it is our own fault."""
        if error is not self._raised_again and not self._is_of_the_program(error):
            return False
        self._raised_again = error  # it may come in a callback once more
        _thread.start_new_thread(self._raise_later, (_thread.get_ident(), self._without_our_frames(error)))
        return True

    def _is_of_the_program(self, error: BaseException) -> bool:
        """Whether code of the program raised it, which ran inside a callback: a handler of a signal."""
        trace, files = error.__traceback__, set[str]()
        while trace is not None:
            files.add(trace.tb_frame.f_code.co_filename)
            trace = trace.tb_next
        ours = {*self._own_files, json.__file__, json.encoder.__file__}
        return isinstance(error, KeyboardInterrupt) or not files <= ours

    def _without_our_frames(self, error: BaseException) -> BaseException:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename in self._own_files:
            trace = trace.tb_next
        return error.with_traceback(trace)

    def _raise_later(self, thread: int, error: BaseException) -> None:
        """Raise the very exception, once its thread is out of our code: what handles a fault would take it for one."""
        while True:
            time.sleep(LINGER_SECONDS)
            frame = sys._current_frames().get(thread)
            if frame is None:  # the thread has ended
                return
            if frame.f_code.co_filename not in self._own_files:
                break
        carrier = type(type(error).__name__, (type(error),), {"__new__": lambda *_arguments: error})
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(carrier))
