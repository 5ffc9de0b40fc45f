"""Puts calls of ours in the place of a library's methods and functions, when the program has imported the library.

Nothing is imported for the program. Who changes the same method later stands around who changed it before.
"""

from __future__ import annotations

import functools
import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import MethodType, ModuleType

from pinscope.tracing.bound import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Call = Callable[..., Any]


class Changed:
    """A method that passes for the one in its place: classes of tensors look those up that they know, in lists and
    tables made when PyTorch was imported.

    Args:
        method: the new one.
        original: the one before.
        kind: the class that has it.
    """

    def __init__(self, method: Call, original: Call, kind: type) -> None:
        functools.update_wrapper(self, original)  # first: the original may be one of these, whose attributes it takes
        self._method, self._original, self._kind = method, original, kind

    def __get__(self, instance: Any, kind: Any = None) -> Any:
        return self if instance is None else MethodType(self._method, instance)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._method(*arguments, **named)

    def __eq__(self, other: object) -> bool:
        return other is self or bool(self._original == other)

    def __hash__(self) -> int:
        return hash(self._original)

    def __reduce__(self) -> tuple[Call, tuple[type, str]]:
        return getattr, (self._kind, self._original.__name__)  # where the library is not changed, the original

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


def change_method(kind: type, name: str, around: Callable[[Call], Call]) -> None:
    """Put a method in the place of another.

    Args:
        kind: the class.
        name: of the method.
        around: gives the new one, which gets the instance first, from the one before.
    """
    original: Call = getattr(kind, name)
    before = original._method if type(original) is Changed else original  # it is called for less
    _put(kind, name, Changed(functools.wraps(original)(around(before)), original, kind))


def change_function(module: ModuleType, name: str, around: Callable[[Call], Call]) -> None:
    """Put a function of a module in the place of another; arguments as of :func:`change_method`."""
    original: Call = getattr(module, name)
    _put(module, name, functools.wraps(original)(around(original)))


def _put(owner: Any, name: str, new: Any) -> None:
    before = vars(owner).get(name, _INHERITED)

    def take_back() -> None:
        if vars(owner).get(name) is not new:  # who has changed it since calls ours
            return
        if before is _INHERITED:
            delattr(owner, name)
        else:
            setattr(owner, name, before)

    setattr(owner, name, new)
    WHEN_OVER.append(take_back)


_INHERITED = object()
WHEN_OVER: list[Callable[[], object]] = []
"""What takes the changes back, in their order."""


def take_changes_back() -> None:
    """Leave each library as it was, where the program goes on without us."""
    while WHEN_OVER:
        WHEN_OVER.pop()()


def when_imported(name: str, change: Callable[[Any], object]) -> None:
    """Change a module once the program has executed it; at once where it has.

    Args:
        name: of the module.
        change: gets the module.
    """
    spec = getattr(sys.modules.get(name), "__spec__", None)
    if spec is not None and not getattr(spec, "_initializing", False):
        change(sys.modules[name])
        return
    if not _AWAITED:
        _put(PathFinder, "find_spec", _found)  # a program may look at sys.meta_path
        WHEN_OVER.append(_AWAITED.clear)
    _AWAITED.setdefault(name, []).append(change)


_AWAITED: dict[str, list[Callable[[Any], object]]] = {}
"""Module → its changes."""
_find = PathFinder.find_spec


def _found(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
    """A module as Python finds it on its path, with the changes behind its execution."""
    spec = _find(name, path, target)
    if name not in _AWAITED or spec is None or spec.loader is None:
        return spec
    loader = spec.loader
    execute = loader.exec_module

    def execute_and_change(module: ModuleType) -> None:
        execute(module)
        for change in _AWAITED.pop(name, ()):  # a program may find a module and not execute it
            change(module)

    loader.exec_module = execute_and_change  # type: ignore[method-assign] # of this loader, which is this module's
    return spec
