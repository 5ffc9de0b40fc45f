"""Numbers at the edge: what is typed in, and what is shown."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinscope.errors import InvalidParameter
from pinscope.units import (
    exact_bytes,
    format_bandwidth,
    format_bytes,
    format_change,
    format_count,
    format_duration,
    format_seconds,
    format_share,
    format_value,
    parse_bytes,
    parse_seconds,
)

FACTORS = {"": 1, "B": 1, "kB": 1000, "MB": 10**6, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def test_a_size_is_read_exactly() -> None:
    for text, size in [
        ("64KiB", 65536), ("1.5 GiB", 3 * 2**29), ("1e9", 10**9), ("4096", 4096), ("0.1GB", 10**8), (" .5 kib ", 512),
        ("1.001kB", 1001), ("+2MiB", 2**21), ("-8", -8), ("1e3KiB", 1024000), ("700G", 700 * 10**9), ("1T", 10**12),
        ("64m", 64 * 10**6), ("4 K", 4000), ("4611686018427387905", 2**62 + 1), (7, 7), (1e6, 10**6),
    ]:  # fmt: skip
        assert parse_bytes(text) == size


def test_what_is_no_size_is_refused_with_examples() -> None:
    for text in ["", "KiB", "64 kebibytes", "1,5GiB", "1 2", "--1", "nan", "inf", "1e", "٣", True, None]:
        with pytest.raises(InvalidParameter, match=r"is not a size; write bytes or a unit, such as 64KiB"):
            parse_bytes(text)


def test_a_broken_byte_and_a_size_beyond_63_bits_are_refused() -> None:
    for text, complaint in [
        *((text, "not a whole number of bytes") for text in ("1.5", "0.3B", "1.1TiB", "1e-3", 0.5)),
        *((text, "larger than any memory") for text in ("1e400", "9223372036854775808", "1e9TiB", 2**63, "1" * 400)),
    ]:
        with pytest.raises(InvalidParameter, match=complaint):
            parse_bytes(text)


@given(st.integers(0, 2**62), st.sampled_from(sorted(FACTORS)))
def test_whole_numbers_of_a_unit_are_read_exactly(number: int, unit: str) -> None:
    size = number * FACTORS[unit]
    if size < 2**63:
        assert parse_bytes(f"{number}{unit}") == size


@given(st.integers(0, 2**62))
def test_a_shown_size_reads_back_within_its_three_digits(size: int) -> None:
    number, unit = format_bytes(size).split()
    factor = 2**50 if unit == "PiB" else FACTORS[unit]
    assert float(number) * factor == pytest.approx(size, rel=0.005)
    assert float(number) < 1024 or unit == "PiB"


@given(st.integers(1, 1023), st.sampled_from(["B", "KiB", "MiB", "GiB"]))
def test_a_round_size_is_shown_exactly(number: int, unit: str) -> None:
    assert format_bytes(number * FACTORS[unit]) == f"{number} {unit}"


@given(st.integers(1, 2**50))
def test_a_size_to_be_read_back_is_exact(size: int) -> None:
    assert parse_bytes(exact_bytes(size)) == size


def test_a_size_to_be_read_back_takes_the_largest_unit_that_is_exact() -> None:
    assert [exact_bytes(size) for size in (2**36, 3 * 2**29, 143771 * 2**20, 12345)] == [
        "64 GiB", "1536 MiB", "143771 MiB", "12345 B",
    ]  # fmt: skip


def test_a_small_share_is_not_shown_as_none() -> None:
    for share, text in [
        (0.00045, "0.045 %"),
        (0.00001, "0.001 %"),
        (1e-7, "< 0.001 %"),
        (0.0, "0.0 %"),
        (-2e-4, "-0.020 %"),
    ]:
        assert format_share(share) == text


def test_durations_are_read_as_people_write_them() -> None:
    texts = ("90s", "20ms", "10m", "10 min", "2h", "1.5H", "1d", "7", " 0.5 s ")
    assert [parse_seconds(text) for text in texts] == [90, 0.02, 600, 600, 7200, 5400, 86400, 7, 0.5]


def test_what_is_no_duration_is_refused_with_what_is_allowed() -> None:
    for text in ["", "m", "10 parsecs", "-5s", "1e3s", "nan", "inf", "1h30m", "1:30", "9999999999s"]:
        with pytest.raises(InvalidParameter, match="write seconds or a unit, such as 20ms, 90s, 10m, 2h or 1d"):
            parse_seconds(text)


def test_lengths_of_time_in_sentences_take_minutes_and_hours() -> None:
    assert [format_duration(value) for value in (0.026, 59.9, 599, 600, 5400, 10800, 360000)] == [
        "26.0 ms", "59.9 s", "599 s", "10.0 min", "90.0 min", "3.00 h", "100 h",
    ]  # fmt: skip


@given(st.floats(1e-9, 1e5))
def test_a_shown_time_stays_between_1_and_1000_of_its_unit(seconds: float) -> None:
    number, unit = format_seconds(seconds).split()
    factor = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}[unit]
    assert float(number) * factor == pytest.approx(seconds, rel=0.0051)
    assert float(number) >= 1 or unit == "ns"
    assert float(number) < 1000 or unit == "s"


@given(st.floats(1e-12, 1e12))
def test_no_number_is_shown_with_an_exponent_or_a_bare_point(value: float) -> None:
    for text in (format_value(value, "ratio"), format_bandwidth(value), format_value(value, "count")):
        assert re.fullmatch(r"\d+(\.\d+)?( ×| GB/s)?", text)


def test_numbers_are_shown_with_three_digits_in_the_fitting_unit() -> None:
    for formatted, text in [
        (format_bytes(1023 * 1024 + 1023), "1.00 MiB"),
        (format_bytes(1536), "1.50 KiB"),
        (format_bytes(0), "0 B"),
        (format_seconds(0.99996), "1.00 s"),
        (format_seconds(999.9e-6), "1.00 ms"),
        (format_seconds(1.4e-6), "1.40 µs"),
        (format_seconds(0.026), "26.0 ms"),
        (format_seconds(99.96), "100 s"),
        (format_seconds(3600), "3600 s"),
        (format_value(62951.0, "seconds"), "17.5 h"),
        (format_seconds(0), "0 s"),
        (format_bandwidth(55.46e9), "55.5 GB/s"),
        (format_bandwidth(99.97e9), "100 GB/s"),
        (format_share(0.981), "98.1 %"),
        (format_value(0.0962, "ratio"), "0.0962 ×"),
        (format_value(12345, "count"), "12,345"),
        (format_value(True, "count"), "yes"),
        (format_value("PCIe", "text"), "PCIe"),
    ]:
        assert formatted == text


def test_what_is_missing_is_never_shown_as_zero() -> None:
    missing = {format(None) for format in (format_bytes, format_bandwidth, format_seconds, format_share)}
    assert missing | {format_value(None, "count")} == {"n/a"}


def test_both_ends_of_an_interval_of_changes_are_said_alike() -> None:
    assert [format_change(0.97), format_change(4.4)] == ["-3.0 %", "4.40 ×"]
    assert format_change(0.9, 6.18) == "0.900 ×"
    assert format_change(0.9, 1.1) == "-10.0 %"


def test_counts_stand_with_their_noun_in_its_right_number() -> None:
    told = [format_count(count, noun) for count, noun in ((1, "copy"), (4096, "copy"), (2, "process"), (0, "thread"))]
    assert told == ["1 copy", "4,096 copies", "2 processes", "0 threads"]
