"""A program run twice: as it is, then with copies of chosen lines made from pinned memory; what that saves."""

from __future__ import annotations

import json
import linecache
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from pinscope.errors import BadInput, PinScopeError
from pinscope.experiments.registry import checked_rows
from pinscope.experiments.trace.arithmetic import Seen, Site, seen_in
from pinscope.records.environment import Environment
from pinscope.records.trace_row import LARGE_BYTES, TraceRow
from pinscope.runner.program_streams import HeardStdout, StdinAgain
from pinscope.runner.traced_program import Variant
from pinscope.runner.tracing import Traced
from pinscope.store.bundle import write_bundle
from pinscope.store.store import Store
from pinscope.tracing.labels import file_label
from pinscope.tracing.places import library_folders
from pinscope.tracing.redirect import ACCOUNT

MOST_PINNED_BYTES = 4 << 30
"""Of all buffers together; less where the host has not four times as much."""
PINNED_BATCHES = "the DataLoader that it iterates over pinned its batches"
_ALLOWED = "--what-if takes pin, or pin:FILE:LINE such as pin:train.py:33"


@dataclass(frozen=True)
class Request:
    """What is to be pinned.

    Attributes:
        lines: files, without links, and lines in them; empty: every line that the first run shows to copy large pieces
            from pageable memory more than once.
    """

    lines: tuple[tuple[str, int], ...] = ()


def parse_request(texts: Sequence[str], script: str) -> Request | None:
    """What the options ask for.

    Args:
        texts: of each option.
        script: beside which files are looked for, too.

    Raises:
        BadInput: no such form, file or line.
    """
    if not texts:
        return None
    found = [_parse_line(text, script) for text in texts if text != "pin"]
    if found and len(found) < len(texts):
        raise BadInput(f"{_ALLOWED}; pin alone means every line")
    return Request(tuple(dict.fromkeys(found)))


def _parse_line(text: str, script: str) -> tuple[str, int]:
    kind, _, place = text.partition(":")
    file, _, line = place.rpartition(":")
    if kind != "pin" or not file or not line.isdecimal():
        raise BadInput(f"{_ALLOWED}; not {text!r}")
    folders = (Path(), Path(script).parent)
    path = next((folder / file for folder in folders if (folder / file).is_file()), None)
    if path is None:
        raise BadInput(f"--what-if: there is no file {file}")
    lines = linecache.getlines(str(path))
    if not 1 <= int(line) <= len(lines):
        count = f"{len(lines):,} {'line' if len(lines) == 1 else 'lines'}"
        raise BadInput(f"--what-if: {file} has {count}, and no line {int(line)}")
    return file_label(str(path.resolve())), int(line)
