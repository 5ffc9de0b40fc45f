"""``pinscope.trace``: a part of a program, named in the trace that runs, or recorded by itself.

It imports the standard library only, and the recorder when a part is recorded. What is recorded is read, stored and
shown by a process of PinScope's own, the keeper (``cli/traced_part.py``). The two share no descriptor: the program
writes files into the spool, and the keeper looks there.
"""

from __future__ import annotations

import _thread
import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ContextDecorator
from types import TracebackType
from typing import Any

from pinscope.errors import BadInput
from pinscope.isolation import command
from pinscope.tracing.recorder import Recorder, can_record_here, recorder_here, start_recording

KEEPER = "pinscope.cli.traced_part"
LOOK_SECONDS = 0.01
"""How often the program looks whether the keeper is ready."""
PART_ENDED = "part-ended.json"
"""File of the spool in which the program says that the part has ended."""


class Part(ContextDecorator):
    """A part of a program; entered again and again, and from several threads, if need be.

    Args:
        name: of the part.
        output: a bundle to write, which must not exist yet; only where the part is recorded by itself.
        stacks: read the Python stack of each call; only where the part is recorded by itself.

    Raises:
        BadInput: a name that is no text, or is empty.
    """

    def __init__(self, name: str, output: str | os.PathLike[str] | None = None, stacks: bool = True) -> None:
        if not isinstance(name, str) or not name.strip():
            raise BadInput("a part needs a name, such as pinscope.trace('training')")
        self._name = name
        self._output = None if output is None else os.path.abspath(output)  # noqa: PTH100 - it may be on no path yet
        self._stacks = stacks

    def __enter__(self) -> None:
        _ALONE.enter(self._name, self._output, self._stacks)
        if recorder := recorder_here():
            recorder.enter_part(self._name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if recorder := recorder_here():
            recorder.leave_part(self._name)
        _ALONE.leave()


class _Alone:
    """The recording of the parts of a program that is not traced as a whole: from the entry of the first until all are
    left."""

    def __init__(self) -> None:
        self._lock = _thread.RLock()
        self._process = os.getpid()
        self._open = 0
        self._recorder: Recorder | None = None
        self._spool = ""
        self._keeper: subprocess.Popen[bytes] | None = None

    def enter(self, name: str, output: str | None, stacks: bool) -> None:
        """One part more is open; with the first one the recording begins, unless the program is traced."""
        with self._lock:
            self._open += 1
            if self._open == 1 and can_record_here():
                self._begin(name, output, stacks)

    def leave(self) -> None:
        """One less; with the last one the recording ends and is stored."""
        with self._lock:
            self._open -= 1
            if not self._open and self._keeper is not None:
                self._end()

    def _begin(self, name: str, output: str | None, stacks: bool) -> None:
        self._process = os.getpid()
        self._spool = tempfile.mkdtemp(prefix="pinscope-trace-")
        document = {"name": name, "output": output, "stacks": stacks, "program": sys.orig_argv[1:]}
        try:
            self._keeper = subprocess.Popen(
                command(KEEPER, self._spool, json.dumps(document)), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            sys.stderr.write(f"pinscope: {name!r} is not recorded: {error}\n")
            shutil.rmtree(self._spool, ignore_errors=True)
            return
        while not os.access(f"{self._spool}/config.json", os.F_OK):
            if self._keeper.poll() is not None:  # it has said why
                self._keeper = None
                return
            time.sleep(LOOK_SECONDS)
        if start_recording(self._spool):
            self._recorder = recorder_here()
        else:
            self._end()

    def _end(self) -> None:
        """Have what was recorded stored and shown, and wait for that."""
        if os.getpid() != self._process or self._keeper is None:  # a child by fork: the part is its parent's
            return
        keeper, self._keeper = self._keeper, None
        if self._recorder is not None:
            _wait_for_gpu()
            self._recorder.finish()
            self._recorder = None
        with open(f"{self._spool}/{PART_ENDED}", "w", encoding="utf-8") as file:  # noqa: PTH123
            json.dump({"ns": time.time_ns()}, file)
        keeper.wait()


_ALONE = _Alone()


def _wait_for_gpu() -> None:
    """Until the copies of the part are done: CUPTI reports them when they are."""
    try:
        driver: Any = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:  # the program has not loaded it
        return
    driver.cuCtxSynchronize()
