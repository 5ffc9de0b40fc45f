"""Bundles: what goes in comes out, and nothing else is taken for one."""

from __future__ import annotations

import io
import json
import os
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinscope.errors import BadBundle, BadInput, PathExists, PinScopeError
from pinscope.records import base
from pinscope.store import new_file
from pinscope.store.bundle import read_bundle, render_bundle, write_bundle
from pinscope.store.documents import RunWithRows
from tests.unit.store.runs import new_rows, new_run, parse_bundle

DATA = Path(__file__).parents[2] / "data" / "bundles"


@cache
def sample() -> tuple[RunWithRows, ...]:
    """Two finished runs."""
    rows = (new_rows(5), new_rows(2))
    return tuple((new_run(f"r{i}", status="done", observations=len(r)), r) for i, r in enumerate(rows))


@cache
def sample_bytes() -> bytes:
    return render_bundle(sample())


Members = dict[str, bytes]


def rewritten(change: Callable[[Members], Any], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    """The sample with its members changed."""
    with zipfile.ZipFile(io.BytesIO(sample_bytes())) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return packed.getvalue()


def with_json(member: str, **changes: Any) -> Callable[[Members], None]:
    """Change fields of a JSON member."""

    def change(members: Members) -> None:
        members[member] = json.dumps({**json.loads(members[member]), **changes}).encode()

    return change


def assert_refused(data: bytes, why: str) -> None:
    with pytest.raises(BadBundle, match=why) as caught:
        parse_bundle(data, "some.pinscope")
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("some.pinscope")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_runs_come_out_as_they_went_in(tmp_path: Path) -> None:
    write_bundle(tmp_path / "x.pinscope", sample())
    assert read_bundle(tmp_path / "x.pinscope") == list(sample())


cells = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
text = st.text(st.characters(exclude_categories=["Cs"]))
names_of_fields = st.text(st.characters(exclude_categories=["Cs"]), max_size=100)
rows = st.fixed_dictionaries({"repeat": st.integers(0, 9), "warmup": st.booleans()}).flatmap(
    lambda fixed: st.dictionaries(names_of_fields, cells | text).map(lambda more: {**more, **fixed})
)


@settings(max_examples=50)
@given(st.lists(rows, max_size=8))
def test_every_observation_comes_back_bit_by_bit(observations: list[dict[str, Any]]) -> None:
    run = new_run("r", status="done")
    ((_, read),) = parse_bundle(render_bundle([(run, observations)]), "x")
    assert repr(read) == repr(observations)


def test_the_manifest_tells_who_wrote_it() -> None:
    with zipfile.ZipFile(io.BytesIO(sample_bytes())) as archive:
        manifest = json.loads(archive.read("manifest.json"))
    assert manifest["format"] == 1
    assert set(manifest) == {"format", "written_by", "created", "runs"}
    assert set(manifest["written_by"]) == {"version", "commit"}
    assert manifest["runs"] == ["r0", "r1"]


def test_fields_that_a_later_version_adds_are_no_hindrance() -> None:
    def change(members: Members) -> None:
        with_json("manifest.json", more=1)(members)
        with_json("runs/r0/run.json", more={"x": 1})(members)

    assert parse_bundle(rewritten(change), "x") == list(sample())


# Damage


def test_what_is_no_bundle_is_called_so(tmp_path: Path) -> None:
    assert_refused(b"", "some.pinscope is not a PinScope bundle$")
    assert_refused(b"%PDF-1.7", "is not a PinScope bundle$")
    assert_refused(rewritten(lambda members: members.pop("manifest.json")), "it has no manifest.json$")
    with pytest.raises(BadBundle, match=r"missing\.pinscope: No such file"):
        read_bundle(tmp_path / "missing.pinscope")


def test_a_newer_format_is_refused_with_both_numbers() -> None:
    def of_the_future(members: Members) -> None:
        members.clear()
        members["manifest.json"] = b'{"format": 3, "everything": "else"}'

    assert_refused(rewritten(of_the_future), r"has bundle format 3; PinScope \S+ reads formats up to 2: update")
    assert_refused(rewritten(with_json("runs/r0/run.json", format=3)), "run r0 has format 3")
    with pytest.raises(BadBundle, match="has bundle format 999; PinScope"):
        read_bundle(DATA / "format-999.pinscope")


UNFIT: tuple[tuple[Callable[[Members], Any], str], ...] = (
    (with_json("manifest.json", format="1"), "manifest.json: format: Input should be a valid integer"),
    (with_json("manifest.json", runs=["r0"]), "members are not those"),
    (with_json("manifest.json", runs=["r0", "r1", "r1"]), "members are not those"),
    (with_json("manifest.json", runs=5), "manifest.json: runs: Input should be a valid array"),
    (lambda members: members.update({"manifest.json": b"{"}), "manifest.json: Invalid JSON"),
    (lambda members: members.update({"../../etc/passwd": b""}), "members are not those"),
    (lambda members: members.pop("runs/r1/observations.jsonl"), "members are not those"),
    (with_json("runs/r0/run.json", id="r1"), "runs/r0/run.json holds run r1"),
    (with_json("runs/r0/run.json", id="../r1"), "cannot be a run's id"),
    (with_json("runs/r0/run.json", status="fine"), "runs/r0/run.json: status: Input should be"),
    (with_json("runs/r0/run.json", budget=None), "runs/r0/run.json: budget"),
    (with_json("runs/r0/run.json", params={"x": float("nan")}), "the parameters cannot be stored"),
    (with_json("runs/r0/run.json", params={"x": [{"y": 2**63}]}), "params: a number in it has more than 64 bits"),
    (with_json("runs/r0/run.json", device=10**400), "device: a number in it has more than 64 bits"),
    (with_json("runs/r0/run.json", created_at="2026-01-01T00:00:00"), "created_at: Input should have timezone"),
    (with_json("runs/r0/run.json", created_at="0001-01-01T00:00:00+14:00"), "created_at: .*out of range"),
    (with_json("runs/r0/run.json", observations=6), "run r0 should have 6 observations, there are 5"),
    (lambda members: members.update({"runs/r0/run.json": b"\xff"}), "runs/r0/run.json: "),
    (lambda members: members.update({"runs/r0/run.json": b"[" * 100_000}), "runs/r0/run.json: "),
    (lambda members: members.update({"runs/r0/observations.jsonl": b"{}\n"}), "observation 0: repeat"),
    (
        lambda members: members.update({"runs/r1/observations.jsonl": b'{"repeat":0,"warmup":true,"x":1e999}'}),
        "observation 0: x: inf",
    ),
    (
        lambda members: members.update({"runs/r1/observations.jsonl": b'{"repeat": 0, "warmup": true, "x": {}}'}),
        "observation 0: x: a dict cannot be stored",
    ),
)  # fmt: skip


def test_contents_that_do_not_fit_are_refused() -> None:
    for change, why in UNFIT:
        assert_refused(rewritten(change), why)


def test_a_zip_bomb_is_refused_before_it_unpacks(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = rewritten(lambda members: members.update({"runs/r0/observations.jsonl": b"\n" * 100_000_000}))
    assert len(bomb) < 200_000
    monkeypatch.setattr(base, "BUNDLE_BYTES", 50_000_000)
    monkeypatch.setattr(zipfile.ZipFile, "open", lambda *_: pytest.fail("it was unpacked"))
    assert_refused(bomb, "it unpacks to more than 47 MiB")


def test_a_bomb_that_lies_about_its_size_is_not_unpacked() -> None:
    size, claimed = 64_000_000, 64
    bomb = rewritten(lambda members: members.update({"runs/r0/observations.jsonl": b"\n" * size}))
    for number, lie in ((size, claimed), (zlib.crc32(b"\n" * size), zlib.crc32(b"\n" * claimed))):
        bomb = bomb.replace(number.to_bytes(4, "little"), lie.to_bytes(4, "little"))
    tracemalloc.start()
    try:
        assert_refused(bomb, "observations.jsonl: Invalid JSON")
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # that nobody writes to
    for endless in (Path("/dev/zero"), tmp_path, tmp_path / "pipe"):
        with pytest.raises(BadBundle, match="is not a file"):
            read_bundle(endless)


def test_other_ways_of_compression_are_refused() -> None:
    assert_refused(rewritten(lambda _: None, zipfile.ZIP_LZMA), "compressed in a way")


# Writing


def test_what_is_there_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "x.pinscope"
    path.write_text("precious")
    with pytest.raises(PathExists, match=r"x\.pinscope is there already"):
        write_bundle(path, sample())
    assert path.read_text() == "precious"
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(PathExists):
        write_bundle(tmp_path / "link", sample())
    assert names(tmp_path) == ["link", "x.pinscope"]


def test_a_file_that_appears_meanwhile_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.pinscope"
    link = os.link

    def slow_link(*arguments: Any, **named: Any) -> None:
        path.write_text("precious")
        link(*arguments, **named)

    monkeypatch.setattr(os, "link", slow_link)
    with pytest.raises(PathExists):
        write_bundle(path, sample())
    assert path.read_text() == "precious"
    assert names(tmp_path) == ["x.pinscope"]


def test_file_systems_without_hard_links_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*arguments: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    write_bundle(tmp_path / "x.pinscope", sample())
    assert read_bundle(tmp_path / "x.pinscope") == list(sample())
    with pytest.raises(PathExists):
        write_bundle(tmp_path / "x.pinscope", sample())
    assert names(tmp_path) == ["x.pinscope"]


def test_a_file_that_is_being_written_has_a_hidden_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    sync = os.fsync

    def looking(descriptor: int) -> None:
        seen.append(names(tmp_path))
        sync(descriptor)

    monkeypatch.setattr(new_file.os, "fsync", looking)
    write_bundle(tmp_path / "x.pinscope", sample())
    assert [name.startswith(".pinscope-") for there in seen for name in there] == [True]
    assert names(tmp_path) == ["x.pinscope"]


def test_a_full_disk_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(new_file.os, "fsync", full)
    with pytest.raises(PinScopeError, match="No space left on device"):
        write_bundle(tmp_path / "x.pinscope", sample())
    assert names(tmp_path) == []


def test_what_no_bundle_can_hold_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match="at least one run"):
        render_bundle([])
    with pytest.raises(BadInput, match="each run once"):
        render_bundle([sample()[0], sample()[0]])
    with pytest.raises(BadInput, match="observation 0: x: nan"):
        render_bundle([(sample()[0][0], [{"repeat": 0, "warmup": False, "x": float("nan")}])])
    monkeypatch.setattr(base, "BUNDLE_BYTES", 1000)
    with pytest.raises(BadInput, match="export fewer at once"):
        render_bundle(sample())


# Versions


def test_the_saved_bundle_of_format_1_opens() -> None:
    ((run, rows),) = read_bundle(DATA / "format-1.pinscope")
    assert (run.id, run.format, run.status, run.observations) == ("format-1", 1, "done", 3)
    pinned = {"repeat": 0, "warmup": True, "memory": "pinned", "bytes": 65536, "device_seconds": 0.1}
    pinned["h2d_seconds"] = None
    assert [repr(row) for row in rows] == [
        repr({**pinned, **changes})
        for changes in (
            {},
            {"warmup": False, "device_seconds": 1 / 3},
            {"repeat": 1, "warmup": False, "memory": "pageable", "device_seconds": 5e-324, "h2d_seconds": -0.0},
        )
    ]
    assert run.params == {"sizes": [65536], "precision": 0.05}
    assert run.notes == ("Made to hold the format; measured on no machine.",)
    assert run.environment.devices[0].link is not None
    assert run.environment.devices[0].link.generation_max == 5
