"""The memory that CUPTI writes its records to: mapped files, which survive the program's death."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable

from pinscope.tracing.mapped_file import map_file, part_from_file, unmap

BUFFER_BYTES = 1 << 20
"""Of one; CUPTI takes one for each thread, and new ones as they fill."""


class ActivityBuffers:
    """Those that CUPTI has, in files ``buffer.NUMBER``.

    Args:
        path: the full path of a file of this name.
    """

    def __init__(self, path: Callable[[str], str]) -> None:
        self._path = path
        self._numbers = itertools.count()
        self._files: dict[int, str] = {}

    def give(self) -> int:
        """Address of a new one.

        Raises:
            OSError: there is no room for it.
        """
        path = self._path(f"buffer.{next(self._numbers):06d}")
        address = map_file(path, BUFFER_BYTES)
        self._files[address] = path
        return address

    def take_back(self, address: int, valid: int) -> None:
        """CUPTI has written so many bytes, and no more will come; of an unknown one nothing is done."""
        path = self._files.pop(address, None)
        if path is None:
            return
        unmap(address, BUFFER_BYTES)
        os.truncate(path, valid)
        os.rename(path, f"{path}.done")  # noqa: PTH104

    def leave_to_parent(self) -> None:
        """In a forked child: what is written there from now on stays in this process; the files are the parent's."""
        for address in self._files:
            part_from_file(address, BUFFER_BYTES)
        self._files.clear()
