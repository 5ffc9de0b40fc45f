"""Which addresses are the dashboard's own, and how its owner names others."""

from __future__ import annotations

import pytest

from pinscope.dashboard.middleware import VARIABLE, named_origins, origins_from_environment, own_origins
from pinscope.errors import InvalidParameter


def test_an_origin_is_written_as_browsers_write_it() -> None:
    texts = ["http://a:80", "https://a:80", "https://a:443/", "HTTP://LocalHost:9000", "http://[::1]:8501"]
    assert named_origins(texts) == (
        "http://a",
        "https://a:80",
        "https://a",
        "http://localhost:9000",
        "http://[::1]:8501",
    )
    assert own_origins(80) == ("http://localhost", "http://127.0.0.1")


def test_what_is_no_origin_is_refused_in_one_line() -> None:
    for text in [
        "", "null", "localhost", "localhost:1", "//a", "ftp://a", "http://", "http://a/b", "http://a?b", "http://u@a",
        "http://a:0", "http://a:", "http://a.", "http://a b", "http://ä", "http://a,http://b", "*",
    ]:  # fmt: skip
        with pytest.raises(
            InvalidParameter, match=r"^'.*' is no origin; write scheme, host and port, such as http://loc"
        ):
            named_origins([text])


def test_origins_come_from_the_environment_by_comma(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert origins_from_environment() == ()
    monkeypatch.setenv(VARIABLE, "http://localhost:9000, https://gpu.example.org/,")
    assert origins_from_environment() == ("http://localhost:9000", "https://gpu.example.org")
    monkeypatch.setenv(VARIABLE, "9000")
    with pytest.raises(InvalidParameter, match=f"^{VARIABLE}: '9000' is no origin"):
        origins_from_environment()
