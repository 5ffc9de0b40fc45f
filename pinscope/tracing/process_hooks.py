"""What a recorder must know of the process that it is in: its end, its forks, exceptions that no one can take."""

from __future__ import annotations

import atexit
import functools
import os
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, NoReturn, Protocol

from pinscope.tracing.bound import bind

bind(globals())


class Recording(Protocol):
    """A recorder, as the hooks see it."""

    callbacks: frozenset[CodeType]
    """Code that native code calls, of which an exception may get away."""

    def finish(self) -> None:
        """The program ends, in an orderly way."""

    def before_fork(self) -> None:
        """In the process that forks."""

    def after_fork(self) -> None:
        """In the process that has forked."""

    def in_child(self) -> None:
        """In its child."""

    def caught(self, error: BaseException, callback: FrameType | None = None) -> None:
        """An exception got away from a callback, of this frame."""


_RECORDINGS: list[Recording] = []
"""All of this process. CUPTI calls into them until the process is gone."""
_FORKING: list[Recording] = []
"""The one that knows of a fork that has begun."""


def newest() -> Recording | None:
    """The last recording that this process began; it may have ended."""
    return _RECORDINGS[-1] if _RECORDINGS else None


def hook(recording: Recording) -> None:
    """Have the recording notified from now on; with the first one the hooks are set."""
    _RECORDINGS.append(recording)
    if len(_RECORDINGS) > 1:
        return
    sys.unraisablehook = _mind_unraisable(sys.unraisablehook)
    _mind_exit_at_once()
    atexit.register(_finish)  # first in, so the last to run: after the program's own
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)


def _finish() -> None:
    _RECORDINGS[-1].finish()


def _before_fork() -> None:
    _FORKING.append(_RECORDINGS[-1])
    _FORKING[-1].before_fork()


def _after_fork() -> None:
    _FORKING.pop().after_fork()


def _in_child() -> None:
    _FORKING.pop().in_child()


def _mind_exit_at_once() -> None:
    """``os._exit`` skips what atexit would do."""
    end = os._exit

    @functools.wraps(end)
    def exit_at_once(status: int) -> NoReturn:
        try:
            _finish()
        finally:
            end(status)

    os._exit = exit_at_once


def _mind_unraisable(hook_before: Callable[[Any], object]) -> Callable[[Any], object]:
    """A signal that came during a copy is handled where the callback after it begins, before its ``try``."""

    def take(unraisable: Any) -> None:
        trace = unraisable.exc_traceback
        if trace is not None and trace.tb_frame.f_code in _RECORDINGS[-1].callbacks:
            _RECORDINGS[-1].caught(unraisable.exc_value.with_traceback(trace), trace.tb_frame)
        else:
            hook_before(unraisable)

    return take
