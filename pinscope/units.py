"""Numbers at the edge: SI inside PinScope (bytes, seconds, bytes/second), text only here.

GB/s is 1e9 bytes a second, GiB is 2**30 bytes; the two are never mixed.
"""

from __future__ import annotations

import re

from pinscope.errors import InvalidParameter

_FACTORS = {
    "": 1,
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_SIZE = re.compile(r"\s*(?P<number>[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?)\s*(?P<unit>[A-Za-z]*)\s*")
_BY_LOWER = {unit.lower(): factor for unit, factor in _FACTORS.items()}
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_ACCURATE_DIGITS = 3


def parse_bytes(text: str | int | float) -> int:
    """Bytes of a size such as ``64KiB``, ``1.5 GiB``, ``1e9`` or ``4096``.

    Raises:
        InvalidParameter: not a size, or not a whole number of bytes.
    """
    if isinstance(text, bool):
        raise InvalidParameter(f"{text!r} is not a size; write bytes or a unit, such as 64KiB or 1e9")
    if isinstance(text, int):
        return text
    match = _SIZE.fullmatch(str(text))
    factor = _BY_LOWER.get(match["unit"].lower()) if match else None
    if match is None or factor is None:
        raise InvalidParameter(f"{text!r} is not a size; write bytes or a unit, such as 64KiB, 1.5GiB or 1e9")
    try:
        value = float(match["number"]) * factor
        if value != int(value):
            raise InvalidParameter(f"{text!r} is not a whole number of bytes")
    except OverflowError:
        raise InvalidParameter(f"{text!r} is larger than any memory") from None
    # Whole numbers go through int(): a float holds only 53 bits.
    number = match["number"].lstrip("+")
    return int(number) * factor if number.lstrip("-").isdigit() else int(value)


def _digits(value: float) -> str:
    """Three significant digits without an exponent or trailing zeros after the point."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:#.{_ACCURATE_DIGITS}g}"


def format_bytes(value: float | None) -> str:
    """A memory size in binary units: ``64 KiB``, ``1.5 GiB``; ``n/a`` for ``None``."""
    if value is None:
        return "n/a"
    scaled, unit = float(value), _BINARY[0]
    for unit in _BINARY:  # noqa: B007 - the unit that the loop stops at is the answer
        if abs(scaled) < 1024 or unit == _BINARY[-1]:
            break
        scaled /= 1024
    if scaled == int(scaled):
        return f"{int(scaled)} {unit}"
    return f"{_digits(scaled)} {unit}"


def format_bandwidth(value: float | None) -> str:
    """A data rate in GB/s (1e9 bytes a second); ``n/a`` for ``None``."""
    if value is None:
        return "n/a"
    return f"{_digits(value / 1e9)} GB/s"


def format_seconds(value: float | None) -> str:
    """A duration in the unit that keeps it between 1 and 1000: ``1.40 µs``, ``26.0 ms``, ``2.50 s``."""
    if value is None:
        return "n/a"
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if abs(value) >= factor:
            return f"{_digits(value / factor)} {unit}"
    return f"{_digits(value / 1e-9)} ns" if value else "0 s"


def format_share(value: float | None) -> str:
    """A fraction as per cent: ``0.981`` is ``98.1 %``; ``n/a`` for ``None``."""
    if value is None:
        return "n/a"
    return f"{value * 100:.1f} %"


def format_value(value: float | str | bool | None, unit: str) -> str:
    """Text of a value by its SI unit (``bytes``, ``bytes/second``, ``seconds``, ``ratio``, ``share``, ``count``)."""
    if value is None:
        return "n/a"
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    formats = {
        "bytes": format_bytes,
        "bytes/second": format_bandwidth,
        "seconds": format_seconds,
        "share": format_share,
    }
    if unit in formats:
        return formats[unit](value)
    if unit == "ratio":
        return f"{_digits(value)} ×"
    return f"{value:,}" if isinstance(value, int) else f"{_digits(value)}"
