"""``pinscope.trace``: a part of a program, named in the trace that runs, or recorded by itself.

It imports the standard library only, and the recorder when a part is recorded. What is recorded is read, stored and
shown by a process of PinScope's own, the keeper (``cli/trace_summary.py``). It makes the spool and says where, through
a pipe that is closed then: a program may close every descriptor. From then on the program writes files into the spool,
and the keeper looks there.
"""

from __future__ import annotations

import _thread
import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ContextDecorator, ExitStack, contextmanager, suppress
from traceback import walk_tb
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pinscope
from pinscope.errors import BadInput, UnknownName
from pinscope.isolation import command
from pinscope.tracing.host_calls import follow_host_calls
from pinscope.tracing.recorder import Recorder, can_record_here, recorder_here, start_recording
from pinscope.tracing.spool_folder import SpoolFolder
from pinscope.tracing.stacks import MOST_CHARACTERS, is_own

if TYPE_CHECKING:
    from pinscope import Run

KEEPER = "pinscope.cli.trace_summary"


class ProgramPart(ContextDecorator):
    """A part of a program; entered again and again, and from several threads, if need be.

    Args:
        name: of the part; its first 200 characters count.
        output: a bundle to write, which must not exist yet; only where the part is recorded by itself.
        stacks: read the Python stack of each call; only where the part is recorded by itself.

    Raises:
        BadInput: a name that is no text, or is empty.
    """

    def __init__(self, name: str, output: str | os.PathLike[str] | None = None, stacks: bool = True) -> None:
        if not isinstance(name, str) or not name.strip():
            raise BadInput("a part needs a name, such as pinscope.trace('training')")
        self._name = name[:MOST_CHARACTERS]
        self._output = None if output is None else os.path.abspath(output)  # noqa: PTH100 - it may be on no path yet
        self._stacks = stacks
        self._run_id: str | None = None

    @property
    def result(self) -> Run | None:
        """Once the part has been left, its trace. ``None`` where nothing was recorded, and under ``pinscope trace``,
        which keeps the trace when the program ends."""
        with suppress(UnknownName):  # nothing could be recorded: the keeper took it away
            return None if self._run_id is None else pinscope.open(self._run_id)
        return None

    def __enter__(self) -> ProgramPart:
        self._run_id = _ALONE.enter(self._name, self._output, self._stacks)
        try:
            with _kept_from_the_program(self._name):
                if recorder := recorder_here():
                    recorder.enter_part(self._name)
        except BaseException:
            _ALONE.leave()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with _kept_from_the_program(self._name):
                if recorder := recorder_here():
                    recorder.leave_part(self._name)
        finally:
            _ALONE.leave()


@contextmanager
def _kept_from_the_program(name: str) -> Iterator[None]:
    """Where something of ours fails, a line says so, and the part runs on. What a signal's handler of the program
    raises meanwhile is the program's."""
    try:
        yield
    except Exception as error:
        if any(is_own(frame.f_code.co_filename, ()) for frame, _ in walk_tb(error.__traceback__)):
            raise
        _say(name, error)


def _say(name: str, why: object) -> None:
    with suppress(AttributeError, OSError, ValueError):  # a program may have closed its stderr, or have none
        sys.stderr.write(f"pinscope: the part {name!r} is not recorded: {' '.join(str(why).split())}\n")


class _Alone:
    """The recording of the parts of a program that is not traced as a whole: from the entry of the first until all are
    left."""

    def __init__(self) -> None:
        self._lock = _thread.RLock()
        self._process = os.getpid()
        self._open = 0
        self._recorder: Recorder | None = None
        self._name = ""
        self._spool: SpoolFolder | None = None
        self._keeper: subprocess.Popen[bytes] | None = None
        self._run_id: str | None = None

    def enter(self, name: str, output: str | None, stacks: bool) -> str | None:
        """One part more is open; with the first one the recording begins, unless the program is traced. The run's id,
        if there is a recording."""
        with self._lock:
            if not self._open and can_record_here():
                try:
                    self._begin(name, output, stacks)
                except BaseException:  # of a signal's handler, such as Ctrl-C: the part does not begin
                    self._give_up()
                    raise
            self._open += 1
            return self._run_id if self._keeper is not None else None

    def leave(self) -> None:
        """One less; with the last one the recording ends and is stored."""
        with self._lock:
            self._open -= 1
            if not self._open and self._keeper is not None:
                self._end()

    def _begin(self, name: str, output: str | None, stacks: bool) -> None:
        self._process, self._name, self._spool = os.getpid(), name, None
        answer: dict[str, Any] | None = None
        with _kept_from_the_program(name):
            what = {
                "name": name,
                "output": output,
                "stacks": stacks,
                "program": sys.orig_argv[1:],
                "pid": self._process,
            }
            answer = self._ask_keeper(json.dumps(what).encode())
        if self._keeper is None:
            return
        is_refused = False
        with _kept_from_the_program(name):
            if answer is not None:
                self._run_id = answer["run"]
                self._spool = SpoolFolder.named(answer["spool"])
                is_refused = not start_recording(self._spool, answer["library"])
                self._recorder = recorder_here()
                if self._recorder is not None:
                    follow_host_calls()
        if is_refused:
            self._end()  # the keeper says why
        elif self._recorder is None:
            self._give_up()

    def _ask_keeper(self, what: bytes) -> Any:
        """Start the keeper and wait until it is ready: where the spool is, and CUPTI's library. ``None`` if it has
        ended; it has said why."""
        self._keeper = keeper = subprocess.Popen(
            command(KEEPER), stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        with keeper.stdout as answer, keeper.stdin as question:  # type: ignore[union-attr] # they are pipes
            with suppress(BrokenPipeError):
                question.write(what)
                question.close()
            lines = answer.read().splitlines()  # the last one: what sitecustomize prints stands before it
        if keeper.poll() is None and lines:
            return json.loads(lines[-1])
        keeper.wait()
        self._keeper = None
        return None

    def _give_up(self) -> None:
        """End what has begun; nothing of it is kept. The keeper removes the spool."""
        keeper, self._keeper, self._recorder = self._keeper, None, None
        if recorder := recorder_here():
            with _kept_from_the_program(self._name):
                recorder.finish()
        if keeper is not None:
            keeper.terminate()
            keeper.wait()

    def _end(self) -> None:
        """Have what was recorded stored and shown, and wait for that."""
        if os.getpid() != self._process or self._keeper is None:  # a child by fork: the part is its parent's
            return
        keeper, self._keeper = self._keeper, None
        recorder, self._recorder = self._recorder, None
        with _kept_from_the_program(self._name), ExitStack() as ending:
            ending.callback(self._let_end, keeper)
            if recorder is not None:
                ending.callback(recorder.finish)
                _wait_for_gpu()
        if keeper.wait() < 0:
            _say(self._name, "the process that keeps it was killed")

    def _let_end(self, keeper: subprocess.Popen[bytes]) -> None:
        """Without its configuration the recording is over. To remove a file needs no room on the disk."""
        try:
            if self._spool is not None:
                self._spool.remove("config.json")
        except FileNotFoundError:
            pass
        except OSError:
            keeper.kill()
            raise


_ALONE = _Alone()


def _wait_for_gpu() -> None:
    """Until the copies of the part are done: CUPTI reports them when they are."""
    try:
        driver: Any = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:  # the program has not loaded it
        return
    driver.cuCtxSynchronize()
