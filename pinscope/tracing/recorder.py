"""The recorder: runs inside the traced program, and writes what CUPTI reports into a folder, the spool.

It imports the standard library only and calls CUPTI through ctypes: nothing else appears in the program's modules, and
a record costs no Python object. Activity buffers are mapped files, so that what CUPTI has written survives the
program's death, also by SIGKILL. No file stays open: a program may close every descriptor.

Nothing raised here reaches the program. A fault ends the recording and is named in the spool.

The layout of the spool::

    config.json           written by the parent: where CUPTI is, what to follow and when, offsets in its structures
    started.json          the process, its rank among others, and when it began
    ended.json            when it ended, if that was in an orderly way
    switched              a line of JSON each time the recording is switched on or off
    buffer.NUMBER         an activity buffer that CUPTI fills; ``.done`` is added when it gave it back
    process.PID.NUMBER    likewise of a process that the program has started, without config.json and stop
    calls.NUMBER          entries of 32-bit numbers: correlation id; stack, numbered from 1 (0: the place was not used);
                          range, numbered from 1 (0: none was open)
    stacks                a line of JSON for each stack: its number, and its frames, the innermost first
    ranges                a line of JSON for each range: its number, and its name
    stop                  written by the parent: record no more
    fault                 why the recording ended early
    refused.json          CUPTI's error, if it gave us no subscription; the program was not started then
"""

from __future__ import annotations

import _thread
import ctypes
import itertools
import json
import os
import sys
import time
from types import CodeType, FrameType
from typing import Any

from pinscope.tracing import call_log, late_exceptions, mapped_file, nvtx_calls, process_hooks, ranges
from pinscope.tracing.call_log import CallLog
from pinscope.tracing.late_exceptions import LateExceptions
from pinscope.tracing.mapped_file import map_file, part_from_file, unmap
from pinscope.tracing.nvtx_calls import NvtxCalls
from pinscope.tracing.ranges import Ranges

BUFFER_BYTES = 1 << 20
"""Of one activity buffer; CUPTI takes one for each thread, and new ones as they fill."""
MOST_FRAMES = 32
"""Of a stack, the innermost ones."""
FLUSH_SECONDS = 0.25
"""So often CUPTI is asked for what is complete: what it keeps to itself is lost with a process that is killed."""
_ENTER = 0
_RUNTIME, _DRIVER, _NVTX = 2, 1, 5
"""CUPTI's domains of callbacks."""
_FORCED = 1
_NEVER = 1 << 63

_Callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p)
_Request = ctypes.CFUNCTYPE(
    None, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)
)
_Complete = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)


class Refused(Exception):  # noqa: N818 - an answer of CUPTI, not a fault
    """CUPTI gives no subscription; the argument is its error's number."""


class Recorder:
    """Records this process from :meth:`start` to its end, or to :meth:`finish`.

    Args:
        spool: the folder that the parent made, with its ``config.json``.
        folder: where this process writes; the same where it is the program itself.
    """

    def __init__(self, spool: str, folder: str | None = None) -> None:
        self._spool = folder or spool
        self._stop = f"{spool}/stop"
        with open(os.path.join(spool, "config.json"), encoding="utf-8") as file:  # noqa: PTH118, PTH123
            self._config: dict[str, Any] = json.load(file)
        self._correlation_at = self._config["callback"]["fields"]["correlation_id"][0]
        self._process = os.getpid()
        self._live = False
        """Buffers are given to CUPTI, and the recording may be switched on."""
        self._on = False
        """CUPTI reports what the program does."""
        self._ended = False
        self._cupti: Any = None
        self._subscriber = ctypes.c_void_p()
        self._kept = (_Callback(self._call), _Request(self._request), _Complete(self._complete))
        self.callbacks = frozenset(each.__code__ for each in (Recorder._call, Recorder._request, Recorder._complete))
        self._switching = _thread.RLock()
        self._numbers = itertools.count()
        self._buffers: dict[int, str] = {}
        self._log = CallLog(self._path)
        self._ranges = Ranges(lambda line: self._append("ranges", line))
        self._nvtx = NvtxCalls(self._ranges)
        self._stack_numbers = itertools.count(1)
        self._stacks: dict[tuple[int, ...], int] = {}
        self._codes: list[CodeType] = []  # keeps alive those whose ids stand in the keys of _stacks
        self._last = 0
        self._late = LateExceptions(_OWN_FILES)

    @property
    def is_here(self) -> bool:
        """Whether this process is the one that it was begun in, and it has not ended."""
        return not self._ended and os.getpid() == self._process

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, in the process that it was begun in."""
        return self._ended and os.getpid() == self._process

    def start(self) -> None:
        """Begin; what the program does is recorded as soon as the configuration lets it.

        Raises:
            Refused: another profiler has the only subscription, or CUPTI does not work here.
            OSError: the library cannot be loaded.
        """
        if "NVTX_INJECTION64_PATH" not in os.environ:
            os.putenv("NVTX_INJECTION64_PATH", self._config["library"])  # not into os.environ
        self._cupti = ctypes.CDLL(self._config["library"])
        callback, request, complete = self._kept
        self._require(self._cupti.cuptiSubscribe(ctypes.byref(self._subscriber), callback, None))
        self._write("started.json", {"pid": self._process, "ns": time.time_ns(), "rank": _rank()})
        try:
            self._require(self._cupti.cuptiActivityRegisterCallbacks(request, complete))
            self._live = True
            for number in nvtx_calls.FOLLOWED if self._config["stacks"] else ():
                self._cupti.cuptiEnableCallback(1, self._subscriber, _NVTX, number)
            self._report(True)  # also where it begins later: CUPTI refuses now, or not at all
        except Refused:
            self._live = self._on = False
            self._cupti.cuptiUnsubscribe(self._subscriber)
            raise
        if self._is_wanted():
            self._note_switch()
        else:
            self._report(False)
        process_hooks.hook(self)
        _thread.start_new_thread(self._mind, ())

    def _require(self, result: int) -> None:
        if result:
            raise Refused(result)

    def refuse(self, error: Refused | OSError) -> None:
        """Tell the parent why nothing is recorded."""
        code = error.args[0] if isinstance(error, Refused) else None
        self._write("refused.json", {"code": code, "reason": str(error)})

    # On and off

    def _report(self, on: bool) -> None:
        """Have CUPTI report, or not. What the GPU still has to do then is reported all the same."""
        if on:
            self._on = True
        kinds = self._cupti.cuptiActivityEnable if on else self._cupti.cuptiActivityDisable
        for kind in self._config["activities"]:
            self._require(kinds(kind))
        if on:
            for number in self._config["unwanted_runtime"]:
                self._cupti.cuptiActivityEnableRuntimeApi(number, 0)
            for number in self._config["unwanted_driver"]:
                self._cupti.cuptiActivityEnableDriverApi(number, 0)
        if self._config["stacks"]:
            for domain, name in ((_RUNTIME, "runtime"), (_DRIVER, "driver")):
                for number in self._config[name]:
                    self._require(self._cupti.cuptiEnableCallback(int(on), self._subscriber, domain, int(number)))
        self._on = on

    def _note_switch(self) -> None:
        self._append("switched", json.dumps({"ns": time.time_ns(), "on": self._on}).encode() + b"\n")

    def _is_wanted(self) -> bool:
        begin, end = self._config.get("from_ns") or 0, self._config.get("until_ns") or _NEVER
        in_part = not self._config.get("only_parts") or self._ranges.parts > 0
        return self._live and in_part and begin <= time.time_ns() < end

    def _switch_as_wanted(self) -> None:
        with self._switching:
            if not self._ended and self._on != (wanted := self._is_wanted()):
                self._report(wanted)
                self._note_switch()

    def _mind(self) -> None:
        """In a thread of its own, which the program's ``threading`` does not know: flush now and then, and switch."""
        try:
            while not self._ended and os.getpid() == self._process:
                time.sleep(self._until_next())
                self._switch_as_wanted()
                with self._switching:
                    if not self._ended:
                        self._cupti.cuptiActivityFlushAll(0)
        except BaseException as error:  # noqa: BLE001 - nothing may reach the program
            self.caught(error)

    def _until_next(self) -> float:
        """Seconds to the next flush or switch."""
        moments = [int(self._config[name]) for name in ("from_ns", "until_ns") if self._config.get(name)]
        times = [(moment - time.time_ns()) / 1e9 for moment in moments]
        return min([FLUSH_SECONDS, *(each + 0.001 for each in times if each > 0)])

    def enter_part(self, name: str) -> None:
        """A part of the program begins."""
        try:
            self._ranges.enter_part(name)
            self._switch_as_wanted()
        except (Refused, OSError) as error:
            self.caught(error)

    def leave_part(self, name: str) -> None:
        """It ends."""
        try:
            self._ranges.leave_part(name)
            self._switch_as_wanted()
        except (Refused, OSError) as error:
            self.caught(error)

    # What CUPTI calls. Each may run in any thread, and at any place of the program.

    def _call(self, _user: int, domain: int, number: int, data: int) -> None:
        """A call that is followed begins or ends: note which stack it came from."""
        try:
            if domain == _NVTX:
                self._nvtx.note(number, data)
                return
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
            self._log.note(correlation, stack, self._ranges.current())
        except BaseException as error:  # noqa: BLE001 - nothing may reach the program
            self.caught(error)

    def _request(self, buffer: Any, size: Any, most: Any) -> None:
        """CUPTI wants a buffer. Without one it drops records."""
        try:
            buffer[0], size[0], most[0] = None, 0, 0
            if not self._live or os.getpid() != self._process:
                return
            if os.access(self._stop, os.F_OK):
                self._live = self._on = False
                return
            path = self._path(f"buffer.{next(self._numbers):06d}")
            address = map_file(path, BUFFER_BYTES)
            self._buffers[address] = path
            buffer[0], size[0] = address, BUFFER_BYTES
        except BaseException as error:  # noqa: BLE001 - as above
            self.caught(error)

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
            self.caught(error)

    # Stacks

    def _add_stack(self, key: tuple[int, ...], frame: FrameType | None) -> int:
        """Write a stack that is new; its number. The innermost frame first; native threads have none."""
        frames: list[tuple[str, int, str]] = []
        while frame is not None and len(frames) < MOST_FRAMES:
            code = frame.f_code
            frames.append((code.co_filename, frame.f_lineno, code.co_qualname))
            self._codes.append(code)
            frame = frame.f_back
        number = next(self._stack_numbers)  # one that a signal's handler takes away is not used
        self._append("stacks", json.dumps([number, frames]).encode() + b"\n")
        return self._stacks.setdefault(key, number)

    # The process's end and its children

    def finish(self) -> None:
        """The program, or its part, has ended in an orderly way: no callback may come while the interpreter is taken
        down."""
        if os.getpid() != self._process or self._ended:
            return
        with self._switching:
            self._ended = True
            self._cupti.cuptiUnsubscribe(self._subscriber)
            self._cupti.cuptiActivityFlushAll(0)
            self._cupti.cuptiActivityFlushAll(_FORCED)
            self._live = self._on = False
            for kind in self._config["activities"]:
                self._cupti.cuptiActivityDisable(kind)
            try:
                self._write("ended.json", {"ns": time.time_ns()})
            except OSError as error:  # the spool is gone: the program ended before this process of it
                self.caught(error)

    def before_fork(self) -> None:
        """No other thread may be in CUPTI for us meanwhile."""
        self._switching.acquire()

    def after_fork(self) -> None:
        """Go on."""
        self._switching.release()

    def in_child(self) -> None:
        """A child of the program is not recorded. What it writes must not reach the parent's buffers."""
        self._live = self._on = False
        self._switching.release()
        for address in self._buffers:
            part_from_file(address, BUFFER_BYTES)

    # Faults

    def caught(self, error: BaseException) -> None:
        """A fault of ours ends the recording; what a signal handler of the program raised belongs to the program."""
        try:
            if self._late.take(error):
                return
            self._live = self._on = False
            self._append("fault", f"{type(error).__name__}: {error}\n".encode())
        except BaseException:  # noqa: BLE001, S110 - nothing is left to do
            pass

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
_OWN_FILES = frozenset({
    __file__, call_log.__file__, late_exceptions.__file__, mapped_file.__file__, nvtx_calls.__file__,
    process_hooks.__file__, ranges.__file__,
})  # fmt: skip


def _rank() -> int | None:
    """Of this process among those of one job, where its launcher says so."""
    found = os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or ""
    return int(found) if found.isascii() and found.isdigit() else None


def start_recording(spool: str) -> bool:
    """Record this process into the spool from now on. False if that is not possible; the spool says why."""
    return _started(Recorder(spool))


def join_recording(spool: str) -> None:
    """Record this process beside the program that has started it, as long as that runs."""
    for number in itertools.count():  # the same process may have run another program before
        folder = f"{spool}/process.{os.getpid()}.{number}"
        try:
            os.mkdir(folder, 0o700)  # noqa: PTH102
        except FileExistsError:
            continue
        _started(Recorder(spool, folder))
        return


def _started(recorder: Recorder) -> bool:
    try:
        recorder.start()
    except (Refused, OSError) as error:
        recorder.refuse(error)
        return False
    return True


def recorder_here() -> Recorder | None:
    """The recorder of this process, until it ends; none in a child by fork."""
    newest = process_hooks.newest()
    return newest if isinstance(newest, Recorder) and newest.is_here else None


def can_record_here() -> bool:
    """Whether a recording may begin: none goes on, nor did in the process of which this is a fork."""
    newest = process_hooks.newest()
    return newest is None or (isinstance(newest, Recorder) and newest.has_ended)
