"""Lets the copies of chosen lines come from pinned memory, inside the program and without editing it.

Nothing is imported for the program: PyTorch and CuPy are changed when the program itself imports them. The data of a
redirected copy is gathered into a pinned buffer that is kept, and copied from there without waiting; the program may
change its own memory at once, as after a pageable copy. What fails here leaves the copy as the program made it.

At the end ``redirected.json`` in the spool says what was done for each line.
"""

from __future__ import annotations

import _thread
import os
import sys
import time
from collections.abc import Callable, Mapping
from types import CodeType, FrameType
from typing import Any

from pinscope.tracing.bound import as_json
from pinscope.tracing.process_end import at_end
from pinscope.tracing.spool_folder import SpoolFolder
from pinscope.tracing.stacks import OwnLines

ACCOUNT = "redirected.json"


class Line:
    """A chosen line of the program, and what was done for it. Times are in nanoseconds."""

    def __init__(self, file: str, line: int) -> None:
        self.file = file
        self.line = line
        self.copies = 0
        self.bytes = 0
        self.gather_ns = 0
        """Copying into pinned memory, on the CPU."""
        self.wait_ns = 0
        """Until the GPU had read a buffer that was needed again."""
        self.pin_ns = 0
        self.pinned_bytes = 0
        self.left: dict[str, list[int]] = {}
        """Why copies were left as they were → how many, and their bytes."""

    def leave(self, reason: str, size: int) -> None:
        """Count a copy that stays as it is."""
        kept = self.left.setdefault(reason, [0, 0])
        kept[0] += 1
        kept[1] += size

    def document(self) -> dict[str, Any]:
        """As the parent reads it."""
        return dict(vars(self))


class Redirect:
    """What is redirected in this process.

    Args:
        folder: of the spool.
        plan: the lines, and how much may be pinned.
        is_pinned: whether a tensor lies in pinned memory.
    """

    def __init__(self, folder: SpoolFolder, plan: Mapping[str, Any], is_pinned: Callable[[Any], bool]) -> None:
        self.is_pinned = is_pinned
        self._folder = folder
        self._process = os.getpid()
        self._own = OwnLines(plan["libraries"])
        self._holding: dict[CodeType, bool] = {}
        self.large_bytes: int = plan["large_bytes"]
        """Copies of no more are left alone: CUDA keeps their data itself."""
        self.all_loaders: bool = plan["all_loaders"]
        self.budget = Budget(plan["most_bytes"])
        self.lines = {(os.path.realpath(file), line): Line(file, line) for file, line in plan["lines"]}
        self.loaders: dict[tuple[str, int], Line] = {}
        """Where a DataLoader that now pins its batches is iterated over, and what of them it could not pin."""

    def write_at_end(self) -> None:
        """Write the account when the program ends."""
        at_end(self._write)

    def chosen(self) -> Line | None:
        """The line of the program that calls now, if it is to be redirected."""
        frame = self.own_frame()
        return self.line_of(frame) if frame is not None else None

    def own_frame(self) -> FrameType | None:
        """The innermost frame of the program's own code."""
        return self._own.innermost(sys._getframe(1))

    def line_of(self, frame: FrameType) -> Line | None:
        """The chosen line at which a frame stands."""
        return self.lines.get(self._own.place(frame))

    def holds_chosen(self, code: CodeType) -> bool:
        """Whether a chosen line lies in this function."""
        held = self._holding.get(code)
        if held is None:
            file = self._own.real(code.co_filename) or ""
            held = any((file, line) in self.lines for _, _, line in code.co_lines() if line is not None)
            self._holding[code] = held
        return held

    def place(self, frame: FrameType) -> tuple[str, int]:
        """File and line of a frame."""
        return self._own.place(frame)

    def _write(self) -> None:
        if os.getpid() != self._process:
            return
        accounts = {"lines": self.lines, "loaders": self.loaders}
        document = {name: [line.document() for line in lines.values()] for name, lines in accounts.items()}
        self._folder.write(ACCOUNT, as_json(document))


class Budget:
    """How much may be pinned, of all buffers together.

    Args:
        size: in bytes.
    """

    def __init__(self, size: int) -> None:
        self._left = size
        self._lock = _thread.allocate_lock()

    def take(self, size: int) -> bool:
        """Whether so many bytes were left; they are not any more."""
        with self._lock:
            if size > self._left:
                return False
            self._left -= size
            return True

    def give(self, size: int) -> None:
        """Bytes that are no longer pinned."""
        with self._lock:
            self._left += size


class Buffer:
    """Pinned memory that one copy at a time uses.

    Attributes:
        memory: as the library gave it.
        size: in bytes.
        event: behind the last copy from it; ``None`` before the first.
        key, view: how the memory was looked at last.
    """

    def __init__(self, memory: Any, size: int) -> None:
        self.memory = memory
        self.size = size
        self.event: Any = None
        self.key: Any = None
        self.view: Any = None


class Ring:
    """The buffers of a line on one device. They are used in turn.

    There are as few as do: one where the GPU has read the data before the next is there, two where copies run behind
    the program. Once waits for a buffer that left the GPU without copies have taken as long as pinning one does, one
    more is allowed.

    Args:
        line: whose figures it keeps.
        budget: of all rings.
        allocate: gives pinned memory of so many bytes.
        is_done: whether the GPU has passed an event.
        wait: until it has.
    """

    MOST_BUFFERS = 16
    LEAST_BYTES = 1 << 20

    def __init__(
        self,
        line: Line,
        budget: Budget,
        allocate: Callable[[int], Any],
        is_done: Callable[[Any], bool],
        wait: Callable[[Any], object],
    ) -> None:
        self._line = line
        self._budget = budget
        self._allocate, self._is_done, self._wait = allocate, is_done, wait
        self._buffers: list[Buffer] = []  # those that no thread fills now; the one used longest ago is the first
        self._made = 0
        self._most = 2
        self._waited_ns = 0
        """Since a buffer was last given back."""
        self._starved_ns = 0
        self._pins = self._pin_ns = 0

    def take(self, size: int) -> Buffer | None:
        """A buffer of at least so many bytes whose last copy is over; ``None`` where no more may be pinned."""
        fitting = next((buffer for buffer in self._buffers if buffer.size >= size), None)
        if fitting is not None and self._is_free(fitting):
            return self._taken(fitting)
        if self._made >= self._most:
            self._drop_small(size)
        if self._made < self._most and (made := self._make(size)) is not None:
            return made
        if fitting is not None:
            self._wait_for(fitting)
            return self._taken(fitting)
        return None

    def give(self, buffer: Buffer, copied: int) -> None:
        """The copy of so many bytes from it was started; its event stands behind the copy."""
        self._line.copies += 1
        self._line.bytes += copied
        if self._waited_ns and self._buffers and self._is_free(self._buffers[-1]):
            self._starved_ns += self._waited_ns  # the copies before this one were over meanwhile
        self._waited_ns = 0
        if self._starved_ns and self._starved_ns * self._pins >= self._pin_ns:
            self._most, self._starved_ns = min(self._most + 1, self.MOST_BUFFERS), 0
        self._buffers.append(buffer)

    def stage(self, size: int, copied: int, gather: Callable[[Buffer], Any]) -> tuple[Buffer, Any] | None:
        """A buffer, and the data that was gathered in it; ``None`` where the copy stays as the program made it: the
        line's account says why.

        Args:
            size: of the buffer, in bytes.
            copied: bytes of the program's copy.
            gather: copies the data into the buffer, and gives what is to be copied from there.
        """
        try:
            buffer = self.take(size)
            if buffer is None:
                self._line.leave("more would be pinned than may be", copied)
                return None
            return buffer, self._fill(buffer, gather)
        except Exception as error:  # noqa: BLE001 - the program's own copy is still possible
            self._line.leave(f"{type(error).__name__}: {error}"[:200], copied)
            return None

    def _fill(self, buffer: Buffer, gather: Callable[[Buffer], Any]) -> Any:
        begun = time.perf_counter_ns()
        try:
            staged = gather(buffer)
        except BaseException:
            self._buffers.insert(0, buffer)
            raise
        self._line.gather_ns += time.perf_counter_ns() - begun
        return staged

    def _taken(self, buffer: Buffer) -> Buffer:
        self._buffers.remove(buffer)
        return buffer

    def _is_free(self, buffer: Buffer) -> bool:
        return buffer.event is None or self._is_done(buffer.event)

    def _wait_for(self, buffer: Buffer) -> None:
        if self._is_free(buffer):
            return
        begun = time.perf_counter_ns()
        self._wait(buffer.event)
        waited = time.perf_counter_ns() - begun
        self._line.wait_ns += waited
        self._waited_ns += waited

    def _make(self, size: int) -> Buffer | None:
        rounded = max(1 << (size - 1).bit_length(), self.LEAST_BYTES)
        if not self._budget.take(rounded):
            return None
        begun = time.perf_counter_ns()
        try:
            memory = self._allocate(rounded)
        except BaseException:
            self._budget.give(rounded)
            raise
        took = time.perf_counter_ns() - begun
        self._pins, self._pin_ns = self._pins + 1, self._pin_ns + took
        self._line.pin_ns += took
        self._line.pinned_bytes += rounded
        self._made += 1
        return Buffer(memory, rounded)

    def _drop_small(self, size: int) -> None:
        """Make room for a larger buffer in place of one that is too small, the one used longest ago."""
        small = next((buffer for buffer in self._buffers if buffer.size < size), None)
        if small is not None:
            self._wait_for(small)
            self._buffers.remove(small)
            self._budget.give(small.size)
            self._made -= 1
