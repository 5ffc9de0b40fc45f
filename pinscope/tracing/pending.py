"""Has Python do something right behind a callback of ours, where the program goes on.

Python looks for what it is asked to do, in its main thread, where a function begins, behind a call of C and at a loop's
end. So operators ask, which are none of these, and the callers must do nothing but return.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import sys
from collections import deque

from pinscope.tracing.bound import TYPE_CHECKING, bind

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from types import CodeType
    from typing import Any

bind(globals())


def asking(do: Callable[[], bool]) -> Any:
    """``-asking``: Python is asked to do this. It asks an object whether it is true: no means that all is well, and
    what is raised is raised there."""
    asked = type("Asked", (), {"__bool__": do})()
    is_true = ctypes.cast(ctypes.pythonapi.PyObject_IsTrue, ctypes.c_void_p)
    ask = functools.partial(ctypes.pythonapi.Py_AddPendingCall, is_true, ctypes.py_object(asked))
    return type("Asking", (), {"__neg__": staticmethod(ask)})()


def raise_behind(error: BaseException) -> None:
    """Have Python raise this there.

    Python handles a signal that came during a call of CUDA in the first Python code behind it: our callback, from which
    no exception gets to the program.
    """
    errors, ask = _LATE, _ASK
    errors += (error,)
    -ask  # noqa: B018 - see above


def mind_unraisable(callbacks: Collection[CodeType], caught: Callable[[BaseException], object]) -> Callable[[], None]:
    """A signal that came during a call of CUDA is handled where the callback behind it begins, before its ``try``: hand
    on what was raised there. What is returned takes the hook away again."""
    before = sys.unraisablehook

    def take(unraisable: Any) -> None:
        trace = unraisable.exc_traceback
        if trace is not None and trace.tb_frame.f_code in callbacks:
            caught(unraisable.exc_value.with_traceback(trace))
        else:
            before(unraisable)

    def take_back() -> None:
        if sys.unraisablehook is take:
            sys.unraisablehook = before

    sys.unraisablehook = take
    return take_back


def _raising(errors: deque[BaseException]) -> Callable[[], bool]:
    """Raises the oldest of these, as it is: an asynchronous exception would lose its arguments."""
    over = (_ for _ in ())
    next(over, None)  # a generator that has ended raises what is thrown into it, and adds no frame
    return map(over.throw, map(deque.popleft, itertools.repeat(errors))).__next__


_LATE: deque[BaseException] = deque()
"""What is to be raised behind a callback."""
_ASK = asking(_raising(_LATE))
