"""Brings the recorder into a program that runs already, and takes it out again.

The program's main thread is handed :func:`start_code`, which starts a thread and goes on. That runs this file, by its
path; nothing but Python's own library is there yet. The recorder is imported from PinScope's folder alone: that never
stands on the program's ``sys.path``, where another thread would find all that is installed beside it.

Nothing raised here reaches the program. What went wrong is written into the spool, as ``problem.PID``; once the program
is as it was, ``left.PID``.
"""

from __future__ import annotations

import _thread
import ctypes
import importlib.util
import os
import sys
from types import ModuleType
from typing import Any

PROBLEM, LEFT = "problem", "left"
"""Files of the program's spool: one line, and nothing; each with a process's number."""
_STATE = "_pinscope_attached"
_PACKAGE = "pinscope"
_FOLDER = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))  # noqa: PTH120
_STARTED = 19
"""Place in ``stat``, behind the name, of when the process started."""


def start_code(given: dict[str, Any]) -> str:
    """What a program's main thread runs: one expression, which leaves no name behind.

    Args:
        given: arguments of :func:`attach`.
    """
    return f"exec({_START!r}, {{'path': {os.path.realpath(__file__)!r}, 'given': {given!r}}})"


_START = """\
import _thread
def run():
    try:
        from io import open
        from signal import SIG_BLOCK, pthread_sigmask, valid_signals
        pthread_sigmask(SIG_BLOCK, valid_signals())
        with open(path, encoding='utf-8') as file:
            code = compile(file.read(), path, 'exec')
        space = {'__name__': 'pinscope_attached', '__file__': path}
        exec(code, space)
        space['attach'](**given)
    except BaseException:
        pass
try:
    _thread.start_new_thread(run, ())
except KeyboardInterrupt:
    _thread.interrupt_main()
except BaseException:
    pass
"""


def attach(folder: str, library: str, started: int, is_first: bool, memory: tuple[int, int] | None) -> None:
    """Record this process until the spool says stop, then leave it as it was.

    Args:
        folder: handover of the program's spool.
        library: CUPTI's.
        started: when the process that is meant began, in ticks: another one may have its number by now.
        is_first: of the processes that are recorded together; the spool's own files are its.
        memory: address and bytes that the debugger has taken for the code; they are given back.
    """
    if memory is not None:
        ctypes.CDLL(None).munmap(ctypes.c_void_p(memory[0]), ctypes.c_size_t(memory[1]))
    with open("/proc/self/stat", "rb") as stat:  # noqa: PTH123
        is_meant = int(stat.read().rpartition(b")")[2].split()[_STARTED]) == started
    if not is_meant or not os.path.isdir(folder.split(":", 2)[2]):  # noqa: PTH112 - PinScope may have given up
        return
    state = sys.modules.setdefault(_STATE, _State(_STATE))
    is_ours = state.busy.acquire(False)
    try:
        problem = _record(folder, library, is_first, state.kept) if is_ours else _ATTACHED
    except BaseException as error:  # noqa: BLE001 - nothing may reach the program
        problem = f"the recorder cannot run there: {type(error).__name__}: {error}"
    if is_ours:
        state.busy.release()
    _write(folder, *((LEFT, "") if problem is None else (PROBLEM, problem)))


class _State(ModuleType):
    """What stays in the program between two traces, under a name of its own among its modules."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.busy = _thread.allocate_lock()
        self.kept: dict[str, ModuleType] = {}
        """The recorder's modules: Python keeps hooks of theirs at a fork, CUPTI what it may still call."""


_ATTACHED = "it is traced already, or a fork of a process that was"


def _record(handover: str, library: str, is_first: bool, kept: dict[str, ModuleType]) -> str | None:
    """Record; why that is not possible, or ``None`` once it is over."""
    file, there, before = f"{_FOLDER}/__init__.py", sys.modules.get(_PACKAGE), set(sys.modules)
    if there is not None and os.path.realpath(there.__file__ or "") != file:
        return f"it has imported another PinScope: {there.__file__}"
    if kept and kept[_PACKAGE].__file__ != file:  # an earlier trace was another one's
        kept.clear()
    if there is None:
        sys.modules.update(kept or {_PACKAGE: _package(file)})
    try:
        return _recorded(handover, library, is_first)
    finally:  # what else was imported is Python's own: another thread of the program may have it from there by now
        new = [name for name in sys.modules if name.partition(".")[0] == _PACKAGE and name not in before]
        kept.update({name: sys.modules.pop(name) for name in new})
        for path in [path for path in sys.path_importer_cache if path.startswith(_FOLDER)]:
            del sys.path_importer_cache[path]


def _recorded(handover: str, library: str, is_first: bool) -> str | None:
    from pinscope.tracing import library_calls, recorder  # noqa: PLC0415
    from pinscope.tracing.host_calls import follow_host_calls  # noqa: PLC0415
    from pinscope.tracing.spool_folder import SpoolFolder  # noqa: PLC0415

    if not recorder.can_record_here():
        return _ATTACHED
    spool = SpoolFolder.named(handover)
    if not spool.has("config.json") or spool.has("stop"):  # PinScope has given up
        return None
    try:
        if recorder.start_recording(spool if is_first else spool.of_process(), library, is_minded=True):
            follow_host_calls()
            recorder.newest_recorder().mind(until_stopped=True)
            recorder.newest_recorder().finish()
    finally:
        library_calls.take_changes_back()
        recorder.unhook()
    return None


def _package(file: str) -> ModuleType:
    """PinScope's."""
    spec = importlib.util.spec_from_file_location(_PACKAGE, file, submodule_search_locations=[_FOLDER])
    package = importlib.util.module_from_spec(spec)  # type: ignore[arg-type] # such a file has one
    spec.loader.exec_module(package)  # type: ignore[union-attr]
    return package


def _write(handover: str, name: str, line: str) -> None:
    """A file of the spool, of this process; without the recorder's modules, which may not be there."""
    device, inode, path = handover.split(":", 2)
    folder = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(folder)
        if (status.st_dev, status.st_ino, status.st_uid) != (int(device), int(inode), os.geteuid()):
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(f"{name}.{os.getpid()}", flags, 0o600, dir_fd=folder)
        os.write(file, line.encode())
        os.close(file)
    finally:
        os.close(folder)
