"""Begins a recording of this process, and finds the one that goes on."""

from __future__ import annotations

import itertools
import os

from pinscope.tracing import process_hooks
from pinscope.tracing.cupti_library import Refused
from pinscope.tracing.recorder import Recorder
from pinscope.tracing.spool_folder import SpoolFolder


def start_recording(folder: SpoolFolder, library: str) -> bool:
    """Record this process from now on. False if that is not possible; the spool says why.

    Args:
        folder: of the spool.
        library: CUPTI's.
    """
    recorder = Recorder(folder, library)
    try:
        recorder.start()
    except (Refused, OSError) as error:
        recorder.refuse(error)
        return False
    return True


def join_recording(spool: SpoolFolder, library: str) -> None:
    """Record this process beside the program that has started it, as long as that runs."""
    for number in itertools.count():  # the same process may have run another program before
        try:
            folder = spool.of_process(f"process.{os.getpid()}.{number}")
        except FileExistsError:
            continue
        start_recording(folder, library)
        return


def recorder_here() -> Recorder | None:
    """The recorder of this process, until it ends; none in a child by fork."""
    newest = process_hooks.newest()
    return newest if isinstance(newest, Recorder) and newest.is_here else None


def can_record_here() -> bool:
    """Whether a recording may begin: none goes on, nor did in the process of which this is a fork."""
    newest = process_hooks.newest()
    return newest is None or (isinstance(newest, Recorder) and newest.has_ended)
