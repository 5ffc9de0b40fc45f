"""Which program is traced, and in which Python: PinScope's own, or that of an environment that has no PinScope.

The other one is named by its interpreter (``/envs/train/bin/python train.py``) or by a script that was installed beside
it (``/envs/train/bin/torchrun …``), with its path or as the shell finds it.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

from pinscope.errors import BadInput
from pinscope.isolation import open_command, python_options
from pinscope.probes.attachable import OLDEST
from pinscope.probes.process import ending_with_this

ASK_SECONDS = 60.0
"""An environment on a network's disk may take long to begin."""
_INTERPRETER = re.compile(r"python(\d(\.\d+)?t?)?")
_SCRIPT = re.compile(rb"#!(?:/bin/sh\n'''exec' )?(?P<command>[^\n]*)")
"""Its first line; where the path is long or has spaces, pip has the shell start Python (distlib, scripts.py)."""
_ASK = """\
import sys
name = getattr(getattr(sys, "implementation", None), "name", "")
is_closed = sys.flags.ignore_environment or sys.flags.no_site
print("\\n" + repr((name, tuple(sys.version_info[:2]), bool(is_closed), sys.path)))
"""
"""Only with what every Python has built in: the working folder is on its path."""


@dataclass(frozen=True)
class Program:
    """A program to trace.

    Attributes:
        typed: as it stands behind ``pinscope trace``.
        command: what starts it.
        file: it, or of a module its name.
        python: the interpreter and its version, if that is not PinScope's.
        path: folders that this one imports from.
    """

    typed: tuple[str, ...]
    command: Sequence[str]
    file: str
    python: str | None = None
    path: Sequence[str] = ()


def find_program(typed: Sequence[str]) -> Program:
    """The program that words name; refuses what cannot be started, before anything begins.

    Args:
        typed: a file, or ``-m`` and a module, or an interpreter with its options and one of these; and arguments.

    Raises:
        BadInput: there is no such file or module, or its Python lets no recorder in.
    """
    file, *arguments = typed
    if file == "-m":
        module = arguments[0] if arguments else ""
        outermost = module.partition(".")[0]
        if not (outermost and _may_be_module(outermost)):
            raise BadInput(f"there is no module {outermost or module}; a file is traced without -m")
        return Program(tuple(typed), open_command(*typed), module)
    name = file if os.sep in file or Path(file).exists() else shutil.which(file) or file
    path = Path(name)
    if _INTERPRETER.fullmatch(path.name) and os.access(path, os.X_OK) and path.is_file():
        return _in_python(typed, [str(path)], arguments)
    _check_file(path)
    python = _installed_beside(path)
    if python and Path(python[0]).parent.resolve() != Path(sys.prefix, "bin").resolve():
        return _in_python(typed, python, [str(path), *arguments])
    if not python and not Path(file).exists():
        raise BadInput(f"{file} is {path}, which is no Python program")
    return Program(tuple(typed), open_command(name, *arguments), str(path))  # Path would take "./" away


def _check_file(path: Path) -> None:
    if not path.exists():
        raise BadInput(f"there is no program {path}; a module is traced with -m")
    if path.is_dir() and not (path / "__main__.py").exists():
        raise BadInput(f"{path} is a folder without __main__.py")
    if not os.access(path, os.R_OK):
        raise BadInput(f"{path} cannot be read")


def _may_be_module(outermost: str) -> bool:
    """Whether ``python -m`` would find this module or package. It is looked for, not imported. What lies in a package
    is known only once that is imported, which is left to the program."""
    try:
        spec = importlib.util.find_spec(outermost)
        if spec is None and not sys.flags.safe_path:
            spec = PathFinder.find_spec(outermost, [""])  # in the working folder
        return spec is not None
    except (ImportError, ValueError):  # a finder of the user's own, or a module that was not imported by one
        return True


def _installed_beside(script: Path) -> list[str] | None:
    """The interpreter, with its options, that a script of an environment names in its first line and lies beside;
    ``None`` of any other script."""
    script = script.resolve()
    if not script.is_file():
        return None
    with script.open("rb") as file:
        named = _SCRIPT.match(file.read(4096))
    try:
        words = shlex.split(named["command"].decode()) if named else []
    except ValueError:
        return None
    python = Path(words[0]) if words else script
    if python.parent.resolve() != script.parent or not _INTERPRETER.fullmatch(python.name):
        return None
    return [str(python), *(word for word in words[1:] if word not in {"$0", "$@"})]


def _in_python(typed: Sequence[str], python: list[str], arguments: list[str]) -> Program:
    """A program in an interpreter that is named with its options, after it has said what it is."""
    interpreter, *given = [*python, *arguments]
    options = list(python_options(given))
    behind = given[len(options) :]
    if not behind:
        raise BadInput(f"{interpreter} gets no program: write a file, or -m and a module, behind it")
    if not behind[0].startswith("-"):
        _check_file(Path(behind[0]))
    name, version, is_closed, path = _asked(interpreter, options)
    words = ".".join(map(str, version))
    if name != "cpython" or version < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise BadInput(f"{interpreter} is {name or 'Python'} {words}; a trace needs CPython {oldest} or later")
    if is_closed:
        raise BadInput(f"{interpreter} lets no recorder in under -E, -I or -S: leave that option out")
    file = behind[1] if behind[0] == "-m" and len(behind) > 1 else behind[0]
    return Program(tuple(typed), (*python, *arguments), file, f"{interpreter}, {words}", path)


def _asked(interpreter: str, options: Sequence[str]) -> tuple[str, tuple[int, int], bool, list[str]]:
    """Name and version of an interpreter, whether it lets no other code in, and where it imports from."""
    try:
        answer = subprocess.run(
            [interpreter, *options, "-c", _ASK],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=ASK_SECONDS,
            check=False,
            preexec_fn=ending_with_this(),
        )
        reason = next(iter(reversed(answer.stderr.strip().splitlines())), f"exit code {answer.returncode}")
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BadInput(f"{interpreter} does not start: {error}") from None
    try:
        name, (major, minor), is_closed, path = ast.literal_eval(answer.stdout.strip().splitlines()[-1])
    except (ValueError, SyntaxError, TypeError, IndexError):
        raise BadInput(f"{interpreter} is no Python that runs here: {reason[:200]}") from None
    return name, (major, minor), is_closed, path
