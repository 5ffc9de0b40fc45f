"""Changes PyTorch and CuPy when the program imports them, so that chosen copies come from pinned memory."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from pinscope.tracing import redirect_cupy, redirect_torch
from pinscope.tracing.redirect import Redirect
from pinscope.tracing.spool_folder import SpoolFolder


def start_redirecting(folder: SpoolFolder, plan: Mapping[str, Any]) -> None:
    """Redirect what the plan says.

    Args:
        folder: of the spool.
        plan: the lines, and how much may be pinned.
    """
    redirect = Redirect(folder, plan)
    redirect.write_at_end()
    patches = {**redirect_torch.PATCHES, **redirect_cupy.PATCHES}
    sys.meta_path.insert(0, _Imports({name: functools.partial(each, redirect) for name, each in patches.items()}))


class _Imports:
    """Changes a module when the program has imported it; it stands first on ``sys.meta_path``."""

    def __init__(self, patches: dict[str, Callable[[ModuleType], None]]) -> None:
        self._patches = patches

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The module as the next finder has it, with the change behind its execution."""
        if name not in self._patches:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec is None or spec.loader is None:
            return spec
        loader = spec.loader
        execute = loader.exec_module

        def execute_and_patch(module: ModuleType) -> None:
            execute(module)
            if (patch := self._patches.pop(name, None)) is not None:  # a program may find a module and not execute it
                patch(module)

        loader.exec_module = execute_and_patch  # type: ignore[method-assign] # of this loader, which is this module's
        return spec
