"""The documentation: nothing leads nowhere, every experiment is explained, and the pages need no network."""

from __future__ import annotations

import re
import tomllib
from fnmatch import fnmatch
from html.parser import HTMLParser
from pathlib import Path
from posixpath import dirname, join, normpath

import pytest

from pinscope.cli.main import command_line, main
from pinscope.cli.pages import whole_site
from pinscope.dashboard.pages import PAGES
from pinscope.errors import UnknownName
from pinscope.experiments.registry import readers
from pinscope.manual.site import Site, pictures, site_files, slug

ROOT = Path(__file__).parents[3]
MOST_README_BYTES = 4500
AROUND = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")


@pytest.fixture(scope="module")
def site() -> Site:
    return whole_site(command_line())


@pytest.fixture(scope="module")
def rendered(site: Site) -> dict[str, str]:
    return {path: content.decode() for path, content in site_files(site) if path.endswith(".html")}


class Anchors(HTMLParser):
    """Targets of links and pictures, and ids, of an HTML page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.ids: list[str] = []
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.targets += [value for name, value in attributes if name in ("href", "src") and value]
        self.ids += [value for name, value in attributes if name == "id" and value]


def links(markdown: str) -> list[str]:
    """Targets of the links and pictures outside of code."""
    text = re.sub(r"^```.*?^```|`[^`\n]*`", "", markdown, flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"\]\(([^)\s]+)\)", text)


def anchors(markdown: str) -> set[str]:
    return {slug(heading) for heading in re.findall(r"^#+ (.*)$", markdown, re.MULTILINE)}


@pytest.mark.parametrize("name", AROUND)
def test_no_link_of_the_documents_beside_the_site_is_dead(name: str, site: Site) -> None:
    for link in links((ROOT / name).read_text()):
        path, _, anchor = link.partition("#")
        if "://" in link:
            continue
        assert (ROOT / path).exists(), link
        if anchor:
            page = path.removeprefix("docs/").removesuffix(".md")
            text = site.markdown(page) if page in site.names else (ROOT / (path or name)).read_text()
            assert anchor in anchors(text), link


def test_no_link_of_the_site_is_dead(site: Site, rendered: dict[str, str]) -> None:
    there = {path: set(Anchors(text).ids) for path, text in rendered.items()}
    files = {*there, *(path for path, _ in pictures()), "manual.css"}
    for path, text in rendered.items():
        for link in Anchors(text).targets:
            target, _, anchor = link.partition("#")
            whole = normpath(join(dirname(path), target)) if target else path
            assert whole in files, f"{path}: {link}"
            assert not anchor or anchor in there[whole], f"{path}: {link}"
    assert len(there) == len(site.names)


def test_pages_load_nothing_from_elsewhere_and_run_nothing(rendered: dict[str, str]) -> None:
    for path, text in rendered.items():
        page = Anchors(text)
        assert not [target for target in page.targets if ":" in target.split("#")[0]], path
        assert not page.tags & {"script", "iframe", "object", "embed"}, path


def test_every_page_has_one_heading_at_its_top_and_every_marker_is_filled_in(site: Site) -> None:
    for name in site.names:
        text = site.markdown(name)
        prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
        assert len(re.findall(r"^# .", prose, re.MULTILINE)) == 1, name
        assert text.startswith("# "), name
        assert "<!--" not in text, name
        assert len(site.title(name)) > 3


def test_every_file_in_docs_is_a_page(site: Site) -> None:
    written = {str(path.relative_to(ROOT / "docs").with_suffix("")) for path in (ROOT / "docs").rglob("*.md")}
    assert written <= set(site.names)


def test_every_kind_of_run_has_a_page_with_a_chart_how_to_read_it_and_what_to_do(site: Site) -> None:
    for reader in readers():
        page = site.markdown(f"experiments/{reader.kind.name}")
        for part in (f"pictures/{reader.kind.name}.png", "## How to read it", "## What to do", "## Method"):
            assert part in page, f"{reader.kind.name}: {part}"


def test_every_page_of_the_dashboard_is_shown_light_dark_and_on_a_phone(site: Site) -> None:
    """The pictures are made by scripts/draw-pictures; none is there that no page shows."""
    shown = set(re.findall(r"pictures/(page-[\w-]+\.png)", site.markdown("dashboard")))
    names = (
        "home",
        "now",
        "experiments",
        "traces",
        "runs",
        "run",
        "watched",
        "compare",
        "trend",
        "fleet",
        "plan",
        "manual",
    )
    assert shown == {f"page-{name}-{look}.png" for name in names for look in ("light", "dark", "phone")}
    files = {name.removeprefix("pictures/"): len(content) for name, content in pictures()}
    assert {name for name in files if name.startswith("page-")} == shown
    assert max(files[name] for name in shown) < 150_000
    assert {page.path.stem for page in PAGES} <= set(names)


def test_everything_that_the_pages_need_ships_with_the_package() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    patterns = settings["package-data"]["pinscope"]
    pages = ROOT / "pinscope" / "manual" / "pages"
    assert pages.samefile(ROOT / "docs")
    for path in pages.rglob("*"):
        inside = f"manual/pages/{path.relative_to(pages)}"
        assert path.is_dir() or any(fnmatch(inside, pattern) for pattern in patterns), inside


def test_a_page_is_found_by_its_name(site: Site) -> None:
    for words, name in [
        ("glossary", "glossary"), ("json", "reference/json"), ("page tables", "index"),
        ("quick start", "quick-start"), ("page_tables", "experiments/page_tables"),
        ("experiments/overlap", "experiments/overlap"),
    ]:  # fmt: skip
        if name == "index":
            with pytest.raises(UnknownName, match="glossary"):
                site.find(words)
        else:
            assert site.find(words) == name


def test_readme_is_short_and_names_every_command() -> None:
    readme = (ROOT / "README.md").read_bytes()
    assert len(readme) <= MOST_README_BYTES
    for name in command_line().commands:
        assert f"`pinscope {name}" in readme.decode(), name


def test_the_transcript_in_the_readme_is_what_the_terminal_shows(capsys: pytest.CaptureFixture[str]) -> None:
    block = re.search(r"```console\n\$ pinscope ([^\n]*)\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert block is not None
    assert main(block[1].split()) == 0
    shown = capsys.readouterr().out.splitlines()
    lines = [line for line in block[2].splitlines() if line and line != "…"]
    assert len(lines) > 8
    assert [line for line in lines if line not in shown] == []
