"""The process that keeps a part: a part may be over before anyone has looked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pinscope.cli import trace_summary
from pinscope.errors import NotPossible
from pinscope.runner.traced_program import make_spool
from pinscope.tracing.spool import Scope, Spool


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return make_spool(tmp_path, {"kinds": {}, "layouts": {}, "library": ""}, Scope(), 0)


def end(spool: Spool) -> None:
    (spool.folder / "config.json").unlink()


def test_a_spool_is_read_though_the_part_has_ended_as_soon_as_it_could_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename
    monkeypatch.setattr(Path, "rename", lambda path, target: rename(path, target).unlink())
    assert make_spool(tmp_path, {"kinds": {}, "layouts": {}, "library": ""}, Scope(), 0).config["kinds"] == {}


def test_a_part_that_begins_and_ends_between_two_looks_is_kept(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on = trace_summary._goes_on

    def whole_part(*arguments: object) -> bool:
        before = goes_on(spool, os.getppid())
        (spool.folder / "started.json").write_text('{"ns": 5}')
        (spool.folder / "ended.json").write_text('{"ns": 8}')
        end(spool)
        return before

    monkeypatch.setattr(trace_summary, "_goes_on", whole_part)
    assert trace_summary._begun_ns(spool, os.getppid()) == 5
    monkeypatch.setattr(trace_summary, "_goes_on", goes_on)
    ended = trace_summary._follow(spool, os.getppid(), 5, lambda _: None)
    assert (ended.begun_ns, ended.ended_ns, ended.exit_code) == (5, 8, None)


def test_a_part_that_does_not_begin_is_not_stored(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_summary, "BEGIN_SECONDS", 0.0)
    with pytest.raises(NotPossible, match="ended before it could begin"):
        trace_summary._begun_ns(spool, os.getppid())
    end(spool)
    monkeypatch.setattr(trace_summary, "BEGIN_SECONDS", 60.0)
    with pytest.raises(NotPossible, match="ended before it could begin"):
        trace_summary._begun_ns(spool, os.getppid())
