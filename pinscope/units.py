"""Numbers at the edge: SI inside PinScope (bytes, seconds, bytes/second), text only here.

GB/s is 1e9 bytes a second, GiB is 2**30 bytes; the two are never mixed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Context, Decimal

from pinscope.errors import InvalidParameter
from pinscope.text import one_line, quoted

MIB, GIB = 2**20, 2**30

_FACTORS = {
    "": 1,
    "B": 1,
    **{unit: 1000**power for power, letter in enumerate("KMGT", start=1) for unit in (letter, f"{letter}B")},
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_SIZE = re.compile(
    r"\s*(?P<number>[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,4})?)\s*(?P<unit>[A-Za-z]{0,3})\s*", re.ASCII
)
_BY_LOWER = {unit.lower(): factor for unit, factor in _FACTORS.items()}
_DURATIONS = {"": 1, "ms": 1e-3, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(
    r"\s*(?P<number>[0-9]{1,9}(\.[0-9]{1,9})?)\s*(?P<unit>ms|s|m|min|h|d|)\s*", re.IGNORECASE | re.ASCII
)
_PERCENTAGE = re.compile(r"\s*(?P<number>[+-]?[0-9]{1,9}(\.[0-9]{1,9})?)\s*%\s*", re.ASCII)
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_ACCURATE_DIGITS = 3
_LARGEST = 2**63 - 1
MOST_CHARACTERS = 500
"""Of a size or a duration; all its digits are then exact."""
_EXACT = Context(prec=MOST_CHARACTERS + 20)


def parse_bytes(text: str | int | float) -> int:
    """Bytes of a size such as ``64KiB``, ``1.5 GiB``, ``700G`` (1e9 bytes each), ``1e9`` or ``4096``.

    Raises:
        InvalidParameter: not a size, not a whole number of bytes, or beyond 63 bits.
    """
    if isinstance(text, int) and not isinstance(text, bool):
        value = Decimal(max(min(text, _LARGEST + 1), -_LARGEST - 1))
    else:
        match = _match(_SIZE, text)
        factor = _BY_LOWER.get(match["unit"].lower()) if match else None
        if match is None or factor is None:
            raise InvalidParameter(f"{quoted(text)} is not a size; write bytes or a unit, such as 64KiB, 1.5GiB or 1e9")
        value = _EXACT.multiply(Decimal(match["number"]), Decimal(factor))
    if abs(value) > _LARGEST:
        raise InvalidParameter(f"{quoted(text)} is larger than any memory")
    if value != value.to_integral_value():
        raise InvalidParameter(f"{quoted(text)} is not a whole number of bytes")
    return int(value)


def parse_seconds(text: str) -> float:
    """Seconds of a duration such as ``20ms``, ``90s``, ``10m``, ``2h`` or ``1d``; a bare number is one of seconds.

    Raises:
        InvalidParameter: not a duration.
    """
    match = _match(_DURATION, text)
    if match is None:
        raise InvalidParameter(
            f"{quoted(text)} is not a duration; write seconds or a unit, such as 20ms, 90s, 10m, 2h or 1d"
        )
    return float(match["number"]) * _DURATIONS[match["unit"].lower()]


def parse_share(text: str) -> float:
    """The fraction that a percentage is: ``2%`` is 0.02.

    Raises:
        InvalidParameter: not such a percentage.
    """
    match = _match(_PERCENTAGE, text)
    if match is None:
        raise InvalidParameter(f"{quoted(text)} is not a percentage; write a number with %, such as 2.5%")
    return float(match["number"]) / 100


def _match(pattern: re.Pattern[str], text: object) -> re.Match[str] | None:
    """A whole match; none of a truth value, nor of text that is longer than any number is written."""
    written = "" if isinstance(text, bool) else text if isinstance(text, str) else repr(text)
    return pattern.fullmatch(written) if len(written) <= MOST_CHARACTERS else None


def _digits(value: float) -> str:
    """Three significant digits, all before the point, never an exponent."""
    if value == 0:
        return "0"
    decimals = _ACCURATE_DIGITS - 1 - math.floor(math.log10(abs(value)))
    if abs(round(value, decimals)) >= 10 ** (_ACCURATE_DIGITS - decimals):  # 9.996 becomes 10.0
        decimals -= 1
    return f"{value:.{max(decimals, 0)}f}"


def format_bytes(value: float | None) -> str:
    """A memory size in binary units: ``64 KiB``, ``1.50 GiB``; ``n/a`` for ``None``."""
    if value is None:
        return "n/a"
    scaled, unit = float(value), _BINARY[0]
    for unit in _BINARY:
        if round(abs(scaled)) < 1024 or unit == _BINARY[-1]:
            break
        scaled /= 1024
    return f"{int(scaled)} {unit}" if scaled == int(scaled) else f"{_digits(scaled)} {unit}"


def exact_bytes(value: int) -> str:
    """A size that :func:`parse_bytes` reads back unchanged: a whole number of the largest binary unit."""
    factor, unit = next((1024**power, _BINARY[power]) for power in (4, 3, 2, 1, 0) if value % 1024**power == 0)
    return f"{value // factor} {unit}"


def format_bandwidth(value: float | None) -> str:
    """A data rate in GB/s (1e9 bytes a second); ``n/a`` for ``None``."""
    if value is None:
        return "n/a"
    return f"{_digits(value / 1e9)} GB/s"


def format_seconds(value: float | None) -> str:
    """A duration in the unit that keeps it between 1 and 1000: ``1.40 µs``, ``26.0 ms``, ``2.50 s``."""
    if value is None:
        return "n/a"
    if value == 0:
        return "0 s"
    for factor, unit in _SECONDS:
        # 999.5 ms and more would be written 1000 ms.
        if abs(value) >= factor * 0.9995 or unit == _SECONDS[-1][1]:
            break
    return f"{_digits(value / factor)} {unit}"


def format_duration(value: float) -> str:
    """A length of time for a sentence: as :func:`format_seconds` up to ten minutes, then ``20.0 min`` or ``2.45 h``."""
    for factor, unit, least in ((3600.0, "h", 3 * 3600.0), (60.0, "min", 600.0)):
        if value >= least:
            return f"{_digits(value / factor)} {unit}"
    return format_seconds(value)


def format_about(seconds: float, digits: int = 2) -> str:
    """``about 140 ms``: a time that is known only roughly, with so many digits."""
    number, unit = format_duration(float(f"{seconds:.{digits}g}")).split()
    return f"about {float(f'{float(number):.{digits}g}'):g} {unit}"


def format_share(value: float | None) -> str:
    """A fraction as per cent: ``0.981`` is ``98.1 %``, ``0.00003`` is ``0.003 %``; ``n/a`` for ``None``."""
    if value is None:
        return "n/a"
    if 0 < abs(value) < 0.0005:  # what is small is not nothing
        return "< 0.001 %" if 0 < value < 0.00001 else f"{value * 100:.3f} %"
    return f"{value * 100:.1f} %"


def format_change(ratio: float | None, of: float | None = None) -> str:
    """A ratio as a change: ``0.97`` is ``-3.0 %``; ``4.4 ×`` where it is more than double or less than half. An end of
    an interval is written as the ratio that the interval is ``of``."""
    if ratio is None or not math.isfinite(ratio):
        return "n/a"
    return f"{100 * (ratio - 1):+.1f} %" if 0.5 < (of or ratio) < 2 else format_value(ratio, "ratio")


def format_count(count: int, noun: str) -> str:
    """``1 copy``, ``4,096 copies``, ``2 processes``."""
    many = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else many}"


def format_bar(share: float | None, width: int) -> str:
    """A share as a bar of at most so many letters; of anything at all at least a thin one."""
    whole, eighths = divmod(math.ceil(min(share or 0.0, 1.0) * width * 8), 8)
    return "█" * whole + " ▏▎▍▌▋▊▉"[eighths].strip()


def format_heights(values: Sequence[float]) -> str:
    """A small histogram, a letter a value: a blank for nothing, the tallest for the largest."""
    most = max(values, default=0.0) or 1.0
    return "".join(" ▁▂▃▄▅▆▇█"[math.ceil(value / most * 8)] for value in values)


def format_precision(spread: float | None, repeats: int | None) -> str:
    """How well a figure is known: ``± 0.4 %``; ``(3 repeats)`` where they are too few for that; else empty."""
    if spread is not None:
        return f"± {format_share(spread)}"
    return "" if repeats is None else f"({format_count(repeats, 'repeat')})"


def format_measured(value: float | str | None, unit: str, spread: float | None, repeats: int | None = None) -> str:
    """A value and how well it is known, such as ``57.1 GB/s ± 0.4 %``."""
    precision = "" if value is None else format_precision(spread, repeats)
    return f"{format_value(value, unit)} {precision}".rstrip()


def format_value(value: float | str | bool | None, unit: str) -> str:
    """Text of a value by its SI unit: ``bytes``, ``bytes/second``, ``seconds``, ``ratio``, ``share`` or ``celsius``;
    else it is a count."""
    if value is None:
        return "n/a"
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    formats: Mapping[str, Callable[[float], str]] = {
        "bytes": format_bytes,
        "bytes/second": format_bandwidth,
        "seconds": format_duration,
        "share": format_share,
        "ratio": lambda ratio: f"{_digits(ratio)} ×",
        "celsius": lambda degrees: f"{degrees:.0f} °C",
    }
    if unit in formats:
        return formats[unit](value)
    return f"{value:,}" if isinstance(value, int) else f"{_digits(value)}"
