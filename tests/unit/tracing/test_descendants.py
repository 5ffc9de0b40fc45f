"""Programs start children under a trace as they do without one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PASSING_ON = f"""\
import sys
sys.path.insert(0, {str(ROOT)!r})
from pinscope.tracing.descendants import JOINING, pass_on
pass_on("1:2:/nowhere", "/nowhere/libcupti.so")
del sys.path[0]
"""
ECHO = "['/bin/echo', 'hi']"
STARTS = {
    "posix_spawn": f"os.waitpid(os.posix_spawn('/bin/echo', {ECHO}, os.environ), 0)",
    "posix_spawn, names in bytes": f"os.waitpid(os.posix_spawn('/bin/echo', {ECHO}, os.environb), 0)",
    "execvpe": f"os.execvpe('echo', {ECHO}, os.environ)",
    "subprocess, by posix_spawn": f"subprocess.run({ECHO}, close_fds=False)",
    "subprocess, with variables": f"subprocess.run({ECHO}, env={{'A': '1'}})",
    "subprocess, with a path": f"subprocess.run({ECHO}, env={{'PYTHONPATH': '/x'}})",
    "a list for variables": f"os.posix_spawn('/bin/echo', {ECHO}, ['A=1'])",
    "a number for a name": f"os.posix_spawn('/bin/echo', {ECHO}, {{1: 'x'}})",
    "a number for a value": f"subprocess.run({ECHO}, env={{'A': 1}})",
}


def end(text: str) -> tuple[int, str, str]:
    """Of a program without a path of its own, where text is never compared with bytes."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-bb", "-c", text]
    done = subprocess.run(command, capture_output=True, text=True, env=variables, check=False)
    return done.returncode, done.stdout, done.stderr.strip().rpartition("\n")[2]


@pytest.mark.parametrize("what", STARTS)
def test_a_child_starts_or_is_refused_as_without_a_trace(what: str) -> None:
    program = f"import os, subprocess\n{STARTS[what]}\n"
    assert end(PASSING_ON + program) == end(program)


def test_a_child_that_gets_the_variables_of_a_program_that_changed_its_path_is_recorded_too() -> None:
    """As ``subprocess`` starts it from Python 3.13 on."""
    program = """
import os
os.posix_spawn = lambda path, argv, env: os.system("echo $PYTHONPATH")
pass_on("1:2:/nowhere", "/nowhere/libcupti.so")
os.environ["PYTHONPATH"] = "/extra"
os.posix_spawn("/bin/true", ["true"], None)
"""
    code, out, problem = end(PASSING_ON.replace('pass_on("1:2:/nowhere", "/nowhere/libcupti.so")', "") + program)
    assert (code, problem) == (0, "")
    assert out.strip().endswith("/joining:/extra")
