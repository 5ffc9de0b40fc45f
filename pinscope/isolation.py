"""How PinScope starts an interpreter of its own. Nothing in the working folder is imported.

``python -m`` puts the working folder first on the path of modules: a ``numpy.py`` there would run as the user, and a
folder ``pinscope`` would take PinScope's place. A child is ``python -P THIS_FILE MODULE ARGUMENTS…`` instead. It
imports the very package that this file lies in, however the parent came to it (installed, from a clone, by
PYTHONPATH), and so do its own children.
"""

# Only modules that Python itself has loaded before: __main__ imports this while the working folder is still on the
# path. For the same reason nothing is imported from __future__.
import atexit
import gc
import importlib.util
import os
import runpy
import sys
from itertools import islice

TYPE_CHECKING = False  # type checkers take it for true
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_FILE = os.path.realpath(__file__)
_PACKAGE = os.path.dirname(_FILE)  # noqa: PTH120 - pathlib is not loaded yet
_ROOT = os.path.dirname(_PACKAGE)  # noqa: PTH120
_OBJECTS_BETWEEN_COLLECTIONS = 200_000
"""More than the modules of a command make. Python's own: 700."""


def command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module of PinScope in a process of its own.

    Args:
        module: its full name; it runs as ``__main__``.
        arguments: what ``sys.argv`` holds there after its first item.
    """
    return [sys.executable, *_flags(), _FILE, module, *arguments]


def bare_command(code: str, *arguments: str) -> list[str]:
    """The command that runs a few lines with the standard library alone."""
    return [sys.executable, "-I", "-S", "-c", code, *arguments]


def open_command(*program: str) -> list[str]:
    """The command that runs a program of the user's own, which imports from where the user lets it, with the options
    that this interpreter was given."""
    return [sys.executable, *python_options(sys.orig_argv[1:]), *program]


def python_options(arguments: "Iterable[str]") -> "Iterator[str]":
    """Those of Python itself, as they were written (python.org, "Command line and environment")."""
    arguments = iter(arguments)
    for argument in arguments:
        if argument[:1] != "-" or argument in {"-", "--"}:
            return
        if argument.startswith("--"):  # --check-hash-based-pycs MODE
            yield from (argument, *islice(arguments, 1))
            continue
        place = next((place for place, letter in enumerate(argument) if letter in "cmWX"), -1)
        if place > 0 and argument[place] in "cm":
            yield from [argument[:place]] * (place > 1)
            return
        yield argument
        if place == len(argument) - 1:
            yield from islice(arguments, 1)


def leave_working_folder() -> None:
    """Take off the path what ``python -m`` put there, unless PinScope itself lies in it."""
    if not sys.flags.safe_path and sys.path and os.path.realpath(sys.path[0]) != _ROOT:
        del sys.path[0]


def collect_rarely() -> None:
    """Look for garbage less often, and not at the end. While modules load and when they are taken apart there is none,
    and to look for it takes a fifth of what a short process does."""
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    atexit.register(gc.freeze)


def _flags() -> list[str]:
    """No unsafe path, and what this interpreter itself ignores."""
    flags = {"-P": True, "-E": sys.flags.ignore_environment, "-s": sys.flags.no_user_site}
    return [flag for flag, wanted in flags.items() if wanted]


def _run(module: str, arguments: list[str]) -> None:
    """Run a module of the package that this file lies in, as the process's program."""
    spec = importlib.util.find_spec("pinscope")
    if spec is None or spec.origin is None or os.path.dirname(os.path.realpath(spec.origin)) != _PACKAGE:  # noqa: PTH120
        sys.path.insert(0, _ROOT)
    collect_rarely()
    os.environ["PYTHONSAFEPATH"] = "1"  # for interpreters that a library starts from here
    sys.argv = [_FILE, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _run(sys.argv[1], sys.argv[2:])
