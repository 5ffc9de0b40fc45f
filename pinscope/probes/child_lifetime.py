"""A process that PinScope starts ends when PinScope ends, however that happens.

The kernel sees to it (PR_SET_PDEATHSIG, prctl(2)), so it holds as well for a child that was stopped meanwhile. It must
be asked before the child's program begins: a child that is stopped while Python starts can ask for nothing.
The kernel counts the *thread* that starts a child as its parent: a thread must not end before its children do.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""By which somebody asks a program to end in order."""
_PR_SET_PDEATHSIG = 1
_PRCTL = ctypes.CDLL(None, use_errno=True).prctl


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends; end at once if it has ended already.

    Args:
        parent: process id of the starter.
    """
    _PRCTL(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def ending_with_this() -> Callable[[], None]:
    """For ``preexec_fn``: what a child does between fork and exec, so that it ends with this process."""
    parent = os.getpid()
    return lambda: die_with_parent(parent)


def start_child(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start a process that ends with this one.

    SIGINT, SIGTERM and SIGHUP are held back from it until it calls :func:`install_handler`, so that none of them meets
    a program that cannot end in order yet. One that never calls it is ended by its starter alone.

    Args:
        command: the program and its arguments.
        options: of :class:`subprocess.Popen`.

    Raises:
        OSError: it cannot be started.
    """
    with _held_back():
        # Between fork and exec there is one system call, looked up before: no lock of another thread is needed for it.
        return subprocess.Popen(command, preexec_fn=ending_with_this(), **options)  # noqa: PLW1509


def install_handler(handler: Callable[[int, Any], None]) -> None:
    """Handle SIGINT, SIGTERM and SIGHUP from now on, and those that have been held back since the start."""
    for number in STOP_SIGNALS:
        signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


@contextmanager
def _held_back() -> Iterator[None]:
    """Children that are started meanwhile inherit that these signals wait."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
