"""Programs start children under a trace as they do without one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
PASSING_ON = f"""\
import sys
sys.path.insert(0, {str(ROOT)!r})
from pinscope.tracing.descendants import JOINING, pass_on
pass_on("1:2:/nowhere", "/nowhere/libcupti.so")
del sys.path[0]
"""
ECHO = "['/bin/echo', 'hi']"
STARTS = [
    f"os.waitpid(os.posix_spawn('/bin/echo', {ECHO}, os.environ), 0)",
    f"os.waitpid(os.posix_spawn('/bin/echo', {ECHO}, os.environb), 0)",
    f"subprocess.run({ECHO}, close_fds=False)",  # by posix_spawn
    f"subprocess.run({ECHO}, env={{'A': '1'}})",
    f"subprocess.run({ECHO}, env={{'PYTHONPATH': '/x'}})",
    f"os.posix_spawn('/bin/echo', {ECHO}, ['A=1'])",
    f"os.posix_spawn('/bin/echo', {ECHO}, {{1: 'x'}})",
    f"subprocess.run({ECHO}, env={{'A': 1}})",
    f"os.execvpe('echo', {ECHO}, os.environ)",
]


def end(text: str) -> tuple[int, str, str]:
    """Of a program without a path of its own, where text is never compared with bytes."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-bb", "-c", text]
    done = subprocess.run(command, capture_output=True, text=True, env=variables, check=False)
    return done.returncode, done.stdout, done.stderr.strip().rpartition("\n")[2]


def test_children_start_or_are_refused_as_without_a_trace() -> None:
    program = f"""
import os, subprocess
for start in {STARTS!r}:
    try: eval(start)
    except Exception as error: print(repr(error), flush=True)
"""
    traced, plain = end(PASSING_ON + program), end(program)
    assert traced == plain
    assert (traced[0], traced[1].count("hi\n"), traced[1].count("Error")) == (0, 6, 3)


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
