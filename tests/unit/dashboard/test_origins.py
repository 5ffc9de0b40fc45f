"""Which addresses are the dashboard's own, and how its owner names others."""

from __future__ import annotations

import pytest

from pinscope.dashboard.middleware import (
    VARIABLE,
    Origin,
    is_address_of,
    named_origins,
    origins_from_environment,
    own_origins,
    parse_origin,
)
from pinscope.errors import InvalidParameter


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("http://localhost:9000", Origin("http", "localhost", 9000)),
        ("https://gpu.example.org", Origin("https", "gpu.example.org", 443)),
        ("http://[::1]:8501", Origin("http", "[::1]", 8501)),
        ("HTTP://LocalHost:80", Origin("http", "localhost", 80)),
    ],
)
def test_an_origin_is_scheme_host_and_port(text: str, origin: Origin) -> None:
    assert parse_origin(text) == origin


def test_an_origin_is_written_as_browsers_write_it() -> None:
    assert [str(origin) for origin in named_origins(["http://a:80", "https://a:80", "https://a:443/"])] == [
        "http://a", "https://a:80", "https://a",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    ["", "null", "localhost", "localhost:1", "//a", "ftp://a", "http://", "http://a/b", "http://a?b", "http://u@a",
     "http://a:0", "http://a:65536", "http://a:", "http://a.", "http://a b", "http://ä", "http://a,http://b", "*"],
)  # fmt: skip
def test_what_is_no_origin_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(InvalidParameter, match=r"^'.*' is no origin; write scheme, host and port, such as http://loc"):
        named_origins([text])


def test_a_refused_origin_is_repeated_in_part_only() -> None:
    with pytest.raises(InvalidParameter) as refused:
        named_origins(["http://" + "a" * 100_000])
    assert len(str(refused.value)) < 250


def test_a_host_without_a_port_means_that_of_the_scheme() -> None:
    named = named_origins(["https://gpu.example.org", "http://localhost:9000"])
    assert is_address_of("gpu.example.org", named)
    assert is_address_of("GPU.example.org:443", named)
    assert not is_address_of("gpu.example.org:80", named)
    assert is_address_of("localhost:9000", named)
    assert not is_address_of("localhost", named)
    assert is_address_of("localhost", own_origins(80))


def test_origins_come_from_the_environment_by_comma(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert origins_from_environment() == ()
    monkeypatch.setenv(VARIABLE, "http://localhost:9000, https://gpu.example.org/,")
    assert [str(origin) for origin in origins_from_environment()] == [
        "http://localhost:9000", "https://gpu.example.org",
    ]  # fmt: skip
    monkeypatch.setenv(VARIABLE, "9000")
    with pytest.raises(InvalidParameter, match=f"^{VARIABLE}: '9000' is no origin"):
        origins_from_environment()
