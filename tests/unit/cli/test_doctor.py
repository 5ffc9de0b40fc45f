"""``pinscope doctor`` answers whatever is wrong with the place for runs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from pinscope.cli import machine
from pinscope.cli.main import main
from pinscope.records.run import Finding, note, warning


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("sqlite:////data/runs.db", "/data/runs.db"),
        ("postgresql://me:secret@db.example/runs", "postgresql://me@db.example/runs"),
        ("nonsense", "n/a (PINSCOPE_DATABASE is not a database URL"),
    ],
)
def test_the_doctor_tells_where_runs_are_kept_without_opening_it(
    address: str, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PINSCOPE_DATABASE", address)
    assert main(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["database"].startswith(told)
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert re.search(f"Runs are kept in +{re.escape(told)}", out)
    assert "secret" not in out
    assert not Path("/data/runs.db").exists()


@pytest.mark.parametrize(("finding", "code"), [(warning, 1), (note, 0)])
def test_a_check_fails_where_something_is_worse_than_it_should_be(
    finding: Callable[..., Finding], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = finding("link", title="The link is slow", detail="It is.", advice="Mend it.")
    monkeypatch.setattr(machine, "machine_findings", lambda _: (told,))
    assert main(["doctor", "--check"]) == code
    assert main(["doctor", "--check", "--json"]) == code
    assert main(["doctor"]) == 0
