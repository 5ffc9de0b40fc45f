"""Numbers of stacks: the same for calls of the same line of the program's own, however they came there."""

from __future__ import annotations

import gc
import json
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from pinscope.tracing import stacks
from pinscope.tracing.stacks import MOST_FRAMES, Ranges, Stacks


class Kept:
    """Stacks, and what was written of them."""

    def __init__(self, *libraries: str) -> None:
        self.lines: list[tuple[int, list[Any]]] = []
        self.told: list[bytes] = []
        self.stacks = Stacks(libraries, lambda line: self.lines.append(tuple(json.loads(line))), self.told.append)

    def here(self) -> int:
        return self.stacks.number(_caller())


def _caller() -> FrameType | None:
    return sys._getframe(2)


def functions(folder: Path, file: str, text: str) -> dict[str, Callable[..., Any]]:
    """What a file of this text defines."""
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    defined: dict[str, Any] = {}
    exec(compile(text, str(path), "exec"), defined)  # noqa: S102 - its functions are the program
    return defined


def test_a_line_has_one_number_however_the_program_came_there(tmp_path: Path) -> None:
    kept = Kept()
    made = functions(tmp_path, "own.py", "def f(call): return call()\ndef g(call):\n    return f(call)\n")
    assert [made["f"](kept.here), made["g"](kept.here), made["f"](kept.here)] == [1, 1, 1]
    assert [(number, frames[0][1:]) for number, frames in kept.lines] == [(1, [1, "f"])]


def test_two_places_of_a_line_that_look_alike_are_told_apart(tmp_path: Path) -> None:
    """The same instructions at the same places of two functions."""
    kept = Kept()
    made = functions(tmp_path, "own.py", "def f(call): return call()\ndef g(call): return call()\n")
    assert [made["f"](kept.here), made["g"](kept.here), made["f"](kept.here), made["g"](kept.here)] == [1, 2, 1, 2]


def test_frames_of_a_library_are_looked_through_to_the_own_one_and_all_are_written(tmp_path: Path) -> None:
    kept = Kept()
    library = functions(tmp_path, "site-packages/library.py", "def load(call): return call()\n")
    own = functions(tmp_path, "own.py", "def f(load, call): return load(call)\ndef g(load, call): return load(call)\n")
    numbers = [own[name](library["load"], kept.here) for name in ("f", "g", "f", "g")]
    assert numbers == [1, 2, 1, 2]
    assert [[frame[2] for frame in frames[:2]] for _, frames in kept.lines] == [["load", "f"], ["load", "g"]]
    assert kept.lines[0][1][2][2].startswith("test_frames_of_a_library")


@pytest.mark.parametrize("deeper", [1, 2 * MOST_FRAMES])
def test_a_stack_without_a_frame_of_the_program_is_told_from_a_longer_one(deeper: int, tmp_path: Path) -> None:
    """All is a library here; of a stack that is too long the innermost frames count."""
    kept = Kept("/")
    made = functions(tmp_path, "own.py", "def f(call, depth): return f(call, depth - 1) if depth else call()\n")
    numbers = [made["f"](kept.here, depth) for depth in (0, deeper, 0, deeper)]
    assert numbers == [1, 2, 1, 2]
    assert made["f"](kept.here, 2 * MOST_FRAMES + 1) == (2 if deeper > MOST_FRAMES else 3)


def test_a_native_thread_has_a_number_too() -> None:
    kept = Kept()
    assert [kept.stacks.number(None), kept.stacks.number(None)] == [1, 1]
    assert kept.lines == [(1, [])]


def test_code_without_lines_has_line_0(tmp_path: Path) -> None:
    kept = Kept()
    call = functions(tmp_path, "own.py", "def f(call): return call()\n")["f"]
    call.__code__ = call.__code__.replace(co_linetable=b"")  # type: ignore[attr-defined] # a function
    call(kept.here)
    assert kept.lines[0][1][0][1:] == [0, "f"]


def test_a_program_may_make_up_any_amount_of_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the most stacks calls have the number of a stack without frames, and nothing more is kept."""
    monkeypatch.setattr(stacks, "MOST_STACKS", 10)
    kept, living = Kept(), []
    for number in range(30):
        made = functions(tmp_path, f"own{number}.py", "def f(call): return call()\n")
        living.append(weakref.ref(made["f"].__code__))
        assert made["f"](kept.here) == min(number + 1, 11)
    first = functions(tmp_path, "own.py", "def f(call): return call()\n")
    assert first["f"](kept.here) == 11
    del made, first
    gc.collect()
    assert sum(code() is not None for code in living) == 10
    assert [number for number, _ in kept.lines] == list(range(1, 12))
    assert kept.lines[-1][1] == []
    assert kept.told == [b"the program has more than 10 stacks\n"]
    assert len(kept.stacks._files) <= 20


# The open ranges of threads


def test_parts_may_end_in_any_order() -> None:
    open_ranges = Ranges(lambda _: None)
    for name in ("load", "step"):
        open_ranges.enter_part(name)
    load, step = 1, 2
    open_ranges.leave_part("load")
    assert open_ranges.current() == step
    open_ranges.enter_part("load")
    open_ranges.leave_part("step")
    assert open_ranges.current() == load
    open_ranges.leave_part("load")
    assert open_ranges.current() == 0


def test_threads_that_end_within_a_range_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "MOST_THREADS", 4)
    open_ranges = Ranges(lambda _: None)
    open_ranges.push("of the main thread", 0)
    for _ in range(20):
        thread = threading.Thread(target=open_ranges.push, args=("never popped", 0))
        thread.start()
        thread.join()
        assert len(open_ranges._open) <= 4
    assert open_ranges.current() == 1
