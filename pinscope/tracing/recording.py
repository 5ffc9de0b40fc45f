"""Begins a recording of this process, and finds the one that goes on."""

from __future__ import annotations

import itertools
import os

from pinscope.tracing import process_hooks
from pinscope.tracing.cupti_library import Refused
from pinscope.tracing.recorder import Recorder


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
