"""``pinscope trace``: run a program and say which of its lines copy pageable memory."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from pinscope.cli.terminal import complain
from pinscope.cli.trace_summary import print_summary
from pinscope.errors import BadInput, PathExists, StoreFailed
from pinscope.probes.environment import capture_environment
from pinscope.report.document import open_document
from pinscope.report.json_report import run_document
from pinscope.runner.jobs import reconcile
from pinscope.runner.recording import check_output
from pinscope.runner.tracing import trace_program
from pinscope.store.rescue import saved_line
from pinscope.store.store import Store


def trace(  # noqa: PLR0917 - typer calls it by keyword
    program: Annotated[str, typer.Argument(metavar="SCRIPT", help="The program: a file, or with -m a module.",
                                           show_default=False)],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[ARGS]...", help="Its arguments.", show_default=False)
    ] = None,
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is the name of a module, as in python -m.")] = False,
    stacks: Annotated[
        bool, typer.Option("--stacks/--no-stacks", help="Read the Python stack of each call, which names its line.")
    ] = True,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Also write a bundle to this file, which must not "
                     "exist yet, such as train.pinscope.", show_default=False),
    ] = None,
    as_json: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Also write the result as JSON to this file, which must not exist "
                     "yet. Stdout is the program's.", show_default=False),
    ] = None,
) -> int:  # fmt: skip
    """Run a Python program as python would, and say which of its lines copy from or to pageable memory, how long that
    holds the CPU and the GPU's compute, and what pinning would save. Ends with the program's own exit code."""
    if output is not None:
        check_output(output)
    if as_json is not None:
        _check_new(as_json)
    command = [*(["-m"] if module else []), program, *(arguments or ())]
    with Store() as store:
        reconcile(store)
        if store.refusal:
            raise StoreFailed(f"nothing can be stored in {store.name}: {store.refusal}")
        traced = trace_program(store, command, capture_environment(), stacks=stacks, output=output)
    document = open_document(traced.run, traced.rows, with_charts=False)
    if as_json is not None:
        as_json.write_text(json.dumps(run_document(document), indent=2, allow_nan=False) + "\n")
    print_summary(document)
    if traced.run.error:
        complain(f"the trace failed: {traced.run.error}")
    if traced.saved is not None:
        complain(saved_line(traced.saved))
    return _end_like(traced.exit_code)


def _check_new(path: Path) -> None:
    if os.path.lexists(path):
        raise PathExists(f"{path} is there already; PinScope does not overwrite files")
    if not path.parent.is_dir():
        raise BadInput(f"cannot write {path}: there is no folder {path.parent}")


def _end_like(code: int) -> int:
    """The exit code of the program, or its end by a signal."""
    if code >= 0:
        return code
    sys.stdout.flush()
    sys.stderr.flush()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program's core, if any, is its own
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
    return 128 - code  # the signal is blocked
