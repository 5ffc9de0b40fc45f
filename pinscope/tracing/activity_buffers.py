"""The memory that CUPTI writes its records to: mapped files, which survive the program's death."""

from __future__ import annotations

import itertools

from pinscope.tracing.bound import bind, os
from pinscope.tracing.mapped_file import map_file, part_from_file, unmap
from pinscope.tracing.spool_folder import SpoolFolder

bind(globals())


BUFFER_BYTES = 1 << 20
"""Of one; CUPTI takes one for each thread, and new ones as they fill."""


class ActivityBuffers:
    """Those that CUPTI has, in files ``buffer.NUMBER``.

    Args:
        folder: where the files are made.
    """

    def __init__(self, folder: SpoolFolder) -> None:
        self._folder = folder
        self._numbers = itertools.count()
        self._files: dict[int, str] = {}

    def give(self) -> int:
        """Address of a new one.

        Raises:
            OSError: there is no room for it.
        """
        name = f"buffer.{next(self._numbers):06d}"
        address = map_file(self._folder, name, BUFFER_BYTES)
        self._files[address] = name
        return address

    def take_back(self, address: int, valid: int) -> None:
        """CUPTI has written so many bytes, and no more will come; of an unknown one nothing is done."""
        name = self._files.pop(address, None)
        if name is None:
            return
        unmap(address, BUFFER_BYTES)
        descriptor = self._folder.open(name, os.O_WRONLY)
        try:
            os.truncate(descriptor, valid)
        finally:
            os.close(descriptor)
        self._folder.rename(name, f"{name}.done")

    def leave_to_parent(self) -> None:
        """In a forked child: what is written there from now on stays in this process; the files are the parent's."""
        for address in self._files:
            part_from_file(address, BUFFER_BYTES)
        self._files.clear()
