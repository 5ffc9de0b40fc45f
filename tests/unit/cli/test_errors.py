"""Whatever goes wrong is one line on stderr and a known exit code; nothing is changed."""

from __future__ import annotations

import hashlib
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pinscope.cli import machine
from pinscope.cli.main import main
from pinscope.store.store import Store

HOST = ("--lab", "host")


def refused(arguments: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> str:
    """Carry out a command that must fail; its one line without ``pinscope: ``."""
    assert main(arguments) == code
    out, errors = capsys.readouterr()
    assert out == ""
    assert errors.startswith("pinscope: ")
    assert errors.count("\n") == 1
    return errors.removeprefix("pinscope: ").strip()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["run", "nope", *HOST], 2, "no experiment 'nope'; there are: bandwidth, overlap"),
        (["run", "bandwidth", *HOST, "--set", "sizes=1024TiB"], 3, " is safe here"),
        (["run", "all", *HOST, "--set", "sizes=1024TiB"], 3, " is safe here"),
        (["run", "bandwidth", *HOST, "--device", "1"], 2, "no device 1"),
        (["run", "bandwidth", "--lab", "tpu"], 2, "'--lab': 'tpu' is not one of 'cuda', 'host'"),
        (["run", "bandwidth", *HOST, "--set", "nope=1"], 2, "no parameter 'nope'; there are: node, precision"),
        (["run", "bandwidth", *HOST, "--set", "sizes"], 2, "KEY=VALUE"),
        (["run", "bandwidth", *HOST, "--set", "sizes=8", "--set", "sizes=16"], 2, "given twice"),
        (["run", "all", *HOST, "--set", "nope=1"], 2, "no experiment has a parameter 'nope'"),
        (["run"], 2, "Missing argument"),
        (["nope"], 2, "No such command"),
        (["runs", "export"], 2, "No such command 'export'"),
        (["runs", "cancel", "nope"], 2, "no run 'nope'"),
        (["runs", "list", "--experiment", "nope"], 2, "no experiment 'nope'; there are: bandwidth"),
        (["runs", "list", "--status", "over"], 2, "'over' is not one of 'running', 'done'"),
        (["runs", "list", "--lab", "tpu"], 2, "'tpu' is not one of 'cuda', 'host', 'live'"),
        (["run", "bandwidth", "--nope"], 2, "No such option"),
        (["runs", "show", "nope"], 2, "no run 'nope'"),
        (["runs", "delete", "nope", "--yes"], 2, "no run 'nope'"),
        (["report", "nope", "-o", "new.html"], 2, "no run 'nope'"),
        (["report", "nope"], 2, "--output"),
        (["export", "nope", "-o", "new.pinscope"], 2, "no run 'nope'"),
        (["import", "absent.pinscope"], 2, "absent.pinscope"),
        (["dashboard", "--port", "70000"], 2, "less than or equal to 65535"),
    ],
)
def test_bad_input_is_one_line_and_changes_nothing(
    arguments: list[str], code: int, complaint: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert complaint in refused(arguments, code, capsys)
    assert list(here.iterdir()) == []
    with Store() as store:
        assert store.runs(recordings=False) == []


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="shows what happens without a GPU")
def test_a_gpu_that_is_not_there_is_not_possible_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no GPU" in refused(["run", "bandwidth", "--lab", "cuda"], 3, capsys)


def test_a_port_that_is_no_number_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("eighty", "0", "70000", "8501.5", "-1"):
        monkeypatch.setenv("PINSCOPE_PORT", text)
        assert "PINSCOPE_PORT" in refused(["dashboard"], 2, capsys)


def test_a_database_that_cannot_be_opened_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.db"
    text.write_text("this is no database at all, but long enough to be looked at")
    before = hashlib.sha256(text.read_bytes()).hexdigest()
    monkeypatch.setenv("PINSCOPE_DATABASE", f"sqlite:///{text}")
    refused(["runs", "list"], 1, capsys)
    assert hashlib.sha256(text.read_bytes()).hexdigest() == before
    monkeypatch.setenv("PINSCOPE_DATABASE", "nonsense")
    refused(["runs", "list"], 2, capsys)


def test_an_unexpected_error_is_one_line_that_says_how_to_see_more(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(document: object) -> None:
        raise RuntimeError("line one\nline \x1b[31mtwo")

    monkeypatch.setattr(machine, "print_json", broken)
    line = refused(["doctor", "--json"], 1, capsys)
    assert line == "unexpected RuntimeError: line one line [31mtwo (PINSCOPE_DEBUG=1 shows where)"
    monkeypatch.setenv("PINSCOPE_DEBUG", "1")
    assert main(["doctor", "--json"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_an_interrupted_command_ends_with_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(document: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(machine, "print_json", interrupted)
    assert refused(["doctor", "--json"], 130, capsys) == "interrupted"


def test_a_value_is_refused_in_plain_words(capsys: pytest.CaptureFixture[str]) -> None:
    for setting, complaint in [
        ("sizes=", "sizes: needs at least one value"),
        ("sizes=0", "sizes: must be greater than 0 (given: '0')"),
        ("repeats=7.5", "repeats: must be a whole number (given: '7.5')"),
        ("precision=fine", "precision: must be a number (given: 'fine')"),
        ("memory=gold", "memory: must be pageable, pinned, write_combined, mapped or registered"),
    ]:
        assert refused(["run", "bandwidth", *HOST, "--set", setting], 2, capsys).startswith(complaint)


def test_an_experiment_without_meaning_here_is_named_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(["run", "pinning_strategy", *HOST], 3, capsys)
    assert line.startswith("Pinning strategy does not run on the host model (no GPU): ")


@pytest.mark.parametrize("way", [">/dev/full", ">&-"])
def test_output_that_nobody_can_take_is_no_surprise(way: str) -> None:
    command = f"{shlex.quote(sys.executable)} -m pinscope --help {way}"
    ended = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=False, timeout=60)
    expected = "pinscope: the output cannot be written: No space left on device\n" if "full" in way else ""
    assert ended.stderr == expected
    assert ended.returncode == (1 if expected else 0)
