"""Programs that are traced beside a stand-in for CUPTI, and what the trace holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pinscope.cli.main import main
from pinscope.store.store import Store
from tests.data.fake_cupti import PRELUDE

Document = dict[str, Any]


def program(folder: Path, text: str, name: str = "train.py") -> Path:
    """A program that can copy."""
    path = folder / name
    path.write_text(PRELUDE + text)
    return path


def traced(tmp_path: Path, *arguments: str | Path) -> tuple[int, Document]:
    """Exit code and JSON of a trace in this process."""
    answer = tmp_path / "answer.json"
    code = main(["trace", "--json", str(answer), *map(str, arguments)])
    document = json.loads(answer.read_text())
    answer.unlink()
    return code, document


def started(
    arguments: Sequence[str | Path],
    environment: Mapping[str, str],
    *,
    inherits: int | None = None,
    is_exec: bool = False,
) -> subprocess.Popen[str]:
    """``pinscope trace`` as a process and session of its own.

    Args:
        arguments: behind ``trace``.
        environment: of the process.
        inherits: a descriptor that it is given.
        is_exec: begin with ``python -m pinscope``; else it is a fork of this process, which need not import all again.
    """
    command = ["trace", *map(str, arguments)]

    def begin() -> None:
        for number in {int(path.name) for path in Path("/proc/self/fd").iterdir()} - {0, 1, 2, inherits}:
            with suppress(OSError):  # the one by which the folder was listed
                os.close(number)
        os._exit(_carried_out(command, environment))

    return subprocess.Popen(
        [sys.executable, "-m", "pinscope", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment, pass_fds=[] if inherits is None else [inherits], start_new_session=True,
        restore_signals=is_exec, preexec_fn=None if is_exec else begin,  # noqa: PLW1509 - this process runs no thread of ours
    )  # fmt: skip


def _carried_out(command: list[str], environment: Mapping[str, str]) -> int:
    os.environ.clear()
    os.environ.update(environment)
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(number, mode, closefd=False) for number, mode in enumerate("rww"))
    try:
        return main(command)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def rows(document: Document, kind: str) -> list[dict[str, Any]]:
    """Observations of one kind."""
    return [row for row in document["observations"] if row["kind"] == kind]


def rules(document: Document) -> list[str]:
    """Of its findings."""
    return [finding["rule"] for finding in document["run"]["findings"]]


def attached(document: Document, name: str) -> list[dict[str, Any]]:
    """The rows of an attachment."""
    with Store() as store:
        tables = store.attached(store.run(document["run"]["id"])).tables(name)
        return [row for table in tables for row in table.to_pylist()]
