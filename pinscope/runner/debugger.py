"""Has a running Python program run a few lines of code, by Python's own means or a debugger's.

Python 3.14 and later take a script (``sys.remote_exec``). Before, gdb or lldb calls two functions in the program, while
it is stopped for that: ``mmap``, for a page that holds the code, and ``Py_AddPendingCall``, which needs neither the GIL
nor memory, so that it may be called wherever the program stands. The code itself runs where Python's main thread comes
next between two of its own instructions.
"""

from __future__ import annotations

import mmap
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from pinscope.errors import BadInput
from pinscope.probes.attachable import Attachable, forbidden
from pinscope.probes.elf import addresses_of

CALL_SECONDS = 30.0
"""So long a debugger may take: a second where it reads symbols."""
_HOW = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x100000
"""MAP_FIXED_NOREPLACE: if the program has something there by now, nothing happens."""
_MMAP = "((char *(*)(void *, unsigned long, int, int, int, long)) {0})((void *) {1}, {2}, {3}, {4}, -1, 0)"
_ADD = "((int (*)(void *, void *)) {0})((void *) {1}, (void *) {2})"
_ADDED = "$added = 0"
_FUNCTIONS = ("mmap", "Py_AddPendingCall", "PyRun_SimpleString")
_LIBRARIES = re.compile(r"/(libc[.-]|ld-musl|libpython|python)[^/]*$")
_NOT_LET = ("ptrace: ", "Operation not permitted", "attach failed")


def debugger() -> str | None:
    """The debugger that is installed here: the path of gdb, else that of lldb."""
    return shutil.which("gdb") or shutil.which("lldb")


def takes_scripts(target: Attachable) -> bool:
    """Whether a program's Python takes code from ours, which must be of the same version."""
    return hasattr(sys, "remote_exec") and sys.version_info[:2] == target.version


def check_debugger(target: Attachable) -> None:
    """Refuse what cannot be attached to from here.

    Raises:
        BadInput: there is neither of the means.
    """
    if not takes_scripts(target) and debugger() is None:
        raise BadInput("to attach, gdb or lldb is needed, and neither is installed: apt install gdb")


def hand_over(target: Attachable, folder: Path, code: Callable[[tuple[int, int] | None], str]) -> None:
    """Have the main thread of a program run code. It may come to that later, or never.

    Args:
        target: the program.
        folder: this user's alone; it must stay until the code has run.
        code: from address and bytes of the memory that the code lies in, which it is to give back.

    Raises:
        BadInput: that is not possible; the program is as it was.
    """
    if takes_scripts(target):
        script = folder / f"attach.{target.pid}.py"
        script.write_text(code(None), "utf-8")
        try:
            sys.remote_exec(target.pid, str(script))  # type: ignore[attr-defined] # of Python 3.14
        except (OSError, RuntimeError) as error:
            raise BadInput(f"process {target.pid}: its Python takes no code from another process: {error}") from None
        return
    there = addresses_of(target.pid, _FUNCTIONS, _LIBRARIES)
    if missing := [name for name in _FUNCTIONS if name not in there]:
        raise BadInput(f"process {target.pid}: the file of its Python, or of its C library, is gone ({missing[0]})")
    file, address = f"attach.{target.pid}", target.free_address
    size = len(code((address, 2**16)).encode()) // mmap.PAGESIZE * mmap.PAGESIZE + mmap.PAGESIZE
    (folder / file).write_bytes(code((address, size)).encode() + b"\0")
    take = _MMAP.format(there["mmap"], address, size, *_HOW)
    add = _ADD.format(there["Py_AddPendingCall"], there["PyRun_SimpleString"], address)
    program = debugger() or "gdb"
    command = _lldb if Path(program).name == "lldb" else _gdb
    arguments, lines = command(target.pid, file, address, take, add)
    (folder / f"{file}.lines").write_text("\n".join(lines), "ascii")
    output = _run([program, *arguments], folder)
    if command is _lldb and target.is_there():
        os.kill(target.pid, signal.SIGCONT)  # it may leave a program stopped
    if _ADDED not in output:
        raise BadInput(f"process {target.pid}: {_why_not(target, output)}")


def _gdb(pid: int, file: str, address: int, take: str, add: str) -> tuple[list[str], list[str]]:
    """Arguments, and lines of a script, which ends with the first that fails.

    On x86 it looks for the program's files in a folder that is not there: so it neither reads them, for which the
    program would stand still half a second, nor sets a breakpoint in the one that loads libraries. Elsewhere it needs
    the program's file to know where its calls return to.
    """
    lines = [
        "set unwindonsignal on",
        "handle all nostop noprint pass",
        *(["set sysroot /nowhere"] if platform.machine() == "x86_64" else []),
        f"attach {pid}",
        f"print {take}",
        f"restore {file} binary {address}",
        f'printf "$added = %d\\n", {add}',
        "detach",
    ]
    before = ("set auto-solib-add off", "set auto-load off", "set debuginfod enabled off")
    return ["-nx", "-nw", "-batch", *(f"-iex={line}" for line in before), f"-x={file}.lines"], lines


def _lldb(pid: int, file: str, address: int, take: str, add: str) -> tuple[list[str], list[str]]:
    """The same for lldb."""
    lines = [
        "settings set target.preload-symbols false",
        f"process attach --pid {pid}",
        f"expression -- char *$page = {take}",
        f"memory write --infile {file} {address}",
        f"expression -- int $added = $page == (char *) {address} ? {add} : -1",
        "expression -- $added",
        "detach",
    ]
    return ["--batch", "--no-lldbinit", "-s", f"{file}.lines"], lines


def _run(command: list[str], folder: Path) -> str:
    """What a debugger writes. One that hangs is asked to let the program go; it is never killed, because that might
    leave the program in the middle of a call."""
    process = subprocess.Popen(
        command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        encoding="utf-8", errors="replace", start_new_session=True,
    )  # fmt: skip
    with process:
        for ask in (signal.SIGINT, signal.SIGTERM):
            try:
                return process.communicate(timeout=CALL_SECONDS)[0]
            except subprocess.TimeoutExpired:
                process.send_signal(ask)
        return process.communicate()[0]


def _why_not(target: Attachable, output: str) -> str:
    if not target.is_there():
        return "it ended, or became another program, before it could be attached to"
    if any(words in output for words in _NOT_LET):
        return forbidden()
    said = [line for line in output.splitlines() if line.strip()]
    return f"the debugger did not get code into it: {' '.join(said[-1].split())[:200] if said else 'it says nothing'}"
