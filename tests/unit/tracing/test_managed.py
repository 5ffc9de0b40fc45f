"""At which line a program with managed memory stands: the thread that works is known, or no line is."""

from __future__ import annotations

import _thread
import queue
import sys
import threading
import time
from pathlib import Path
from types import FrameType

import pytest

from pinscope.tracing import managed
from pinscope.tracing.stacks import OURS


def frame_of(file: str) -> FrameType:
    """The only frame of a thread, in a file."""
    names: dict[str, FrameType] = {}
    code = compile("import sys\nframe = sys._getframe()", file, "exec")
    _thread.start_new_thread(exec, (code, names))
    while "frame" not in names:
        time.sleep(0.001)
    return names["frame"]


@pytest.mark.parametrize(
    ("threads", "works"),
    [
        (["/srv/train.py"], 0), (["/srv/train.py", f"{OURS}/recorder.py", f"{OURS}/mapped_file.py"], 0),
        ([threading.__file__, "/srv/train.py"], 1), ([threading.__file__], 0),
        (["/srv/train.py", "/srv/other.py"], None), ([threading.__file__, queue.__file__], None),
    ],
)  # fmt: skip
def test_the_thread_that_works_is_the_only_one_that_does_not_wait_in_python_s_library(
    threads: list[str], works: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = dict(enumerate(map(frame_of, threads)))
    monkeypatch.setattr(managed, "_current_frames", lambda: frames)
    assert managed._working() is (None if works is None else frames[works])


def test_a_callback_in_a_thread_of_the_program_is_the_program_s() -> None:
    """It has the program's frames below ours."""
    assert not managed._is_ours(sys._getframe())


@pytest.mark.parametrize(("process", "has_managed"), [(740, True), (725, False), (749, False)])
def test_memory_of_the_driver_s_own_is_no_managed_memory(process: int, has_managed: bool) -> None:
    maps = Path(__file__).parents[2] / "data" / "proc" / "h200-holders" / "proc" / str(process) / "maps"
    assert managed.holds_managed(maps.read_bytes()) == has_managed
