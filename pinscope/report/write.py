"""Reports as bytes and as files; the suffix tells the format."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import cast

from pinscope.errors import BadInput, PathExists
from pinscope.report.document import Document
from pinscope.store.new_file import write_new

# By name: most reports need neither Plotly nor Arrow, which take their time to import.
_RENDERERS: Mapping[str, tuple[str, str]] = {
    ".html": ("pinscope.report.html", "html_pieces"),
    ".md": ("pinscope.report.markdown", "render_markdown"),
    ".csv": ("pinscope.report.tabular", "csv_pieces"),
    ".parquet": ("pinscope.report.tabular", "parquet_pieces"),
    ".json": ("pinscope.report.json_report", "json_pieces"),
    ".perfetto.json": ("pinscope.report.perfetto", "perfetto_pieces"),
}
SUFFIXES = tuple(_RENDERERS)
"""Suffixes of the formats that can be written."""


def render(documents: Sequence[Document], suffix: str) -> bytes:
    """The report of one or several runs in the format of ``suffix``.

    Raises:
        BadInput: unknown suffix, no run, or the runs have nothing that this format could hold.
    """
    return b"".join(_pieces(documents, known_suffix(Path(f"report{suffix}"))))


def _pieces(documents: Sequence[Document], suffix: str) -> Iterable[bytes]:
    """The report a piece at a time: one for people in one piece, the observations of the others as they are read."""
    module, function = _RENDERERS[suffix]
    if not documents:
        raise BadInput("a report needs at least one run")
    content = getattr(import_module(module), function)(documents)
    return (content,) if isinstance(content, bytes) else cast("Iterable[bytes]", content)


def write_report(path: Path, documents: Sequence[Document]) -> None:
    """Write a report to a file that is not there yet; on any error nothing is left behind.

    Raises:
        BadInput: as for :func:`render`, or the folder is missing or may not be written to.
        PathExists: there is a file of that name.
        PinScopeError: the disk is full or fails.
    """
    path = Path(path)
    suffix = known_suffix(path)
    if os.path.lexists(path):  # before the work of rendering; write_new holds it for good
        raise PathExists(f"{path} is there already; PinScope does not overwrite files")
    write_new(path, _pieces(documents, suffix))


def known_suffix(path: Path) -> str:
    """The format's suffix that ends the file's name: the longest one, so ``.perfetto.json`` goes before ``.json``.

    Raises:
        BadInput: none does; the message lists those there are.
    """
    name = path.name.lower()
    fitting = [suffix for suffix in SUFFIXES if name.endswith(suffix)]
    if not fitting:
        raise BadInput(f"{path.name}: the suffix tells the format; there are: {', '.join(SUFFIXES)}")
    return max(fitting, key=len)
