"""Work that is put off until the program waits: behind a large copy no cache has what we would run."""

from __future__ import annotations

from collections import deque

from pinscope.tracing.bound import TYPE_CHECKING, _thread, bind

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

bind(globals())

MOST_WAITING = 1000
"""What is more is done at once."""


class Later:
    """Pieces of work in their order, from any thread."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Any, ...]] = deque()
        self._doing = _thread.RLock()  # a handler of a signal may make a copy in there

    def put_off(self, do: Callable[..., object], *arguments: Any) -> None:
        """A piece: call this."""
        self._waiting.append((do, arguments))
        if len(self._waiting) > MOST_WAITING:
            self.catch_up()

    def catch_up(self) -> bool:
        """Do all that waits; whether there was something."""
        waited = bool(self._waiting)
        while self._waiting:
            with self._doing:
                if self._waiting:  # else another thread has done it
                    do, arguments = self._waiting.popleft()
                    do(*arguments)
        return waited
