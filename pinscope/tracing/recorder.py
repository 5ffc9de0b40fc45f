"""The recorder: runs inside the traced program, and writes what CUPTI reports into a folder, the spool.

It imports the standard library only and calls CUPTI through ctypes: nothing else appears in the program's modules, and
a record costs no Python object. Activity buffers are mapped files, so that what CUPTI has written survives the
program's death, also by SIGKILL. No file stays open: a program may close every descriptor.

Nothing raised here reaches the program. A fault ends the recording and is named in the spool.

The layout of the spool::

    config.json           written by the parent: where CUPTI is, what to follow, offsets in its structures
    started.json          the process, and when it began
    buffer.NUMBER         an activity buffer that CUPTI fills; ``.done`` is added when it gave it back
    calls.NUMBER          pairs of 32-bit numbers: correlation id, stack (numbered from 1; 0: the place was not used)
    stacks                a line of JSON for each stack, innermost frame first, in the order of their numbers
    stop                  written by the parent: record no more
    fault                 why the recording ended early
    refused.json          CUPTI's error, if it gave us no subscription; the program was not started then
"""

from __future__ import annotations

import _thread
import atexit
import ctypes
import functools
import itertools
import json
import os
import sys
import time
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, NoReturn

from pinscope.tracing import call_log, mapped_file
from pinscope.tracing.call_log import CallLog
from pinscope.tracing.mapped_file import map_file, part_from_file, unmap

BUFFER_BYTES = 1 << 20
"""Of one activity buffer; CUPTI takes one for each thread, and new ones as they fill."""
MOST_FRAMES = 32
"""Of a stack, the innermost ones."""
FLUSH_SECONDS = 0.25
"""So often CUPTI is asked for what is complete: what it keeps to itself is lost with a process that is killed."""
LINGER_SECONDS = 0.001
"""An exception of the program's own signal handler is raised again so long after the callback in which it came."""
_ENTER = 0
_RUNTIME, _DRIVER = 2, 1
"""CUPTI's domains of callbacks."""
_FORCED = 1

_Callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p)
_Request = ctypes.CFUNCTYPE(
    None, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)
)
_Complete = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)


class Refused(Exception):  # noqa: N818 - an answer of CUPTI, not a fault
    """CUPTI gives no subscription; the argument is its error's number."""


class Recorder:
    """Records this process from :meth:`start` to its end.

    Args:
        spool: the folder that the parent made, with its ``config.json``.
    """

    def __init__(self, spool: str) -> None:
        self._spool = spool
        with open(os.path.join(spool, "config.json"), encoding="utf-8") as file:  # noqa: PTH118, PTH123
            self._config: dict[str, Any] = json.load(file)
        self._correlation_at = self._config["callback"]["fields"]["correlation_id"][0]
        self._process = os.getpid()
        self._on = False
        self._cupti: Any = None
        self._subscriber = ctypes.c_void_p()
        self._kept = (_Callback(self._call), _Request(self._request), _Complete(self._complete))
        self._flushing = _thread.allocate_lock()
        self._numbers = itertools.count()
        self._buffers: dict[int, str] = {}
        self._log = CallLog(self._path)
        self._adding = _thread.allocate_lock()
        self._stacks: dict[tuple[int, ...], int] = {}
        self._codes: list[CodeType] = []  # keeps alive those whose ids stand in the keys of _stacks
        self._last = 0
        self._raised_again: BaseException | None = None

    def start(self) -> None:
        """Begin.

        Raises:
            Refused: another profiler has the only subscription, or CUPTI does not work here.
            OSError: the library cannot be loaded.
        """
        self._cupti = ctypes.CDLL(self._config["library"])
        callback, request, complete = self._kept
        self._require(self._cupti.cuptiSubscribe(ctypes.byref(self._subscriber), callback, None))
        self._write("started.json", {"pid": self._process, "ns": time.time_ns()})
        self._require(self._cupti.cuptiActivityRegisterCallbacks(request, complete))
        self._on = True
        for kind in self._config["activities"]:
            self._require(self._cupti.cuptiActivityEnable(kind))
        for number in self._config["unwanted_runtime"]:
            self._cupti.cuptiActivityEnableRuntimeApi(number, 0)
        for number in self._config["unwanted_driver"]:
            self._cupti.cuptiActivityEnableDriverApi(number, 0)
        if self._config["stacks"]:
            for domain, name in ((_RUNTIME, "runtime"), (_DRIVER, "driver")):
                for number in self._config[name]:
                    self._require(self._cupti.cuptiEnableCallback(1, self._subscriber, domain, int(number)))
        sys.unraisablehook = self._mind_unraisable(sys.unraisablehook)
        self._mind_exit_at_once()
        atexit.register(self._finish)  # first in, so the last to run: after the program's own
        os.register_at_fork(before=self._before_fork, after_in_parent=self._after_fork, after_in_child=self._in_child)
        _thread.start_new_thread(self._flush_now_and_then, ())

    def _require(self, result: int) -> None:
        if result:
            raise Refused(result)

    def refuse(self, error: Refused | OSError) -> None:
        """Tell the parent why nothing is recorded."""
        code = error.args[0] if isinstance(error, Refused) else None
        self._write("refused.json", {"code": code, "reason": str(error)})

    # What CUPTI calls. Each may run in any thread, and at any place of the program.

    def _call(self, _user: int, _domain: int, _number: int, data: int) -> None:
        """A call that is followed begins or ends: note which stack it came from."""
        try:
            if not self._on or _uint32(data).value != _ENTER:
                return
            correlation = _uint32(data + self._correlation_at).value
            if correlation == self._last:  # the driver's function inside the runtime's
                return
            self._last = correlation
            key: list[int] = []
            frame = innermost = sys._getframe().f_back
            while frame is not None and len(key) < 2 * MOST_FRAMES:
                key.append(id(frame.f_code))
                key.append(frame.f_lasti)
                frame = frame.f_back
            stack = self._stacks.get(tuple(key)) or self._add_stack(tuple(key), innermost)
            self._log.note(correlation, stack)
        except BaseException as error:  # noqa: BLE001 - nothing may reach the program
            self._caught(error)

    def _request(self, buffer: Any, size: Any, most: Any) -> None:
        """CUPTI wants a buffer. Without one it drops records."""
        try:
            buffer[0], size[0], most[0] = None, 0, 0
            if not self._on or os.getpid() != self._process:
                return
            if os.access(self._path("stop"), os.F_OK):
                self._on = False
                return
            path = self._path(f"buffer.{next(self._numbers):06d}")
            address = map_file(path, BUFFER_BYTES)
            self._buffers[address] = path
            buffer[0], size[0] = address, BUFFER_BYTES
        except BaseException as error:  # noqa: BLE001 - as above
            self._caught(error)

    def _complete(self, _context: int, _stream: int, buffer: int, _size: int, valid: int) -> None:
        """CUPTI gives a buffer back."""
        try:
            path = self._buffers.pop(buffer, None)
            if path is None:
                return
            unmap(buffer, BUFFER_BYTES)
            os.truncate(path, valid)
            os.rename(path, f"{path}.done")  # noqa: PTH104
        except BaseException as error:  # noqa: BLE001 - as above
            self._caught(error)

    # Stacks

    def _add_stack(self, key: tuple[int, ...], frame: FrameType | None) -> int:
        """Write a stack that is new; its number. The innermost frame first; native threads have none."""
        frames: list[tuple[str, int, str]] = []
        while frame is not None and len(frames) < MOST_FRAMES:
            code = frame.f_code
            frames.append((code.co_filename, frame.f_lineno, code.co_qualname))
            self._codes.append(code)
            frame = frame.f_back
        line = json.dumps(frames).encode() + b"\n"
        with self._adding:
            if key not in self._stacks:
                self._append("stacks", line)
                self._stacks[key] = len(self._stacks) + 1
            return self._stacks[key]

    # From the beginning to the end

    def _flush_now_and_then(self) -> None:
        """In a thread of its own, which the program's ``threading`` does not know."""
        while self._on:
            time.sleep(FLUSH_SECONDS)
            with self._flushing:
                if self._on:
                    self._cupti.cuptiActivityFlushAll(0)

    def _finish(self) -> None:
        """The program has ended in an orderly way: no callback may come while the interpreter is taken down."""
        if os.getpid() != self._process or self._cupti is None:
            return
        with self._flushing:
            self._cupti.cuptiUnsubscribe(self._subscriber)
            self._cupti.cuptiActivityFlushAll(0)
            self._cupti.cuptiActivityFlushAll(_FORCED)
            self._on = False
            for kind in self._config["activities"]:
                self._cupti.cuptiActivityDisable(kind)

    def _mind_exit_at_once(self) -> None:
        """``os._exit`` skips what atexit would do."""
        end = os._exit

        @functools.wraps(end)
        def exit_at_once(status: int) -> NoReturn:
            if self._on and os.getpid() == self._process:
                self._finish()
            end(status)

        os._exit = exit_at_once

    def _before_fork(self) -> None:
        self._flushing.acquire()

    def _after_fork(self) -> None:
        self._flushing.release()

    def _in_child(self) -> None:
        """A child of the program is not recorded. What it writes must not reach the parent's buffers."""
        self._on = False
        self._flushing.release()
        for address in self._buffers:
            part_from_file(address, BUFFER_BYTES)

    # Faults

    def _caught(self, error: BaseException) -> None:
        """A fault of ours ends the recording; what a signal handler of the program raised belongs to the program."""
        try:
            if error is self._raised_again or _is_of_the_program(error):
                self._raised_again = error  # it may come in a callback once more
                _thread.start_new_thread(_raise_later, (_thread.get_ident(), _without_our_frames(error)))
                return
            self._on = False
            self._append("fault", f"{type(error).__name__}: {error}\n".encode())
        except BaseException:  # noqa: BLE001, S110 - nothing is left to do
            pass

    def _mind_unraisable(self, hook: Callable[[Any], object]) -> Callable[[Any], object]:
        """A signal that came during a copy is handled where the callback after it begins, before its ``try``."""
        ours = {each.__code__ for each in (Recorder._call, Recorder._request, Recorder._complete)}

        def take(unraisable: Any) -> None:
            trace = unraisable.exc_traceback
            if trace is not None and trace.tb_frame.f_code in ours:
                self._caught(unraisable.exc_value.with_traceback(trace))
            else:
                hook(unraisable)

        return take

    # Files

    def _path(self, name: str) -> str:
        return f"{self._spool}/{name}"

    def _append(self, name: str, line: bytes) -> None:
        descriptor = os.open(self._path(name), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)

    def _write(self, name: str, document: Any) -> None:
        self._append(name, json.dumps(document).encode())


_uint32 = ctypes.c_uint32.from_address
_OWN_FILES = {__file__, call_log.__file__, mapped_file.__file__}


def _is_of_the_program(error: BaseException) -> bool:
    """Whether code of the program raised it, which ran inside a callback: a handler of a signal."""
    trace, files = error.__traceback__, set[str]()
    while trace is not None:
        files.add(trace.tb_frame.f_code.co_filename)
        trace = trace.tb_next
    return isinstance(error, KeyboardInterrupt) or not files <= {*_OWN_FILES, json.__file__, json.encoder.__file__}


def _without_our_frames(error: BaseException) -> BaseException:
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in _OWN_FILES:
        trace = trace.tb_next
    return error.with_traceback(trace)


def _raise_later(thread: int, error: BaseException) -> None:
    """Raise the very exception in its thread, after the callback has returned."""
    time.sleep(LINGER_SECONDS)
    carrier = type(type(error).__name__, (type(error),), {"__new__": lambda *_arguments: error})
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(carrier))


def start_recording(spool: str) -> bool:
    """Record this process into the spool from now on. False if that is not possible; the spool says why."""
    recorder = Recorder(spool)
    try:
        recorder.start()
    except (Refused, OSError) as error:
        recorder.refuse(error)
        return False
    _RECORDERS.append(recorder)
    return True


_RECORDERS: list[Recorder] = []
"""CUPTI calls into it until the process is gone."""
