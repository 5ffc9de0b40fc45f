"""The charts of a run, which nobody draws before they are looked at. Plotly is imported then."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from threading import Lock
from typing import TYPE_CHECKING, overload

from pinscope.errors import PinScopeError

if TYPE_CHECKING:
    from pinscope.charts.marks import Chart


class LazyCharts(Sequence["Chart"]):
    """Charts, each drawn when somebody first looks at it: that takes a tenth of a second and more.

    Args:
        drawn: gives them in their order.
    """

    def __init__(self, drawn: Iterable[Chart]) -> None:
        self._rest = iter(drawn)
        self._there: list[Chart] = []
        self._all = False
        self._error: PinScopeError | None = None
        self._lock = Lock()  # pages share what they have opened

    def may_have_more_than(self, count: int) -> bool:
        """Whether there are, or may be, more than so many. Draws none."""
        return not self._all or len(self._there) > count

    def _reach(self, count: int | None) -> None:
        """Draw the first ones, all for ``None``."""
        with self._lock:
            while not self._all and (count is None or len(self._there) < count):
                if self._error:  # what broke off draws nothing more
                    raise self._error
                try:
                    chart = next(self._rest, None)
                except PinScopeError as error:
                    self._error = error
                    raise
                self._there += [chart] if chart else []
                self._all = chart is None

    def __bool__(self) -> bool:
        self._reach(1)
        return bool(self._there)

    def __len__(self) -> int:
        self._reach(None)
        return len(self._there)

    @overload
    def __getitem__(self, place: int) -> Chart: ...
    @overload
    def __getitem__(self, place: slice) -> list[Chart]: ...
    def __getitem__(self, place: int | slice) -> Chart | list[Chart]:
        self._reach(place + 1 if isinstance(place, int) and place >= 0 else None)
        return self._there[place]
