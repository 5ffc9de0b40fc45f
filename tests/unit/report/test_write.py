"""A report is written whole or not at all, and never over a file that is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinscope.errors import BadInput, PathExists
from pinscope.report import write
from pinscope.report.facts import Document
from pinscope.report.write import SUFFIXES, known_suffix, render, write_report
from tests.data import synthetic


@pytest.fixture(scope="module")
def overlap() -> Document:
    return synthetic.document("overlap")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_format_is_written_as_it_is_rendered(suffix: str, overlap: Document, tmp_path: Path) -> None:
    path = tmp_path / f"report{suffix}"

    write_report(path, [overlap])

    assert path.read_bytes() == render([overlap], suffix)
    assert [item.name for item in tmp_path.iterdir()] == [path.name]


def test_the_longest_suffix_tells_the_format() -> None:
    for name, suffix in [
        ("a.HTML", ".html"),
        ("a.json", ".json"),
        ("a.perfetto.json", ".perfetto.json"),
        ("a.b.csv", ".csv"),
    ]:
        assert known_suffix(Path(name)) == suffix


def test_an_unknown_suffix_is_refused_with_those_there_are(overlap: Document, tmp_path: Path) -> None:
    for name in ("report", "report.pdf", "html", "report.csv.gz", "report.html "):
        with pytest.raises(BadInput, match=r"\.html, \.md, \.csv, \.parquet, \.json, \.perfetto\.json"):
            write_report(tmp_path / name, [overlap])
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_there_stays_and_is_refused_before_anything_is_rendered(
    overlap: Document, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "report.md").write_text("mine")
    (tmp_path / "link.md").symlink_to(tmp_path / "elsewhere")
    monkeypatch.setattr(write, "_pieces", lambda *_: pytest.fail("rendered in vain"))
    for name in ("report.md", "link.md"):
        with pytest.raises(PathExists, match=name):
            write_report(tmp_path / name, [overlap])
    assert (tmp_path / "report.md").read_text() == "mine"
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    ("name", "why"), [(f"{'a' * 300}.md", "File name too long"), ("nowhere/report.md", r"there is no folder .*nowhere")]
)
def test_a_name_that_no_file_can_have_is_bad_input(name: str, why: str, overlap: Document, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=why):
        write_report(tmp_path / name, [overlap])
    assert list(tmp_path.iterdir()) == []


def test_a_failed_rendering_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="has no timeline"):
        write_report(tmp_path / "report.perfetto.json", [synthetic.document("bandwidth")])

    assert list(tmp_path.iterdir()) == []


def test_a_report_of_no_run_is_refused_and_one_that_measured_nothing_is_written() -> None:
    for suffix in SUFFIXES:
        with pytest.raises(BadInput, match="at least one run"):
            render([], suffix)
        if suffix != ".perfetto.json":
            assert render([synthetic.document_of("bandwidth", [], status="failed", error="no GPU answered")], suffix)
