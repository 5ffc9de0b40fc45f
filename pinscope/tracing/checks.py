"""``pinscope.check``, and the arrays that a program saves: their sums, for comparison with another run of it.

Each line of ``checks`` in the spool is one array: what it is called, file and line, the sum of its type, shape and
bytes. It imports the standard library only; NumPy is the program's.
"""

from __future__ import annotations

import hashlib
import sys
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pinscope.errors import BadInput
from pinscope.tracing.bound import as_json
from pinscope.tracing.library_calls import change_function, when_imported
from pinscope.tracing.recorder import recorder_here
from pinscope.tracing.spool_folder import SpoolFolder
from pinscope.tracing.stacks import MOST_CHARACTERS, OwnLines

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from pinscope.tracing.library_calls import Call

CHECKS = "checks"
_NUMPY = ("save", "savez", "savez_compressed", "savetxt")
"""Functions that save the arrays among their arguments. CuPy's call them."""


class Checks:
    """The sums of this process.

    Args:
        folder: of the spool.
        libraries: as of :func:`pinscope.tracing.stacks.is_own`.
    """

    def __init__(self, folder: SpoolFolder, libraries: Sequence[str]) -> None:
        self._folder = folder
        self._own = OwnLines(libraries)

    def start(self) -> None:
        """Keep sums from now on, also of what is saved."""
        _KEPT.append(self)
        when_imported("numpy", self._change_numpy)
        when_imported("torch", self._change_torch)

    def keep(self, name: str, total: str) -> None:
        """Write down one sum, for the line that calls."""
        if recorder_here() is None:  # a child by fork
            return
        frame = self._own.innermost(sys._getframe(1))
        file, line = ("", 0) if frame is None else self._own.place(frame)
        self._folder.append(CHECKS, as_json([name, file, line, total]) + b"\n")

    def _change_numpy(self, numpy: ModuleType) -> None:
        for name in _NUMPY:
            change_function(numpy, name, partial(self._saving, f"numpy.{name}"))

    def _change_torch(self, torch: ModuleType) -> None:
        change_function(torch, "save", self._saving_torch)

    def _saving(self, name: str, save: Call) -> Call:
        def saved(*arguments: Any, **named: Any) -> Any:
            for argument in (*arguments, *named.values()):
                if (total := sum_of(argument)) is not None:
                    self.keep(name, total)
            return save(*arguments, **named)

        return saved

    def _saving_torch(self, save: Call) -> Call:
        def saved(obj: Any, f: Any, *arguments: Any, **named: Any) -> Any:
            written = _Written()
            save(obj, written, *arguments, **named)
            self.keep("torch.save", written.sum.hexdigest())
            return save(obj, f, *arguments, **named)

        return saved


_KEPT: list[Checks] = []
"""That of this process, where sums are kept."""


class _Written:
    """A file that only sums up."""

    def __init__(self) -> None:
        self.sum = hashlib.sha256()

    def write(self, content: Any) -> int:
        self.sum.update(content)
        return len(content)

    def flush(self) -> None:
        pass


def check(name: str, array: Any) -> None:
    """See :func:`pinscope.check`."""
    if not isinstance(name, str) or not name.strip():
        raise BadInput("an array to compare needs a name, such as pinscope.check('loss', loss)")
    if not _KEPT:
        return
    total = sum_of(array)
    if total is None:
        raise BadInput(f"pinscope.check({name[:40]!r}, …) takes an array of numbers, not {type(array).__name__}")
    _KEPT[-1].keep(name[:MOST_CHARACTERS], total)


def sum_of(array: Any) -> str | None:
    """Of an array's type, shape and bytes, as they are now; ``None`` of what is no array of numbers."""
    if hasattr(array, "detach"):  # PyTorch's
        tensor = array.detach().to_dense() if array.is_sparse else array.detach()
        tensor = tensor.cpu().resolve_conj().resolve_neg().contiguous()
        kind, shape = str(tensor.dtype), tuple(tensor.shape)
        content = tensor.reshape(-1).view(sys.modules["torch"].uint8).numpy()
    else:
        numpy = import_module("numpy")
        content = numpy.asarray(array.get() if hasattr(array, "__cuda_array_interface__") else array)
        kind, shape = str(content.dtype), content.shape
        if content.dtype.hasobject or content.dtype.kind in "US":
            return None
        content = numpy.ascontiguousarray(content).reshape(-1).view(numpy.uint8)
    total = hashlib.sha256(f"{kind} {shape}".encode())
    total.update(content)
    return total.hexdigest()
