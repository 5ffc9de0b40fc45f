"""All pages of the documentation: those of docs/, with what is made from the code put in where they ask for it."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template

from markdown_it import MarkdownIt

from pinscope.analysis.statistics import DRIFT, OTHER_HOSTS, PAGEABLE_DRIFT, PLUS_MINUS, SHORT_DRIFT
from pinscope.errors import UnknownName
from pinscope.experiments.registry import EXPERIMENTS
from pinscope.manual.reference import (
    experiment_page,
    experiments_table,
    findings_reference,
    json_reference,
    metrics_reference,
    python_reference,
    recordings_table,
)
from pinscope.text import quoted
from pinscope.units import format_seconds

HOME = "index"
SECTIONS: Mapping[str, tuple[str, ...]] = {
    "Start": (HOME, "quick-start", "reading-results", "compare", "check", "dashboard", "glossary"),
    "Watch and plan": (
        "live-view",
        "experiments/timeline",
        "tracing",
        "trace-recorded",
        "trace-limits",
        "experiments/trace",
        "plan",
        "fleet",
        "exporter",
        "pinned-arrays",
    ),
    "Experiments": (),
    "Reference": (
        "python",
        "reference/python",
        "reference/cli",
        "reference/json",
        "reference/findings",
        "reference/metrics",
        "settings",
    ),
    "Background": ("claims", "claims-table", "cost", "safety", "promises", "architecture"),
}
"""Headings of the navigation → the pages below each. The experiments' pages are those of the registry."""
_FOLDER = "experiments/"
_DRIFTS = (
    "What whole runs on one host differ by, though their repeats do not, is part of it, as six runs on an H100 showed: "
    f"{DRIFT:.0%}, {format_seconds(SHORT_DRIFT)} of short times, {PAGEABLE_DRIFT:.0%} of copies of pageable memory."
).replace("%", " %")
_GENERATED = re.compile(r"<!-- generated: (\w+) -->")


@dataclass(frozen=True)
class Site:
    """The documentation.

    Attributes:
        command_reference: Markdown of the command line's reference; the command line stands above this room.
    """

    command_reference: Callable[[], str]
    _made: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def sections(self) -> Mapping[str, tuple[str, ...]]:
        """Headings of the navigation → names of the pages below each."""
        experiments = tuple(f"{_FOLDER}{entry.name}" for entry in EXPERIMENTS)
        return {title: pages or experiments for title, pages in SECTIONS.items()}

    @cached_property
    def names(self) -> tuple[str, ...]:
        """All pages, in the order of the navigation."""
        return tuple(name for names in self.sections.values() for name in names)

    def find(self, words: str) -> str:
        """The page of that name; the folder before it may be left out: ``bandwidth``, ``json``.

        Raises:
            UnknownName: there is none; the message lists those there are.
        """
        wanted = words.strip().lower().removesuffix(".md").replace(" ", "-")
        for name in self.names:
            if wanted in (name, name.rpartition("/")[2]):
                return name
        short = ", ".join(name.rpartition("/")[2] for name in self.names)
        raise UnknownName(f"no page {quoted(words)}; there are: {short}")

    def markdown(self, name: str) -> str:
        """The page as Markdown, whole."""
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    def _make(self, name: str) -> str:
        if name.startswith(_FOLDER):
            experiment = name.removeprefix(_FOLDER)
            picture = _pages() / "pictures" / f"{experiment}.png"
            return experiment_page(experiment, _shipped(name) or "", has_picture=picture.is_file())
        made: Mapping[str, Callable[[], str]] = {
            "cli": self.command_reference,
            "json": json_reference,
            "findings": findings_reference,
            "metrics": metrics_reference,
            "python": python_reference,
            "experiments": experiments_table,
            "recordings": recordings_table,
            "precision": lambda: f"{PLUS_MINUS} {OTHER_HOSTS}\n\n{_DRIFTS}",
        }
        return _GENERATED.sub(lambda match: made[match[1]](), _shipped(name) or "")

    def title(self, name: str) -> str:
        """The heading of a page."""
        return re.sub(r"^# ", "", self.markdown(name).split("\n", 1)[0])


def pictures() -> Iterator[tuple[str, bytes]]:
    """Path below the site and content of every picture."""
    for picture in sorted((_pages() / "pictures").iterdir(), key=lambda path: path.name):
        yield f"pictures/{picture.name}", picture.read_bytes()


def _pages() -> Traversable:
    return files("pinscope.manual") / "pages"


def _shipped(name: str) -> str | None:
    """The text of docs/NAME.md; ``None`` if there is no such file."""
    path = _pages() / f"{name}.md"
    return path.read_text(encoding="utf-8") if path.is_file() else None


STYLE = "manual.css"
_LINK = re.compile(r"^(?![a-z]+:|#)(.*?)\.md(#.*)?$")
_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title · PinScope</title>
<link rel="stylesheet" href="$up$style">
</head>
<body>
<nav aria-label="Pages">
$navigation
</nav>
<main>
$body
</main>
</body>
</html>
""")


def page_html(site: Site, name: str) -> str:
    """One page, whole, with the navigation beside it."""
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = parser.parse(re.sub(r"<!--.*?-->", "", site.markdown(name), flags=re.DOTALL))
    for place, token in enumerate(tokens):
        if token.type == "heading_open":
            token.attrSet("id", slug(tokens[place + 1].content))
        for part in token.children or ():
            target = part.attrGet("href")
            if part.type == "link_open" and isinstance(target, str):
                part.attrSet("href", _LINK.sub(r"\1.html\2", target))
    up = "../" * name.count("/")
    body = parser.renderer.render(tokens, parser.options, {})
    return _PAGE.substitute(
        title=escape(site.title(name)), up=up, style=STYLE, navigation=_navigation(site, name, up), body=body
    )


def slug(heading: str) -> str:
    """The anchor of a heading, as Python-Markdown makes it: the site that is built for the web has the same."""
    bare = re.sub(r"[`*]", "", heading)
    bare = unicodedata.normalize("NFKD", bare).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", bare).strip().lower())


def site_files(site: Site) -> Iterator[tuple[str, bytes]]:
    """Path below the site's folder and content of every file: pages, pictures and the style sheet."""
    for name in site.names:
        yield f"{name}.html", page_html(site, name).encode()
    yield from pictures()
    yield STYLE, (files("pinscope.manual") / STYLE).read_bytes()


def write_html(site: Site, folder: Path) -> None:
    """Write the whole site into a folder, over what an earlier version of PinScope left there."""
    for path, content in site_files(site):
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


def _navigation(site: Site, name: str, up: str) -> str:
    lines = []
    for section, pages in site.sections.items():
        lines.append(f"<h2>{escape(section)}</h2>\n<ul>")
        for page in pages:
            here = ' aria-current="page"' if page == name else ""
            lines.append(f'<li><a href="{up}{page}.html"{here}>{escape(site.title(page))}</a></li>')
        lines.append("</ul>")
    return "\n".join(lines)
