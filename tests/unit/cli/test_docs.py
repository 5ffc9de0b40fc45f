"""``pinscope docs``: the right page as a file, as text, or as one clear line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pinscope.cli.main import main


@pytest.fixture(autouse=True)
def _no_desktop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_without_a_desktop_the_page_is_written_and_its_path_printed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["docs", "glossary"]) == 0
    file = Path(capsys.readouterr().out.strip())
    assert file.is_relative_to(tmp_path)
    assert "write-combined" in file.read_text()
    assert (file.parent / "reference" / "json.html").is_file()
    assert (file.parent / "manual.css").is_file()
    assert (file.parent / "pictures" / "bandwidth.png").is_file()


def test_with_a_desktop_the_browser_opens_the_page(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr("webbrowser.open", lambda address: not opened.append(address))
    monkeypatch.setattr("pinscope.cli.pages.write_html", lambda site, folder: None)
    assert main(["docs", "bandwidth"]) == 0
    assert capsys.readouterr().out == ""
    assert opened[0].startswith("file://")
    assert opened[0].endswith("/experiments/bandwidth.html")


def test_json_names_the_file_and_all_pages(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pinscope.cli.pages.write_html", lambda site, folder: None)
    assert main(["docs", "cli", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["page"] == "reference/cli"
    assert {"index", "glossary", "experiments/bandwidth", "reference/metrics"} <= set(document["pages"])


def test_text_prints_the_page_and_writes_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["docs", "metrics", "--text"]) == 0
    assert "`pinscope_host_pinned_bytes`" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_page_is_one_line_that_lists_the_pages(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs", "x" * 5000]) == 2
    line = capsys.readouterr().err
    assert line.startswith("pinscope: no page 'xxx")
    assert "glossary" in line
    assert line.count("\n") == 1
    assert len(line) < 600


def test_a_place_that_cannot_be_written_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert main(["docs"]) == 1
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert "Not a directory" in line
