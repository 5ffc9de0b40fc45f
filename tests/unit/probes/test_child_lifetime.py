"""A child that PinScope starts ends with PinScope, and heeds signals once it can end in order."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

from pinscope.probes.process import STOP_SIGNALS, start_child
from tests.data.waiting import until

PACKAGE = Path(__file__).parents[3] / "pinscope"
OUTLIVES = {"tracing/part.py": 1, "runner/traced_program.py": 2}
"""How many processes may: what stores the recorded part of a program that was killed, and ends by itself; a traced
program, which would see it, and what ends that in its stead."""

STARTER = """
import sys, time
from pinscope.probes.process import start_child
from tests.data.waiting import until
print(start_child([sys.executable, "-c", "import time; time.sleep(60)"]).pid, flush=True)
time.sleep(60)
"""

HEEDING = """
import sys, time
from pinscope.probes.process import install_handler
heard = []
print("born", flush=True)
sys.stdin.readline()
install_handler(lambda number, frame: heard.append(number))
print(*sorted(heard), flush=True)
"""


def _has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


def test_a_child_that_is_stopped_as_soon_as_its_program_begins_ends_with_its_starter() -> None:
    starter = subprocess.Popen([sys.executable, "-P", "-c", STARTER], stdout=subprocess.PIPE, cwd=PACKAGE.parent,
                               env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)})  # fmt: skip
    with starter:
        assert starter.stdout is not None
        child = int(starter.stdout.readline())
        os.kill(child, signal.SIGSTOP)
        starter.kill()
        starter.wait()
        until(lambda: _has_ended(child))


def test_signals_that_come_before_a_child_can_end_in_order_are_kept_for_it() -> None:
    child = start_child([sys.executable, "-P", "-c", HEEDING], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                        env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)})  # fmt: skip
    with child:
        for number in STOP_SIGNALS:
            child.send_signal(number)
        assert child.stdout.readline() == b"born\n"
        child.stdin.write(b"\n")
        child.stdin.flush()
        assert [int(word) for word in child.stdout.readline().split()] == sorted(STOP_SIGNALS)
    assert child.returncode == 0


def test_starting_a_child_holds_no_signal_back_from_its_starter() -> None:
    with start_child(["true"]) as child:
        assert child.wait() == 0
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & set(STOP_SIGNALS)


def test_no_module_starts_a_process_that_could_outlive_it() -> None:
    outliving = Counter[str]()
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "subprocess" in text else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("subprocess.Popen", "subprocess.run"):
                named = {word.arg: ast.unparse(word.value) for word in node.keywords}
                outliving[str(path.relative_to(PACKAGE))] += named.get("preexec_fn") != "ending_with_this()"
    assert +outliving == OUTLIVES
