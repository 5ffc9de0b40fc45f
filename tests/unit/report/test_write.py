"""A report is written whole or not at all, and never over a file that is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinscope.errors import BadInput, PathExists
from pinscope.report import write
from pinscope.report.document import Document
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


@pytest.mark.parametrize(
    ("name", "suffix"),
    [("a.HTML", ".html"), ("a.json", ".json"), ("a.perfetto.json", ".perfetto.json"), ("a.b.csv", ".csv")],
)
def test_the_longest_suffix_tells_the_format(name: str, suffix: str) -> None:
    assert known_suffix(Path(name)) == suffix


@pytest.mark.parametrize("name", ["report", "report.pdf", "html", "report.csv.gz", "report.html "])
def test_an_unknown_suffix_is_refused_with_those_there_are(name: str, overlap: Document, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"\.html, \.md, \.csv, \.parquet, \.json, \.perfetto\.json") as refused:
        write_report(tmp_path / name, [overlap])

    assert "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_there_stays_as_it_is(overlap: Document, tmp_path: Path) -> None:
    path = tmp_path / "report.md"
    path.write_text("mine")

    with pytest.raises(PathExists, match=r"report\.md"):
        write_report(path, [overlap])

    assert path.read_text() == "mine"


def test_a_dangling_link_is_not_written_through(overlap: Document, tmp_path: Path) -> None:
    (tmp_path / "report.md").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(PathExists):
        write_report(tmp_path / "report.md", [overlap])

    assert not (tmp_path / "elsewhere").exists()


def test_a_file_is_refused_before_anything_is_rendered(
    overlap: Document, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "report.md").touch()
    monkeypatch.setattr(write, "render", lambda *_: pytest.fail("rendered in vain"))

    with pytest.raises(PathExists):
        write_report(tmp_path / "report.md", [overlap])


def test_a_name_that_no_file_can_have_is_bad_input(overlap: Document, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="File name too long"):
        write_report(tmp_path / f"{'a' * 300}.md", [overlap])
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_bad_input(overlap: Document, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="No such file or directory"):
        write_report(tmp_path / "nowhere" / "report.md", [overlap])


def test_a_failed_rendering_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="has no timeline"):
        write_report(tmp_path / "report.perfetto.json", [synthetic.document("bandwidth")])

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_report_of_no_run_is_refused(suffix: str) -> None:
    with pytest.raises(BadInput, match="at least one run"):
        render([], suffix)


@pytest.mark.parametrize("suffix", [suffix for suffix in SUFFIXES if suffix != ".perfetto.json"])
def test_a_run_that_measured_nothing_can_be_reported(suffix: str) -> None:
    assert render([synthetic.document_of("bandwidth", [], status="failed", error="no GPU answered")], suffix)
