"""What a trace says of children that used CUDA and were not recorded, and of those that nobody could look at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from pinscope.analysis.texts import Costed, Text, Texts, say
from pinscope.records.run import quantity
from pinscope.records.trace_row import ChildKind
from pinscope.tracing.sites import Seen

MOST_NAMED = 4
"""Processes of a sentence."""


class Words(NamedTuple):
    """What is said of one child of a kind, of several, and what to set so that they are recorded."""

    singular: str
    plural: str
    setting: str


WORDS: Mapping[ChildKind | None, Words] = {
    "fork": Words("forked child used CUDA", "forked children used CUDA", "start them by spawn, then trace again"),
    "exec": Words(
        "process became another program that used CUDA",
        "processes became other programs that used CUDA",
        "trace the other program",
    ),
    "python": Words(
        "child of another Python used CUDA",
        "children of another Python used CUDA",
        "keep the environment, leave out -I, -E and -S",
    ),
    "native": Words("native child used CUDA", "native children used CUDA", "Nsight Systems follows those"),
    "refused": Words("child was refused by CUPTI", "children were refused by CUPTI", "end the other profiler"),
    None: Words("child process used CUDA", "child processes used CUDA", "trace each by itself"),
}
"""``None``: an earlier version made the trace."""
_TITLE = "{children} and {were} not recorded"
_DETAIL = "What they copied is missing[: {names}]."


def _text(when: str, action: str) -> Text:
    return Text(when, _TITLE, _DETAIL, action, "warning")


TEXTS: Texts = {
    "unrecorded-children/fork": _text(
        "children by fork used CUDA",
        "Start them by spawn: multiprocessing.set_start_method('spawn'); in vLLM VLLM_WORKER_MULTIPROC_METHOD=spawn; "
        "multiprocessing_context='spawn' of a DataLoader.",
    ),
    "unrecorded-children/exec": _text(
        "a recorded process became another program, which is no Python or keeps PinScope out, and used CUDA",
        "Trace that program by itself, or have Nsight Systems follow it.",
    ),
    "unrecorded-children/python": _text(
        "a Python process used CUDA that does not import PinScope's sitecustomize",
        "Start it with the program's environment, and without -I, -E and -S.",
    ),
    "unrecorded-children/native": _text(
        "a child that is no Python used CUDA", "PinScope follows Python alone: nsys profile follows other programs."
    ),
    "unrecorded-children/refused": _text(
        "CUPTI refused to record a child, or the recording ended before it began there",
        "One profiler at a time can follow a process: end the other one, which the child starts.",
    ),
    "unrecorded-children": _text(
        "the same, in a trace of an earlier version", "Trace each of these programs by itself."
    ),
}


def _by_kind(seen: Seen) -> list[tuple[ChildKind | None, int]]:
    """Kinds of unrecorded children and how many of each there are, the most first."""
    kinds: list[ChildKind | None] = [row["child"] for row in seen.unrecorded]
    count = seen.program["unrecorded"] or 0
    kinds += [None] * (count - len(kinds))
    return sorted(((kind, kinds.count(kind)) for kind in dict.fromkeys(kinds)), key=lambda pair: -pair[1])


def _counted(kind: ChildKind | None, count: int) -> str:
    return f"{count:,} {WORDS[kind].singular if count == 1 else WORDS[kind].plural}"


def children_words(seen: Seen) -> str:
    """That children used CUDA and were not recorded, and what to set, in a few words; empty where none is known."""
    kinds = _by_kind(seen)
    if not kinds:
        return ""
    first, count = kinds[0]
    more = sum(others for _, others in kinds[1:])
    return f"{_counted(first, count)}{f', {more:,} more too' if more else ''}: {WORDS[first].setting}"


def unseen_words(seen: Seen) -> str:
    """That children were too brief to be looked at; empty where there was none."""
    count = seen.program["unseen"]
    if not count:
        return ""
    return f"{count:,} {'child' if count == 1 else 'children'} ended before PinScope could look"


def children_findings(seen: Seen) -> Iterator[Costed]:
    """One for each kind."""
    for kind, count in _by_kind(seen):
        rows = [row for row in seen.unrecorded if row["child"] == kind]
        names = [f"{row['executable'] or 'a process'} (process {row['process']})" for row in rows[:MOST_NAMED]]
        more = [f"{count - len(names):,} more"] if count > len(names) else []
        yield say(
            TEXTS,
            f"unrecorded-children{f'/{kind}' if kind else ''}",
            quantity("Children", count, "count"),
            children=_counted(kind, count),
            were="was" if count == 1 else "were",
            names=", ".join([*names, *more]) if names else None,
        )
