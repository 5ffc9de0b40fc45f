"""Has the Python processes that a traced program starts recorded as well.

They find two variables in their environment, of which ``joining/sitecustomize.py`` takes one away and puts the other
right, before their program begins. The traced program itself sees neither: they stand in the environment that C code
and children get, not in ``os.environ``.
"""

from __future__ import annotations

import functools
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder

TYPE_CHECKING = False  # every Python process pays for what is imported here, and typing is dear
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType
    from typing import Any

SPOOL = "PINSCOPE_TRACE_SPOOL"
"""Variable with the folder of the program's spool."""
PATH = "PYTHONPATH"
NVTX = "NVTX_INJECTION64_PATH"
"""Variable by which NVTX finds the library that follows its calls: CUPTI's."""
JOINING = os.path.join(os.path.dirname(os.path.realpath(__file__)), "joining")  # noqa: PTH118, PTH120
"""Folder whose ``sitecustomize`` a child imports as it starts."""
TRIGGER = "ctypes"
"""Module with whose import a child's recording begins: NumPy imports it, and so does all that brings CUDA to Python."""
_ENVIRONMENT_OF_FORK_EXEC = 5
"""Place of the list of variables among the arguments."""
_UNFIT = (AttributeError, TypeError, ValueError)
"""What variables raise that no process can be given."""


def pass_on(spool: str) -> None:
    """Record the Python processes that this process starts from now on into the same spool."""
    ours = functools.partial(_with_ours, spool)
    os.putenv(SPOOL, spool)  # not into os.environ
    _pass_on_path()
    os.execve = _wrapped(os.execve, ours)
    os.posix_spawn = _wrapped(os.posix_spawn, ours)
    os.posix_spawnp = _wrapped(os.posix_spawnp, ours)
    _mind_fork_exec(spool)


def _path(before: str | None) -> str:
    return f"{JOINING}{os.pathsep}{before}" if before else JOINING


def _pass_on_path() -> None:
    """To children that get the variables of this process, which may have set its path anew."""
    os.putenv(PATH, _path(os.environ.get(PATH)))


def _with_ours(spool: str, environment: Mapping[Any, Any]) -> dict[bytes, Any]:
    """Variables that a child is given, and ours. Their names may be text or bytes."""
    given = {os.fsencode(name): value for name, value in environment.items()}
    before = os.fsdecode(given.get(os.fsencode(PATH), b""))
    return {**given, os.fsencode(SPOOL): spool, os.fsencode(PATH): _path(before)}


def _wrapped(start: Callable[..., Any], ours: Callable[[Mapping[Any, Any]], dict[bytes, Any]]) -> Callable[..., Any]:
    """A function of ``os`` that takes a program, its arguments and its environment."""

    @functools.wraps(start)
    def start_joined(path: Any, argv: Any, env: Any, **options: Any) -> Any:
        if env is None:
            _pass_on_path()
        try:
            joined = ours(env)
        except _UNFIT:  # the function itself says what is wrong
            joined = env
        return start(path, argv, joined, **options)

    return start_joined


def _mind_fork_exec(spool: str) -> None:
    """What ``subprocess`` and ``multiprocessing`` call."""
    import _posixsubprocess  # noqa: PLC0415 - not of every system

    fork_exec: Callable[..., Any] = _posixsubprocess.fork_exec

    @functools.wraps(fork_exec)
    def fork_exec_joined(*arguments: Any) -> Any:
        variables = arguments[_ENVIRONMENT_OF_FORK_EXEC]
        if variables is None:
            _pass_on_path()
            return fork_exec(*arguments)
        try:
            given = dict(os.fsencode(each).partition(b"=")[::2] for each in variables)
            joined = [name + b"=" + os.fsencode(value) for name, value in _with_ours(spool, given).items()]
        except _UNFIT:
            joined = variables
        before, behind = arguments[:_ENVIRONMENT_OF_FORK_EXEC], arguments[_ENVIRONMENT_OF_FORK_EXEC + 1 :]
        return fork_exec(*before, joined, *behind)

    for module in (_posixsubprocess, sys.modules.get("subprocess")):
        for name, value in vars(module).items() if module else ():
            if value is fork_exec:
                setattr(module, name, fork_exec_joined)


def join() -> None:
    """In a child: begin to record it when it imports :data:`TRIGGER`, and let its program see its own environment."""
    spool = os.environ.pop(SPOOL, "")
    if "libcupti" in os.environ.get(NVTX, ""):
        del os.environ[NVTX]  # the parent's recorder has set it for itself
    before = os.environ.get(PATH, "").partition(os.pathsep)
    if before[0] == JOINING:
        if before[2]:
            os.environ[PATH] = before[2]
        else:
            del os.environ[PATH]
    if not spool or _is_started_by_another_trace(spool):
        return
    pass_on(spool)
    if TRIGGER in sys.modules:
        _record(spool)
    else:
        sys.meta_path.insert(0, _Trigger(spool))


def _is_started_by_another_trace(spool: str) -> bool:
    """By one that the program itself makes, which has a recorder of its own; not by its own command, run again."""
    start = os.path.join(os.path.dirname(JOINING), "start.py")  # noqa: PTH118, PTH120
    return spool not in sys.orig_argv and start in map(os.path.realpath, sys.orig_argv[1:])


def _record(spool: str) -> None:
    try:
        from pinscope.tracing.recording import join_recording  # noqa: PLC0415 - it imports the trigger

        join_recording(spool)
    except Exception:  # noqa: BLE001, S110 - such as a spool that is gone, because the program has ended
        pass


class _Trigger:
    """Finds :data:`TRIGGER` as ever; when that has been executed, it is gone from ``sys.meta_path``."""

    def __init__(self, spool: str) -> None:
        self._spool = spool

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        found = PathFinder.find_spec(name, path, target) if name == TRIGGER else None
        if found is not None and found.loader is not None:
            execute = functools.partial(self._execute, found.loader.exec_module)
            found.loader.exec_module = execute  # type: ignore[method-assign] # of this loader, which is this module's
        return found

    def _execute(self, execute: Callable[[ModuleType], None], module: ModuleType) -> None:
        execute(module)
        if self in sys.meta_path:  # else it was executed before, by what was found earlier
            sys.meta_path.remove(self)
            _record(self._spool)
