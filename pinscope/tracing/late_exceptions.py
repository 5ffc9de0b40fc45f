"""What a signal's handler of the program raises inside a callback of ours, raised again where the program goes on.

Python handles a signal that came during a call in the first Python code behind it: without a recording that is the
program's, else our callback. An exception cannot get from there to the program. So Python is asked to raise it at its
next opportunity, which must not be in our code any more. Python looks for what is asked of it where a function begins,
behind a call of C and at a loop's end. So it is asked by an operator, which is none of these places, runs in C alone,
and behind which our functions only return. The next place is the program's own, right behind its call.
"""

from __future__ import annotations

import ctypes
import functools
import json
from collections import deque
from collections.abc import Callable
from itertools import repeat
from types import TracebackType
from typing import Protocol

from pinscope.tracing.bound import _thread, bind, os

bind(globals())


_ADD_PENDING_CALL = ctypes.pythonapi.Py_AddPendingCall
_IS_TRUE = ctypes.cast(ctypes.pythonapi.PyObject_IsTrue, ctypes.c_void_p)
_SET_ASYNC_EXC = ctypes.pythonapi.PyThreadState_SetAsyncExc


class _Due(Protocol):
    """``-due``: Python is asked to raise what is due."""

    def __neg__(self) -> object: ...


class LateExceptions:
    """Those of one process.

    Args:
        own_files: of the code that callbacks run.
    """

    def __init__(self, own_files: frozenset[str]) -> None:
        self._ours = frozenset({*own_files, json.__file__, json.encoder.__file__})
        self._errors: deque[BaseException] = deque()
        self._in_main_thread = _raising(self._errors)

    def is_of_the_program(self, error: BaseException) -> bool:
        """Whether code of the program raised it, which ran inside a callback: a handler of a signal."""
        return isinstance(error, KeyboardInterrupt) or self._without_our_frames(error) is not None

    def raise_again(self, error: BaseException, second: BaseException | None = None) -> None:
        """Raise what is of the program again in this thread.

        The caller must do nothing but return then, and so must each of its callers, up to the program.

        Args:
            error: what was raised.
            second: what was raised while that was caught; it comes right behind it.
        """
        if _thread.get_native_id() != os.getpid():  # no signal's handler runs here: another thread has asked for it
            due = _raising_class(type(error))
            -due  # noqa: B018 - see above
            return
        errors: tuple[BaseException, ...] = (error,)
        if second is not None:
            errors = (error, second)
            second.__traceback__ = self._without_our_frames(second)
        error.__traceback__ = self._without_our_frames(error)
        due = self._in_main_thread
        self._errors += errors  # another operator: nothing may come between these
        -due  # noqa: B018 - see above
        if second is not None:
            -due  # noqa: B018 - see above

    def _without_our_frames(self, error: BaseException) -> TracebackType | None:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename in self._ours:
            trace = trace.tb_next
        return trace


def _raising(errors: deque[BaseException]) -> _Due:
    """What raises the oldest of these in Python's main thread, as it is: the interpreter asks an object whether it is
    true, and the answer is the exception.

    An asynchronous exception would lose the frames of the handler in Python 3.11.
    """
    over = (_ for _ in ())
    next(over, None)  # a generator that has ended raises what is thrown into it, and adds no frame
    raise_oldest = map(over.throw, map(deque.popleft, repeat(errors)))
    asked = _with_slots(__bool__=raise_oldest.__next__)
    return _with_slots(__neg__=staticmethod(functools.partial(_ADD_PENDING_CALL, _IS_TRUE, ctypes.py_object(asked))))


def _raising_class(kind: type[BaseException]) -> _Due:
    """What raises an exception of this class in this thread."""
    raise_it = functools.partial(_SET_ASYNC_EXC, ctypes.c_ulong(_thread.get_ident()), ctypes.py_object(kind))
    return _with_slots(__neg__=staticmethod(raise_it))


def _with_slots(**slots: Callable[[], object]) -> _Due:
    """An object with these operators."""
    made: _Due = type("Due", (), slots)()
    return made
