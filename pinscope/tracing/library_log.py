"""What calls of libraries leave in the spool: those that move data of the host, copies that are watched, and reads of
what they copied."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from sys import _getframe
from types import FrameType
from typing import Any

from pinscope.tracing.bound import as_json, bind, time
from pinscope.tracing.mapped_file import HOST_ENTRY, READ_ENTRY, CallLog
from pinscope.tracing.spool_folder import SpoolFolder

bind(globals())


class LibraryLog:
    """Those of one process.

    Args:
        folder: of its spool.
        stack: gives the number of the stack above a frame.

    Attributes:
        watched: entries of copies that are watched, and of reads; they wait for :meth:`flush`, as CUPTI's records of
            these copies do.
    """

    def __init__(self, folder: SpoolFolder, stack: Callable[[FrameType | None], int]) -> None:
        self._folder, self._stack = folder, stack
        self._calls = CallLog(folder, "host_calls", HOST_ENTRY)
        self.watched: deque[tuple[int, int, int, int]] = deque()
        self._names: dict[tuple[str, str], int] = {}
        self._next_name = itertools.count(1)

    def note_call(
        self,
        thread: int,
        range_number: int,
        name: str,
        stack: int,
        described: tuple[int, int, str],
        begun: int,
        ended: int,
        before: Any,
        after: Any,
    ) -> None:
        """A call that moved data of the host is over.

        Args:
            thread: that made it.
            range_number: that was open in it.
            name: of the call.
            stack: number of that which it came from.
            described: bytes, flags, and what was done to the data.
            begun, ended: when.
            before, after: what the thread had used then, as ``getrusage`` says.
        """
        size, flags, detail = described
        processor = int((after[0] - before[0] + after[1] - before[1]) * 1e9)
        minor, major = after[6] - before[6], after[7] - before[7]
        number = self._number(name, detail)
        self._calls.note(number, thread, stack, range_number, flags, major, begun, ended, size, processor, minor)

    def note_watched(self, copies: Sequence[int]) -> None:
        """The copies that have these correlation ids are watched."""
        self.watched += [(copy, 0, 0, 0) for copy in copies]

    def note_done(self) -> None:
        """The program was told that the GPU is done."""
        self.watched.append((0, 0, 0, time.time_ns()))

    def note_read(self, copies: Sequence[int], name: str, moment: int) -> None:
        """The data of these copies was read then, in this thread.

        Args:
            copies: their correlation ids.
            name: of the call.
            moment: when.
        """
        number, stack = self._number(name, ""), self._stack(_getframe(1))
        self.watched += [(copy, number, stack, moment) for copy in copies]

    def flush(self) -> None:
        """Write what waits for it."""
        entries = [self.watched.popleft() for _ in range(len(self.watched))]
        if entries:
            self._folder.append("watched", b"".join([READ_ENTRY.pack(*entry) for entry in entries]))

    def _number(self, name: str, detail: str) -> int:
        return self._names.get((name, detail)) or self._add_name(name, detail)

    def _add_name(self, name: str, detail: str) -> int:
        number = next(self._next_name)  # one that a signal's handler takes away is not used
        self._folder.append("host_names", as_json([number, [name, detail]]) + b"\n")
        return self._names.setdefault((name, detail), number)

    def close(self) -> None:
        """No more calls come."""
        self._calls.close()
