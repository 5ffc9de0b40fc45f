"""What ``--what-if`` is asked for, and how a program's stdout is heard."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pinscope.errors import BadInput
from pinscope.runner import what_if
from pinscope.runner.what_if import HeardStdout, parse_request


def test_lines_are_looked_for_here_and_beside_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    for folder in ("here", "there"):
        (tmp_path / folder / f"{folder}.py").write_text("a\nb\n")
    monkeypatch.chdir(tmp_path / "here")
    program = "../there/there.py"
    assert parse_request([], program) is None
    every, chosen = (
        parse_request(texts, program)
        for texts in (["pin", "pin"], ["pin:here.py:1", "pin:there.py:2", "pin:here.py:1"])
    )
    assert every is not None
    assert chosen is not None
    assert every.lines == ()
    assert chosen.lines == (
        (str(tmp_path / "here" / "here.py"), 1), (str(tmp_path / "there" / "there.py"), 2),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["pun"], "not 'pun'"),
        (["pin:"], "not 'pin:'"),
        (["pin:train.py"], "not 'pin:train.py'"),
        (["pin:train.py:x"], "not 'pin:train.py:x'"),
        (["pin:none.py:1"], "there is no file none.py"),
        (["pin:train.py:0"], "train.py has 2 lines, and no line 0"),
        (["pin:short.py:3"], "short.py has 1 line, and no line 3"),
        (["pin:train.py:3"], "train.py has 2 lines, and no line 3"),
        (["pin", "pin:train.py:1"], "pin alone means every line"),
    ],
)
def test_what_is_no_line_is_refused(texts: list[str], words: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("a\nb\n")
    (tmp_path / "short.py").write_text("a\n")
    with pytest.raises(BadInput) as refusal:
        parse_request(texts, str(tmp_path / "train.py"))
    assert words in str(refusal.value)


def write(stdout: HeardStdout, code: str) -> None:
    subprocess.run([sys.executable, "-c", code], stdout=stdout.descriptor, check=True)


def test_what_a_program_writes_is_passed_on_and_compared(capfd: pytest.CaptureFixture[str]) -> None:
    sums = []
    for text, pass_on in (("'x' * 200_000", True), ("'x' * 200_000", False), ("'y'", False)):
        with HeardStdout(pass_on) as stdout:
            write(stdout, f"print({text})")
            sums.append(stdout.finish())
    assert capfd.readouterr().out == "x" * 200_000 + "\n"
    assert sums[0] == sums[1] != sums[2]


def test_a_child_that_holds_stdout_open_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(what_if, "LINGER_SECONDS", 0.1)
    with HeardStdout(pass_on=False) as stdout:
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=stdout.descriptor)
        stdout.finish()
    assert child.poll() is None
    child.communicate(b"\n")


def test_a_program_whose_output_nobody_takes_gets_the_error() -> None:
    code = (
        "import sys; from pinscope.runner.what_if import HeardStdout; import subprocess\n"
        "with HeardStdout(True) as stdout:\n"
        "    print(subprocess.run(['yes'], stdout=stdout.descriptor).returncode, file=sys.stderr)\n"
    )
    read, written = os.pipe()
    child = subprocess.Popen([sys.executable, "-c", code], stdout=written, stderr=subprocess.PIPE)
    os.close(written)
    os.read(read, 10)
    os.close(read)
    assert child.communicate(timeout=20)[1].strip() in (b"-13", b"1")


def test_a_terminal_stays_one_as_large_as_ours() -> None:
    code = "import os; print(os.isatty(1), os.get_terminal_size(1).columns)"
    ours = (
        "import subprocess, sys; from pinscope.runner.what_if import HeardStdout\n"
        "with HeardStdout(True) as stdout:\n"
        f"    subprocess.run([sys.executable, '-c', {code!r}], stdout=stdout.descriptor, check=True)\n"
    )
    script = ["script", "-qec", f'stty columns 77; {sys.executable} -c "$CODE"', "/dev/null"]
    done = subprocess.run(
        script, env={**os.environ, "CODE": ours}, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "True 77"
