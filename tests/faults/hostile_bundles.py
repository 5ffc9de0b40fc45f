"""Bundles that nobody means well with: small ones mutated at random, and large ones that claim more than they hold."""

from __future__ import annotations

import gzip
import io
import json
import warnings
import zipfile
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from random import Random
from typing import Any

Members = dict[str, bytes]
RUN_ID = "20250101-000000-attack"
KINDS = ("registration", "pinning_strategy", "timeline", "page_tables")
"""Recordings that the mutations start from."""
_ROWS = 12
"""Of a recording: enough to be mutated, few enough for thousands of attempts."""


@cache
def recording(kind: str) -> tuple[Mapping[str, Any], Mapping[str, Any], tuple[bytes, ...]]:
    """Manifest, run and lines of a recording."""
    with zipfile.ZipFile(io.BytesIO((files("pinscope") / "recordings" / f"{kind}-h200.pinscope").read_bytes())) as file:
        manifest = json.loads(file.read("manifest.json"))
        (run_id,) = manifest["runs"]
        run = json.loads(file.read(f"runs/{run_id}/run.json"))
        return manifest, run, tuple(file.read(f"runs/{run_id}/observations.jsonl").splitlines())


def members_of(kind: str, run_id: str = RUN_ID, rows: int = _ROWS, **changes: Any) -> Members:
    """A recording under another id, with the first of its rows only."""
    manifest, run, lines = recording(kind)
    lines = lines[:rows]
    return {
        "manifest.json": json.dumps({**manifest, "runs": [run_id]}).encode(),
        f"runs/{run_id}/run.json": json.dumps({**run, "id": run_id, "observations": len(lines), **changes}).encode(),
        f"runs/{run_id}/observations.jsonl": b"".join(line + b"\n" for line in lines),
    }


def packed(members: Members, compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    """The members as an archive."""
    content = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(content, "w", compression) as archive:
        warnings.filterwarnings("ignore", "Duplicate name")  # zipfile cuts a name at a NUL
        for name, text in members.items():
            archive.writestr(name, text)
    return content.getvalue()


# Mutations

_VALUES = (
    b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1e999", b"null", b"true", b"[]", b"{}", b'""', b"0", b"-1",
    b"9223372036854775807", b"-9223372036854775808", b"18446744073709551616", b"1" * 400, b"1e308", b"5e-324", b"-0.0",
    b'"\\ud800"', b'"\\u0000"', b'"\\u202e<script>"', b'"../../etc/passwd"', b'"20261121-051103-c491a9"',
    b'"' + b"x" * 9000 + b'"', b"[" * 300 + b"]" * 300, b'{"a":' * 20 + b"1" + b"}" * 20, b'"2026-01-01T00:00:00"',
    b'"9999-12-31T23:59:59-14:00"', b"\xff", b'"\xc3"', b"{1:2}", b"'a'",
)  # fmt: skip
"""What JSON texts get in the place of a value."""


def mutated(random: Random) -> bytes:
    """One hostile bundle, small."""
    kind = random.choice(KINDS)
    members = members_of(kind, status=random.choice(("done", "running", "failed", "interrupted")))
    how = random.choice(tuple(_MUTATIONS))
    return _MUTATIONS[how](random, members)


def _flipped(random: Random, members: Members) -> bytes:
    content = bytearray(packed(members))
    for _ in range(random.randint(1, 8)):
        content[random.randrange(len(content))] ^= 1 << random.randrange(8)
    return bytes(content)


def _truncated(random: Random, members: Members) -> bytes:
    content = packed(members)
    return content[: random.randrange(len(content))]


def _spliced(random: Random, members: Members) -> bytes:
    one, other = packed(members), packed(members_of(random.choice(KINDS)))
    return one[: random.randrange(len(one))] + other[random.randrange(len(other)) :]


def _some_value(random: Random, members: Members) -> bytes:
    """Other values in one to four places of the JSON texts, at any depth."""
    for _ in range(random.randint(1, 4)):
        name = random.choice(list(members))
        text = members[name]
        colons = [place for place in range(len(text)) if text[place : place + 1] == b":"]
        if not colons:
            continue
        begin = random.choice(colons) + 1
        ends = [place for end in b",}]\n" if (place := text.find(bytes([end]), begin)) > 0]
        members[name] = text[:begin] + random.choice(_VALUES) + text[min(ends, default=len(text)) :]
    return packed(members)


def _some_bytes(random: Random, members: Members) -> bytes:
    """Bytes of a member changed, taken away or doubled; the archive itself is sound."""
    name = random.choice(list(members))
    text = bytearray(members[name])
    for _ in range(random.randint(1, 5)):
        place = random.randrange(len(text))
        cut = text[place : place + random.randint(0, 40)]
        text[place : place + random.randint(0, 10)] = random.choice((b"", bytes([random.randrange(256)]), cut, b"\n"))
    members[name] = bytes(text)
    return packed(members)


def _some_lines(random: Random, members: Members) -> bytes:
    """Observations in another order, twice, or missing."""
    name = next(name for name in members if name.endswith("jsonl"))
    lines = members[name].splitlines(keepends=True)
    change = random.randrange(4)
    if change == 0:
        random.shuffle(lines)
    elif change == 1:
        lines.insert(random.randrange(len(lines)), random.choice((b"\n", b"{}\n", b"[]\n", b"null\n", lines[0])))
    elif change == 2:
        lines.pop(random.randrange(len(lines)))
    else:
        lines[-1] = lines[-1].rstrip(b"\n")
    members[name] = b"".join(lines)
    return packed(members)


def _doubled_keys(random: Random, members: Members) -> bytes:
    name = random.choice(list(members))
    text = members[name]
    key = random.choice((b"repeat", b"warmup", b"id", b"observations", b"runs", b"format", b"bytes", b"params"))
    members[name] = text.replace(b"{", b'{"' + key + b'":' + random.choice(_VALUES) + b",", 1)
    return packed(members)


def _encoded(random: Random, members: Members) -> bytes:
    name = random.choice(list(members))
    text = members[name].decode()
    members[name] = random.choice(
        (text.encode("utf-16"), text.encode("utf-32"), b"\xef\xbb\xbf" + text.encode(), gzip.compress(text.encode()))
    )
    return packed(members)


def _renamed(random: Random, members: Members) -> bytes:
    """Ids that are paths, another run's, or none."""
    ids = ("../x", "/etc/x", "a/b", "", ".", "..", "x" * 101, "a\x00b", "20261121-051103-c491a9", "Ä", "con", "x\n")
    run_id = random.choice(ids)
    moved = {
        name.replace(RUN_ID, run_id): text.replace(RUN_ID.encode(), run_id.encode()) for name, text in members.items()
    }
    if random.random() < 0.5:
        moved["../evil"] = b"x"
    return packed(moved)


def _bomb(random: Random, members: Members) -> bytes:
    name = random.choice(list(members))
    members[name] = random.choice((b"\n", b" ", b"[", b'{"repeat":0,"warmup":false}\n', b"\x00")) * 400_000
    return packed(members)


_MUTATIONS: Mapping[str, Callable[[Random, Members], bytes]] = {
    "flipped": _flipped, "truncated": _truncated, "spliced": _spliced, "value": _some_value, "values": _some_value,
    "bytes": _some_bytes, "lines": _some_lines, "keys": _doubled_keys, "encoded": _encoded, "renamed": _renamed,
    "bomb": _bomb,
}  # fmt: skip


# Large claims


def of_rows(kind: str, lines: list[bytes], compression: int = zipfile.ZIP_DEFLATED, **changes: Any) -> bytes:
    """A bundle of one run with these observations."""
    members = members_of(kind, rows=0, **{"observations": len(lines), **changes})
    members[f"runs/{RUN_ID}/observations.jsonl"] = b"\n".join(lines) + b"\n"
    return packed(members, compression)


def real_rows(kind: str, count: int) -> bytes:
    """So many observations of a recording, over and over."""
    lines = recording(kind)[2]
    return of_rows(kind, [lines[place % len(lines)] for place in range(count)])


def all_different(kind: str, count: int, *names: str) -> bytes:
    """So many observations of which no two have the same of these labels."""
    lines = recording(kind)[2]
    parsed = [json.loads(line) for line in lines]
    rows = []
    for place in range(count):
        row = {**parsed[place % len(parsed)], "warmup": False}
        for name in names:
            if isinstance(row.get(name), int):
                row[name] = 8 * (place + 1)
        if row.get("name"):
            row["name"] = f"{place:x}" * 20
        rows.append(json.dumps(row).encode())
    return of_rows(kind, rows)


def many_runs(count: int) -> bytes:
    """So many runs, each with a record as large as one may be."""
    members: Members = {}
    for number in range(count):
        one = members_of("registration", f"r{number}", rows=0, notes=["x" * 200_000])
        members |= {name: text for name, text in one.items() if name != "manifest.json"}
    manifest = {**recording("registration")[0], "runs": [f"r{number}" for number in range(count)]}
    return packed({"manifest.json": json.dumps(manifest).encode(), **members})
