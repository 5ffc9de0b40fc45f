"""What one process has open, by kind."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from pinscope.probes.answer import Answer
from pinscope.probes.proc import HERE, Proc

_KIND = re.compile(r"(socket|pipe|anon_inode):")
_WORDS = {"socket": "sockets", "pipe": "pipes", "anon_inode": "event files"}


def open_files(pid: int, proc: Proc = HERE) -> Answer[Mapping[str, int]]:
    """Devices by their names, all others by their kind, with how many of each there are; devices first."""
    return proc.links(f"/proc/{pid}/fd").then(_by_kind)


def _by_kind(targets: tuple[str, ...]) -> Mapping[str, int]:
    kinds = Counter(map(_kind, targets))
    return dict(sorted(kinds.items(), key=lambda pair: (not pair[0].startswith("/dev/"), pair[0])))


def _kind(target: str) -> str:
    if target.startswith("/dev/"):
        return target
    match = _KIND.match(target)
    return _WORDS[match[1]] if match else "files"
