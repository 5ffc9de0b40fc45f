"""How the recorder comes into a program, and into the Python processes that it starts.

They find three variables in their environment: the spool, CUPTI's library, and a folder first on the path of modules,
``joining``. Its ``sitecustomize`` takes the first two away and puts the path right before the program begins, which
Python itself then runs as ever. The program does not see them, although its children get them: they stand in the
environment that C code and children get, not in ``os.environ``.
"""

from __future__ import annotations

import functools
import os
import sys
from contextlib import suppress
from importlib.machinery import ModuleSpec, PathFinder

from pinscope.tracing.bound import TYPE_CHECKING, time  # now: later the program may have replaced what it keeps
from pinscope.tracing.spool_folder import CHILDREN, FAILED, JOINED, SHELL, STARTED, SpoolFolder, child_line, stack_begin

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from types import ModuleType
    from typing import Any

SPOOL = "PINSCOPE_TRACE_SPOOL"
"""Variable with :data:`PROGRAM` or :data:`CHILD`, a colon, and the folder of the program's spool."""
PROGRAM, CHILD = "program", "child"
"""Whether a process is the traced program, or one that it has started."""
LIBRARY = "PINSCOPE_TRACE_LIBRARY"
"""Variable with the path of CUPTI's library."""
NOT_STARTED = 90
"""Exit code where the recorder was refused and the program did not begin; the spool says why."""
PATH = "PYTHONPATH"
NVTX = "NVTX_INJECTION64_PATH"
"""Variable by which NVTX finds the library that follows its calls: CUPTI's."""
JOINING = os.path.join(os.path.dirname(os.path.realpath(__file__)), "joining")  # noqa: PTH118, PTH120
"""Folder whose ``sitecustomize`` Python imports as it starts."""
_PACKAGE = os.path.dirname(os.path.dirname(JOINING))  # noqa: PTH120
_JOINING_EMPTY = f"{JOINING}/"
"""In its place where the variable was empty, which is not as if there was none."""
TRIGGER = "ctypes"
"""Module with whose import a child's recording begins: NumPy imports it, and so does all that brings CUDA to Python."""
FOLLOWED = ("torch", "cupy", "jax", "numba")
"""Libraries whose calls are followed: ``host_calls``."""
_ARGUMENTS_OF_EXECV = 2
_ENVIRONMENT_OF_FORK_EXEC = 5
"""Place of the list of variables among the arguments."""
_UNFIT = (AttributeError, TypeError, ValueError)
"""What variables raise that no process can be given."""


def variables(handover: str, library: str) -> dict[str, str]:
    """What a program is given, beside its own variables, so that it is recorded.

    Args:
        handover: of its spool's folder.
        library: CUPTI's.
    """
    return {SPOOL: f"{PROGRAM}:{handover}", LIBRARY: library, PATH: _path(os.environ.get(PATH))}


def pass_on(handover: str, library: str) -> None:
    """Record the Python processes that this process starts from now on into the same spool."""
    ours = {SPOOL: f"{CHILD}:{handover}", LIBRARY: library}
    for name, value in ours.items():
        os.putenv(name, value)  # not into os.environ
    _pass_on_path()
    with_ours = functools.partial(_with_ours, {os.fsencode(name): value for name, value in ours.items()})
    note = functools.partial(_note, SpoolFolder.named(handover))
    os.execv = _noted_before(os.execv, note)
    os.execve = _noted_before(_wrapped(os.execve, with_ours), note)
    os.posix_spawn = _noted(_wrapped(os.posix_spawn, with_ours), note)
    os.posix_spawnp = _noted(_wrapped(os.posix_spawnp, with_ours), note)
    os.system = _timed(os.system, note)
    _mind_fork_exec(with_ours, note)


def _note(spool: SpoolFolder, first: int, second: int, word: str) -> None:
    """Tell PinScope of a child, by :func:`child_line`. Nothing of this reaches the program."""
    with suppress(Exception):  # such as of a spool that is gone, because the program has ended
        spool.append(CHILDREN, child_line(first, second, word))


def _noted(start: Callable[..., int], note: Callable[[int, int, str], None]) -> Callable[..., int]:
    """A function that starts another program and returns its process."""

    @functools.wraps(start)
    def start_noted(*arguments: Any, **options: Any) -> int:
        process = start(*arguments, **options)
        note(process, 0, STARTED)
        return process

    return start_noted


BEFORE_EXEC: list[Callable[[], None]] = []
"""What the recorder does before this process becomes another program."""


def _noted_before(become: Callable[..., Any], note: Callable[[int, int, str], None]) -> Callable[..., Any]:
    """A function by which a process becomes another program."""

    @functools.wraps(become)
    def become_noted(*arguments: Any, **options: Any) -> Any:
        if len(arguments) + len(options) == _ARGUMENTS_OF_EXECV:
            _pass_on_path()
        for do in BEFORE_EXEC:
            with suppress(Exception):
                do()
        process, stack = os.getpid(), stack_begin()
        note(process, stack, STARTED)
        try:
            return become(*arguments, **options)
        finally:  # else it is over
            note(process, stack, FAILED)

    return become_noted


def _timed(run: Callable[..., int], note: Callable[[int, int, str], None]) -> Callable[..., int]:
    """``os.system``, which does not say which process it starts."""

    @functools.wraps(run)
    def run_timed(*arguments: Any, **options: Any) -> int:
        begun = time.monotonic_ns()
        try:
            return run(*arguments, **options)
        finally:
            note(begun, time.monotonic_ns(), SHELL)

    return run_timed


def _path(before: str | None) -> str:
    if before is None:
        return JOINING
    return f"{JOINING}{os.pathsep}{before}" if before else _JOINING_EMPTY


def _pass_on_path() -> None:
    """To children that get the variables of this process, which may have set its path anew."""
    os.putenv(PATH, _path(os.environ.get(PATH)))


def _with_ours(ours: Mapping[bytes, Any], environment: Mapping[Any, Any]) -> dict[bytes, Any]:
    """Variables that a child is given, and ours. Their names may be text or bytes."""
    given = {os.fsencode(name): value for name, value in environment.items()}
    if os.fsencode(SPOOL) in given:  # of a trace that the program itself makes
        return given
    before = given.get(os.fsencode(PATH))
    return {**given, **ours, os.fsencode(PATH): _path(None if before is None else os.fsdecode(before))}


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


def _mind_fork_exec(
    ours: Callable[[Mapping[Any, Any]], dict[bytes, Any]], note: Callable[[int, int, str], None]
) -> None:
    """What ``subprocess`` and ``multiprocessing`` call."""
    import _posixsubprocess  # noqa: PLC0415 - not of every system

    as_it_was: Callable[..., Any] = _posixsubprocess.fork_exec
    fork_exec = _noted(as_it_was, note)

    @functools.wraps(as_it_was)
    def fork_exec_joined(*arguments: Any) -> Any:
        variables = arguments[_ENVIRONMENT_OF_FORK_EXEC]
        if variables is None:
            _pass_on_path()
            return fork_exec(*arguments)
        try:
            given = dict(os.fsencode(variable).partition(b"=")[::2] for variable in variables)
            joined = [name + b"=" + os.fsencode(value) for name, value in ours(given).items()]
        except _UNFIT:
            joined = variables
        before, behind = arguments[:_ENVIRONMENT_OF_FORK_EXEC], arguments[_ENVIRONMENT_OF_FORK_EXEC + 1 :]
        return fork_exec(*before, joined, *behind)

    for module in (_posixsubprocess, sys.modules.get("subprocess")):
        for name, value in vars(module).items() if module else ():
            if value is as_it_was:
                setattr(module, name, fork_exec_joined)


def join() -> None:
    """Let the program see its own environment, and record it: from now on, or a process that it has started from its
    import of :data:`TRIGGER` on."""
    role, _, handover = os.environ.pop(SPOOL, "").partition(":")
    library = os.environ.pop(LIBRARY, "")
    _restore_path()
    if role == PROGRAM and not _begin(handover, library):
        os._exit(NOT_STARTED)
    if role == CHILD:
        if os.environ.get(NVTX) == library:
            del os.environ[NVTX]  # the parent's recorder has set it for itself
        pass_on(handover, library)
        _note(SpoolFolder.named(handover), os.getpid(), stack_begin(), JOINED)
        if TRIGGER in sys.modules:
            _record(handover, library)
        else:
            sys.meta_path.insert(0, _Trigger(functools.partial(_record, handover, library)))


def forget_modules(before: Collection[str]) -> None:
    """Let the program import anew what has been imported for us since: a file of its own may bear the name, which
    comes first on its path. What is written in C is one in a process."""
    for name in sys.modules.keys() - before:
        if not name.startswith("pinscope") and str(getattr(sys.modules[name], "__file__", "")).endswith(".py"):
            del sys.modules[name]
    for path in [path for path in sys.path_importer_cache if path.startswith(_PACKAGE)]:
        del sys.path_importer_cache[path]


def _restore_path() -> None:
    joining, separator, before = os.environ.get(PATH, "").partition(os.pathsep)
    if separator or joining == _JOINING_EMPTY:
        os.environ[PATH] = before
    elif joining == JOINING:
        del os.environ[PATH]


def _begin(handover: str, library: str) -> bool:
    """Record the program; false if that is not possible."""
    import json  # noqa: PLC0415 - children begin without it

    from pinscope.tracing.host_calls import follow_host_calls  # noqa: PLC0415
    from pinscope.tracing.recorder import before_exec, newest_recorder, start_recording  # noqa: PLC0415

    folder = SpoolFolder.named(handover)
    config = json.loads(folder.read("config.json"))
    if not start_recording(folder, library):
        return False
    BEFORE_EXEC.append(before_exec)
    if config["children"]:
        pass_on(handover, library)
    if config["redirect"] is not None:
        from pinscope.tracing.redirect_libraries import start_redirecting  # noqa: PLC0415

        start_redirecting(folder, config["redirect"], newest_recorder().pinned.has)
    follow_host_calls()  # around what is redirected
    if config.get("checks"):
        from pinscope.tracing.checks import Checks  # noqa: PLC0415

        Checks(folder, config["libraries"]).start()
    return True


def _record(handover: str, library: str) -> None:
    """Record a process that the program has started, as long as the program runs."""
    before = set(sys.modules)
    try:
        from pinscope.tracing.host_calls import follow_host_calls  # noqa: PLC0415 - it imports the trigger
        from pinscope.tracing.recorder import before_exec, join_recording  # noqa: PLC0415

        BEFORE_EXEC.append(before_exec)
        join_recording(SpoolFolder.named(handover), library)
        follow_host_calls()
    except Exception:  # noqa: BLE001, S110 - such as a spool that is gone, because the program has ended
        pass
    forget_modules(before)


class _Trigger:
    """Finds :data:`TRIGGER` as ever; when that has been executed, it is gone from ``sys.meta_path``. It imports the
    trigger before a library of :data:`FOLLOWED`, within whose import it would be too late to follow its calls."""

    def __init__(self, record: Callable[[], None]) -> None:
        self._record = record

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if name in FOLLOWED:
            __import__(TRIGGER)
            others = (each.find_spec(name, path, target) for each in list(sys.meta_path) if each is not self)
            return next(filter(None, others), None)
        spec = PathFinder.find_spec(name, path, target) if name == TRIGGER else None
        if spec is not None and spec.loader is not None:
            execute = functools.partial(self._execute, spec.loader.exec_module)
            spec.loader.exec_module = execute  # type: ignore[method-assign] # of this loader, which is this module's
        return spec

    def _execute(self, execute: Callable[[ModuleType], None], module: ModuleType) -> None:
        execute(module)
        if self in sys.meta_path:  # else it was executed before, by what was found earlier
            sys.meta_path.remove(self)
            self._record()
