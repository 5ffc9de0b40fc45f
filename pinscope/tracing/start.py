"""Starts a program as ``python`` would, with the recorder in it: ``python start.py SPOOL SCRIPT …`` or ``SPOOL -m …``.

It is run by its path, so that nothing depends on the working folder. The program sees its own ``sys.argv``,
``sys.path``, ``__main__`` and environment, and an exception has the program's own traceback.
"""

import io
import json
import os
import pkgutil
import runpy
import sys
from importlib.machinery import SourceFileLoader, SourcelessFileLoader
from importlib.util import MAGIC_NUMBER
from types import ModuleType, TracebackType
from typing import Any

NOT_STARTED = 90
"""Exit code where the recorder was refused and the program did not begin; the spool says why."""
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))  # noqa: PTH120


def main() -> None:
    """Start the recorder, then the program; ends as the program does."""
    spool, *program = sys.argv[1:]
    if not _has(spool, "started.json"):  # else the program runs its own command again, and this is a child as any other
        if _has(spool, "config.json") and not _records(spool):
            sys.exit(NOT_STARTED)
        if _has(spool, "redirect.json"):
            _redirect(spool)
    if not sys.flags.safe_path:
        del sys.path[0]  # this file's folder
    own, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    _KEPT.append(own)
    try:
        _run_module(program[1:]) if program[0] == "-m" else _run_script(program)
    except SystemExit:
        raise
    except BaseException as error:
        _show_without_our_frames(error)
        raise


_KEPT: list[ModuleType] = []
"""This module itself: its names would be gone with the last reference to it."""


def _has(spool: str, name: str) -> bool:
    return os.access(os.path.join(spool, name), os.F_OK)  # noqa: PTH118


def _records(spool: str) -> bool:
    """Start the recorder; false if it was refused."""
    sys.path.insert(0, _ROOT)
    try:
        from pinscope.tracing.descendants import pass_on  # noqa: PLC0415 - the path has just been set
        from pinscope.tracing.recording import start_recording  # noqa: PLC0415
    finally:
        sys.path.remove(_ROOT)
    if not start_recording(spool):
        return False
    with open(os.path.join(spool, "config.json"), encoding="utf-8") as file:  # noqa: PTH118, PTH123
        if json.load(file)["children"]:
            pass_on(spool)
    return True


def _redirect(spool: str) -> None:
    """Let chosen copies come from pinned memory."""
    sys.path.insert(0, _ROOT)
    try:
        from pinscope.tracing.redirect_start import start_redirecting  # noqa: PLC0415 - the path has just been set

        start_redirecting(spool)
    finally:
        sys.path.remove(_ROOT)


def _run_module(arguments: list[str]) -> None:
    if not sys.flags.safe_path:
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
    sys.argv = ["-m", *arguments[1:]]
    runpy._run_module_as_main(arguments[0])  # type: ignore[attr-defined] # what `python -m` itself calls


def _run_script(arguments: list[str]) -> None:
    path, full = arguments[0], os.path.abspath(arguments[0])  # noqa: PTH100
    sys.argv = arguments
    if pkgutil.get_importer(full) is not None:  # a folder, or an archive, whatever stands before it
        sys.path.insert(0, full)
        runpy._run_module_as_main("__main__", False)  # type: ignore[attr-defined] # likewise of a folder or archive
        return
    if not sys.flags.safe_path:
        sys.path.insert(0, os.path.dirname(os.path.realpath(path)))  # noqa: PTH120
    with io.open_code(full) as file:
        content = file.read()
    is_compiled = full.endswith(".pyc") or content.startswith(MAGIC_NUMBER)
    loader = SourcelessFileLoader("__main__", full) if is_compiled else SourceFileLoader("__main__", full)
    names: dict[str, Any] = vars(sys.modules["__main__"])
    names |= {
        "__annotations__": {}, "__builtins__": sys.modules["builtins"], "__cached__": None, "__file__": full,
        "__loader__": loader,
    }  # fmt: skip
    code: Any = loader.get_code("__main__") if is_compiled else compile(content, full, "exec", dont_inherit=True)
    exec(code, names)  # noqa: S102 - the program itself


def _show_without_our_frames(error: BaseException) -> None:
    """The interpreter shows the exception when we have raised it: then let it show the program's frames only."""
    hook = sys.excepthook
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next

    def show(kind: type[BaseException], value: BaseException, whole: TracebackType | None) -> None:
        del whole
        sys.excepthook = hook
        hook(kind, value.with_traceback(trace), trace)

    sys.excepthook = show


if __name__ == "__main__":
    main()
