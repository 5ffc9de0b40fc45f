"""Pages as HTML files that load nothing from elsewhere: for a browser on a machine without network."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from markdown_it import MarkdownIt

from pinscope.manual.site import Site, pictures

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
    yield STYLE, style()


def style() -> bytes:
    """The style sheet of every page."""
    return (files("pinscope.manual") / STYLE).read_bytes()


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
