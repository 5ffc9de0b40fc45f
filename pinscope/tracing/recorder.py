"""The recorder: runs inside the traced program, and writes what CUPTI reports into a folder, the spool.

It imports the standard library only and calls CUPTI through ctypes: nothing else appears in the program's modules, and
a record costs no Python object. Activity buffers are mapped files, so that what CUPTI has written survives the
program's death, also by SIGKILL. No file stays open: a program may close every descriptor.

Nothing raised here reaches the program. A fault ends the recording and is named in the spool.
"""

from __future__ import annotations

import ctypes
import json
import os as program_os
import re
from collections.abc import Callable
from sys import _current_frames, _getframe
from types import FrameType
from typing import Any

from pinscope.tracing import stacks, waits
from pinscope.tracing.bound import _thread, as_json, bind, os, start_thread, time
from pinscope.tracing.cupti_library import NVTX, CuptiLibrary, Refused
from pinscope.tracing.error_filter import FAILED_ENTRY, FailedCalls
from pinscope.tracing.faults import is_of_the_program, own_traceback
from pinscope.tracing.host_data import LARGE_BYTES, HostData
from pinscope.tracing.lanes import Begins, Lanes, choose
from pinscope.tracing.later import Later
from pinscope.tracing.library_log import LibraryLog
from pinscope.tracing.managed import ManagedMemory, is_followed_later
from pinscope.tracing.mapped_file import BUFFER_BYTES, CUT, LANE_ENTRY, ActivityBuffers, CallLog
from pinscope.tracing.pending import mind_unraisable, raise_behind
from pinscope.tracing.process_end import at_end
from pinscope.tracing.source_memory import PinnedMemory, SourceMemory
from pinscope.tracing.spool_folder import SpoolFolder, rank_here, stack_begin
from pinscope.tracing.stacks import NvtxCalls, Ranges, Stacks

bind(globals())

FLUSH_SECONDS = 0.25
"""So often CUPTI is asked for what is complete: what it keeps to itself is lost with a process that is killed."""
LONGEST_CALL_SECONDS = 10.0
"""So long after the recording was switched off, calls that began before are waited for."""
MOST_VIEWS = 1000
_ENTER = 0
_clock = time.time_ns
"""CUPTI counts as this clock does."""
_NEVER = 1 << 63
_IN_LANES = re.compile(r"cuMemcpy|cu(Ctx|Stream|Event)Synchronize")
"""Functions that need nothing of Python while a library is called."""
_LAST_PAGES_SECONDS = 0.1
"""So long the driver has to say what pages it moved last."""


class Recorder:
    """Records this process from :meth:`start` to its end, or to :meth:`finish`.

    Args:
        folder: where this process writes. That of the program, which the parent made, has the ``config.json``.
        library: CUPTI's.
        is_minded: a thread of the caller's runs :meth:`mind`, in a program that ran before: its variables stay, too.
    """

    def __init__(self, folder: SpoolFolder, library: str, is_minded: bool = False) -> None:
        self._folder, self._program = folder, folder.of_program
        self._library = library
        self._config: dict[str, Any] = json.loads(self._program.read("config.json"))
        self._with_stacks: bool = self._config["stacks"]
        fields = self._config["callback"]["fields"]
        self._correlation_at, self._parameters_at = (fields[name][0] for name in ("correlation_id", "function_params"))
        self._process = os.getpid()
        self._live = False
        """Buffers are given to CUPTI, and the recording may be switched on."""
        self._on = False
        """A call that begins is noted."""
        self._reports = self._follows = False
        """CUPTI keeps records of what the program does; it calls back at the calls that are followed."""
        self._off_since = 0.0
        self._ended = False
        self.waits = waits.of(self._config, _CALLBACKS)
        call = self._call if self.waits is None else self._call_and_wait
        self._cupti = CuptiLibrary(call, self._failed, self._request, self._complete)
        self._switching = _thread.RLock()
        self._has_thread = is_minded
        """It is begun with the first call: Python warns a program of several threads that forks."""
        self._buffers = ActivityBuffers(folder)
        self._log = CallLog(folder)
        failed = CallLog(folder, "failed", FAILED_ENTRY)
        self._failures = FailedCalls(failed, lambda line: folder.append("failed_functions", line))
        self._ranges = Ranges(lambda line: folder.append("ranges", line))
        self.library_log = LibraryLog(folder, self._stack)
        self._nvtx = NvtxCalls(self._ranges)
        self._stacks = Stacks(
            self._config["libraries"],
            lambda line: folder.append("stacks", line),
            lambda line: folder.append("full", line),
        )
        functions = self._config["functions"]
        memory = SourceMemory(functions, self._stack, lambda line: folder.append("memory", line))
        self._late = Later()
        self._data = HostData(folder, functions, memory, self._late)
        self._managed = ManagedMemory(
            self._config, self._cupti, folder, self._stack, lambda: self._on and not self._ended, self.caught
        )
        self._begins = Begins(self._cupti.notes)
        self._views: dict[int, tuple[ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint64]] = {}
        self._lane_log = CallLog(folder, "lanes", LANE_ENTRY)
        stack, range_now = self._stacks.number if self._with_stacks else self._stack, self._ranges.current
        logs = self._lane_log.note, self.library_log.note_call, self._late
        self.lanes = Lanes(self._cupti.notes, self._data, *logs, stack, range_now, self.caught)
        self.last_calls = self.lanes.last_calls
        self.pinned = PinnedMemory(functions)
        self._allocates = self.pinned.functions | self._managed.allocates
        self._instruct()

    def _instruct(self) -> None:
        """What the instructions beneath Python note by themselves."""
        notes = self._cupti.notes
        for number in self._data.functions:
            choose(notes.copying, number)
        if self.waits is None:
            for number in [int(number) for number, name in self._config["functions"].items() if _IN_LANES.match(name)]:
                choose(notes.in_lanes, number)

    @property
    def is_here(self) -> bool:
        """Whether this process is the one that it was begun in, and it has not ended."""
        return not self._ended and os.getpid() == self._process

    @property
    def is_on(self) -> bool:
        """Whether a call that begins now is noted, with its line."""
        return self._on and self._with_stacks

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
        if not self._has_thread and "NVTX_INJECTION64_PATH" not in program_os.environ:
            os.putenv("NVTX_INJECTION64_PATH", self._library)  # not into os.environ
        self._cupti.load(self._library)
        _hook(self)  # first: CUPTI may call what it was given until the process is gone
        try:
            self._subscribe()
        except BaseException:  # of a signal's handler, too
            self._ended, self._live = True, False
            self._note_calls(False)
            if self._cupti.is_subscribed:
                self._let_go()
            raise
        if not self._has_thread and (self._config.get("from_ns") or self._config.get("until_ns")):
            self._start_minding()

    def _start_minding(self) -> None:
        self._has_thread = True
        try:
            start_thread(self.mind)
        except BaseException:  # of a signal's handler: the next call starts it
            self._has_thread = False
            raise

    def _subscribe(self) -> None:
        self._cupti.subscribe()
        started = {"pid": self._process, "ns": time.time_ns(), "rank": rank_here(), "stack": stack_begin()}
        self._write("started.json", {**started, "notices_errors": self._cupti.notices_errors})
        self._cupti.take_records()
        self._live = True
        self._cupti.follow_ranges(stacks.FOLLOWED if self._with_stacks else ())
        functions = [int(n) for n, name in self._config["functions"].items() if not is_followed_later(name)]
        self._cupti.choose(functions, self._config["watched"])
        self._report(True)  # also where it begins later: CUPTI refuses now, or not at all
        if self._is_wanted():
            self._note_switch()
        else:
            self._report(False)
        self._managed.wait_for_it(self._reports)

    def refuse(self, error: Refused | OSError) -> None:
        """Tell the parent why nothing is recorded."""
        code = error.args[0] if isinstance(error, Refused) else None
        self._write("refused.json", {"code": code, "reason": str(error)})

    # On and off

    def _report(self, on: bool) -> None:
        """Have CUPTI report, or not. What the GPU still has to do then is reported all the same.

        A record needs its call. So calls are followed before there are records, and noted until there are none more;
        one that is not over by then is followed to its end.
        """
        if on:
            self.pinned.forget()
            self._follow(True)
            self._note_calls(True)
            self._reports = True
        self._cupti.record([*self._config["activities"], *self._managed.activities], on)
        if not on:
            self._note_calls(False)
            self._reports = False
            self._off_since = time.monotonic()
            self._follow_no_more()

    def _note_calls(self, on: bool) -> None:
        """Whether a call that begins from now on is noted."""
        self._on = self._cupti.notes.is_on = on

    def _follow(self, on: bool) -> None:
        self._cupti.follow(on)
        self._follows = on

    def _follow_no_more(self) -> None:
        """While nothing is recorded: once the calls are over that began before."""
        waited = time.monotonic() - self._off_since > LONGEST_CALL_SECONDS
        if self._follows and not self._reports and (waited or not (self._begins or self.lanes)):
            self._follow(False)
            self._note_cut()

    def _note_cut(self) -> None:
        """Calls whose end will not be seen."""
        for correlation, begun in (*self._begins.take_all(), *self.lanes.cut()):
            self._log.note(correlation, CUT, 0, 0, 0, begun, _clock())

    def _note_switch(self) -> None:
        self._folder.append("switched", as_json({"ns": time.time_ns(), "on": self._reports}) + b"\n")

    def _is_wanted(self) -> bool:
        begin, end = self._config.get("from_ns") or 0, self._config.get("until_ns") or _NEVER
        in_part = not self._config.get("only_parts") or self._ranges.parts > 0
        return self._live and in_part and begin <= time.time_ns() < end

    def _switch_as_wanted(self) -> None:
        with self._switching:
            if not self._ended and self._reports != (wanted := self._is_wanted()):
                self._report(wanted)
                self._note_switch()

    def mind(self, until_stopped: bool = False) -> None:
        """In a thread that the program's ``threading`` does not know: flush and switch, to the end or until a stop."""
        while not self._ended and os.getpid() == self._process and (self._live or not until_stopped):
            try:
                time.sleep(self._until_next())
                self._look_for_stop()
                self._switch_as_wanted()
                with self._switching:
                    if not self._ended:
                        self._follow_no_more()
                        self._cupti.flush()
                        self._catch_up()
            except BaseException as error:  # noqa: BLE001 - nothing may reach the program
                self.caught(error)

    def _catch_up(self) -> None:
        """Write what waits for it."""
        self._late.catch_up()
        self.library_log.flush()

    def _look_for_stop(self) -> None:
        """Whether to record no more: the parent says so, or is gone with its spool."""
        if self._program.has("stop") or not self._program.has("config.json"):
            self._live = False

    def _until_next(self) -> float:
        """Seconds to the next flush or switch."""
        moments = [int(self._config[name]) for name in ("from_ns", "until_ns") if self._config.get(name)]
        times = [(moment - time.time_ns()) / 1e9 for moment in moments]
        return min([FLUSH_SECONDS, *(seconds + 0.001 for seconds in times if seconds > 0)])

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
        """A call that is followed begins, or is over: note how long it took, and which stack it came from."""
        try:
            now = _clock()
            if domain == NVTX:
                if os.getpid() == self._process:
                    self.lanes.stop()
                    self._nvtx.note(number, data)
                return
            site, correlation_id, parameters = self._views.get(data) or self._view(data)
            correlation = correlation_id.value
            if site.value == _ENTER:
                if self._on:
                    if number in (data_of := self._data).functions:
                        size = data_of.sizes.get(parameters.value)
                        if (size is None or size.value > LARGE_BYTES) and data_of.begins(
                            number, parameters.value, correlation, _getframe().f_back
                        ):
                            now = _clock()
                    self._begins.keep(correlation, now)
                return
            if number in self._allocates:
                self.pinned.forget()
                if number in self._managed.allocates and self._live:
                    self._managed.begin(self._reports)
            begun = self._begins.take(correlation)
            if begun is not None:
                stack, thread = self._stack(_getframe().f_back), _thread.get_ident() & 0xFFFFFFFF
                self._log.note(correlation, number, thread, stack, self._ranges.current(), begun, now)
                self.last_calls[thread] = correlation
                self.lanes.seen.add(stack)
                if correlation in self._data.due:
                    self._data.is_over(correlation)
            elif self._on:  # it began before
                self._log.note(correlation, CUT, 0, 0, 0, now, now)
        except BaseException as error:  # noqa: BLE001 - nothing may reach the program
            self.caught(error)

    def _call_and_wait(self, user: int, domain: int, number: int, data: int) -> None:
        """The same where waits are wanted: Python is asked for them in the end."""
        self._call(user, domain, number, data)
        try:
            if self.waits and self._on and domain != NVTX:
                self.waits.note(number, self._views.get(data) or self._view(data), _getframe().f_back)
        except BaseException as error:  # noqa: BLE001 - as above
            self.caught(error)
        if self.waits and self.waits.is_due():
            self.waits.ask()

    def keep(self, name: str, document: Any) -> None:
        """Write a line of JSON to a file of the spool."""
        self._folder.append(name, as_json(document) + b"\n")

    def stack_here(self) -> int:
        """Number of the stack of the program and its libraries that is running now."""
        return self._stack(_getframe(1))

    def _failed(self, _user: int, domain: int, number: int, data: int) -> None:
        """A call has returned an error."""
        try:
            self._note_failure(domain, number, data, _getframe().f_back)
        except BaseException as error:  # noqa: BLE001 - as above
            self.caught(error)

    def _note_failure(self, domain: int, number: int, data: int, caller: FrameType | None) -> None:
        """Note the error and the stack; of a native thread, that of the main thread, which may wait for it."""
        if not self._on or os.getpid() != self._process:
            return
        now, elsewhere = _clock(), caller is None
        # Python has the newest thread first.
        stack = self._stack([*_current_frames().values()][-1] if elsewhere else caller)
        self._failures.note(domain, number, data, _thread.get_ident() & 0xFFFFFFFF, stack, elsewhere, now)

    def _stack(self, caller: FrameType | None) -> int:
        """Number of the stack above a frame; 0 where it is not read."""
        try:
            return self._stacks.number(caller) if self._with_stacks else 0
        except RecursionError:  # the program stands near its limit
            return 0

    def _view(self, data: int) -> tuple[ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint64]:
        """What stands in CUPTI's structure at an address, which the next call at the same depth uses again: whether a
        call begins, its correlation id, and where its parameters stand."""
        if len(self._views) >= MOST_VIEWS:
            self._views.clear()
        if not self._has_thread and os.getpid() == self._process:
            self._start_minding()
        self._views[data] = views = (
            ctypes.c_uint32.from_address(data),
            ctypes.c_uint32.from_address(data + self._correlation_at),
            ctypes.c_uint64.from_address(data + self._parameters_at),
        )
        return views

    def _request(self, buffer: Any, size: Any, most: Any) -> None:
        """CUPTI wants a buffer. Without one it drops records."""
        try:
            self._give_buffer(buffer, size, most)
        except BaseException as error:  # noqa: BLE001 - as above
            self.caught(error)

    def _give_buffer(self, buffer: Any, size: Any, most: Any) -> None:
        buffer[0], size[0], most[0] = None, 0, 0
        if os.getpid() != self._process:
            return
        self._look_for_stop()
        if not self._live:
            return
        buffer[0], size[0] = self._buffers.give(), BUFFER_BYTES

    def _complete(self, _context: int, _stream: int, buffer: int, _size: int, valid: int) -> None:
        """CUPTI gives a buffer back."""
        try:
            self._buffers.take_back(buffer, valid)
        except BaseException as error:  # noqa: BLE001 - as above
            self.caught(error)

    # The process's end and its children

    def finish(self) -> None:
        """The program, or its part, has ended in an orderly way: no callback may come while the interpreter is taken
        down."""
        if os.getpid() != self._process or self._ended:
            return
        with self._switching:
            self._ended = True
            try:
                self._let_go()
                self._cupti.flush_all()
                self._catch_up()
                self._write("ended.json", {"ns": time.time_ns()})
                self._managed.finish()
                self._note_cut()
                self._late.catch_up()  # of a thread that was in a library's call
                if self.waits is not None:
                    self._write(waits.ACCOUNT, self.waits.document())
            except Exception:  # noqa: BLE001, S110 - the spool is gone, or an audit hook of the program forbids it
                pass
            self._live = self._reports = False
            self._forget()

    def _let_go(self) -> None:
        """Give CUPTI back."""
        if self._managed.activities:  # what the driver has still to say of the last pages is lost with the counters
            self._cupti.flush_all()
            time.sleep(_LAST_PAGES_SECONDS)
        self._cupti.record_no_more(
            [*self._config["activities"], *self._managed.activities]
        )  # first: a record needs its call
        self._note_calls(False)
        self._cupti.unsubscribe()

    def _forget(self) -> None:
        """Give back the memory. What CUPTI may still call stays, and finds nothing to do."""
        self._log.close()
        self._lane_log.close()
        self.library_log.close()
        self._failures.close()
        self._stacks.forget()
        self._ranges.forget()
        self._nvtx = NvtxCalls(self._ranges)
        self._views.clear()
        self._data.close()

    def before_fork(self) -> None:
        """No other thread may be in CUPTI for us meanwhile."""
        self._switching.acquire()

    def after_fork(self) -> None:
        """Go on."""
        self._switching.release()

    def in_child(self) -> None:
        """A child of the program is not recorded. What it writes must not reach the parent's buffers."""
        self._live = False
        self._note_calls(False)
        self._switching.release()
        self._buffers.leave_to_parent()

    # Faults

    def caught(self, error: BaseException) -> None:
        """A fault of ours ends the recording; what a signal's handler of the program raised belongs to the program.

        The call that was followed then is lost, and nothing else.
        """
        try:
            if is_of_the_program(error) and _thread.get_native_id() == os.getpid():
                error.__traceback__ = own_traceback(error)
                raise_behind(error)
                return
            if isinstance(error, RecursionError):  # this call alone is lost, too
                return
            is_first, self._live = self._live, False  # mind switches CUPTI off
            self._note_calls(False)
            if is_first:
                self._folder.append("fault", f"{type(error).__name__}: {error}\n".encode())
        except BaseException:  # noqa: BLE001, S110 - nothing is left to do
            pass

    # Files

    def _write(self, name: str, document: Any) -> None:
        self._folder.append(name, as_json(document))


_CALLBACKS = frozenset(
    getattr(Recorder, name).__code__ for name in ("_call", "_call_and_wait", "_failed", "_request", "_complete")
)
"""Code that native code calls, of which an exception may get away."""
_RECORDINGS: list[Recorder] = []
"""All of this process. CUPTI calls into them until the process is gone."""
_FORKING: list[Recorder] = []
"""The one that knows of a fork that has begun."""


# The process's hooks


def _hook(recorder: Recorder) -> None:
    """Have the recorder notified of the process's end and its forks from now on; with the first one the hooks are
    set."""
    _RECORDINGS.append(recorder)
    if len(_RECORDINGS) == 1:
        program_os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)
    if not _UNHOOK:
        # The newest recording then:
        _UNHOOK.append(mind_unraisable(_CALLBACKS, lambda error: _RECORDINGS[-1].caught(error)))  # noqa: PLW0108
        _UNHOOK.append(at_end(lambda: _RECORDINGS[-1].finish()))  # noqa: PLW0108


_UNHOOK: list[Callable[[], None]] = []
"""What takes the hooks away again; those of a fork Python keeps."""


def unhook() -> None:
    """Leave the process as it was: the recording is over."""
    while _UNHOOK:
        _UNHOOK.pop()()


def _before_fork() -> None:
    _FORKING.append(_RECORDINGS[-1])
    _FORKING[-1].before_fork()


def _after_fork() -> None:
    _FORKING.pop().after_fork()


def _in_child() -> None:
    _FORKING.pop().in_child()


# Beginning and finding the recording


def start_recording(folder: SpoolFolder, library: str, is_minded: bool = False) -> bool:
    """Record this process from now on. False if that is not possible; the spool says why.

    Args:
        folder, library, is_minded: as of :class:`Recorder`.
    """
    recorder = Recorder(folder, library, is_minded)
    try:
        recorder.start()
    except (Refused, OSError) as error:
        recorder.refuse(error)
        return False
    return True


def before_exec() -> None:
    """This process becomes another program, in which nothing of this one is left."""
    if recorder := recorder_here():
        with recorder._switching:
            recorder._cupti.flush_all()
            recorder._catch_up()


def join_recording(spool: SpoolFolder, library: str) -> None:
    """Record this process beside the program that has started it, as long as that runs."""
    start_recording(spool.of_process(), library)


def recorder_here() -> Recorder | None:
    """The recorder of this process, until it ends; none in a child by fork."""
    return _RECORDINGS[-1] if _RECORDINGS and _RECORDINGS[-1].is_here else None


def newest_recorder() -> Recorder:
    """That of this process which was begun last."""
    return _RECORDINGS[-1]


def can_record_here() -> bool:
    """Whether a recording may begin: none goes on, nor did in the process of which this is a fork."""
    return not _RECORDINGS or _RECORDINGS[-1].has_ended
