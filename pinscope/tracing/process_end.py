"""The end of a process of the traced program, however it comes about."""

from __future__ import annotations

import atexit
import functools
import os as program_os
from collections.abc import Callable
from typing import NoReturn


def at_end(do: Callable[[], object]) -> Callable[[], None]:
    """Do something when the process ends: behind what the program has registered since, and before ``os._exit``, which
    skips what is registered. What is returned takes that back."""
    atexit.register(do)
    end = program_os._exit

    @functools.wraps(end)
    def exit_at_once(status: int) -> NoReturn:
        try:
            do()
        finally:  # whatever happens, the process ends here
            end(status)

    def take_back() -> None:
        atexit.unregister(do)
        if program_os._exit is exit_at_once:
            program_os._exit = end

    program_os._exit = exit_at_once
    return take_back
