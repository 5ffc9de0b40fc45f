"""Keeps what is recorded of a part of a program that runs beside it.

``pinscope.trace`` starts it, with the part's name and file as JSON on stdin; the last line on stdout says where the
spool is. It ends when the part does, or the program: the program removes the spool's configuration when the part ends.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from pinscope.cli.terminal import complain
from pinscope.cli.trace_summary import print_summary
from pinscope.errors import NotPossible, PinScopeError, StoreFailed
from pinscope.probes.environment import capture_environment
from pinscope.report.document import open_document
from pinscope.runner.jobs import reconcile
from pinscope.runner.pinned_rates import pinned_rates
from pinscope.runner.recording import check_output
from pinscope.runner.traced_program import ask_cupti, make_spool, opened_folder, refusal, remove_spool
from pinscope.runner.tracing import Tracing, new_run
from pinscope.store.safe_writer import saved_line
from pinscope.store.store import Store
from pinscope.tracing.line_totals import Ended
from pinscope.tracing.spool import Scope, Spool
from pinscope.tracing.spool_folder import SpoolFolder
from pinscope.tracing.trace.kind import TraceParams

LOOK_SECONDS = 0.05
"""How often the keeper looks at the spool; the program waits for it at the part's end."""
BEGIN_SECONDS = 60.0
"""So long the program may take to begin once the keeper is ready: Ctrl-C may have come before it knew of the keeper."""


def main(what: Mapping[str, Any]) -> int:
    """Keep the part.

    Args:
        what: name, file, whether stacks are kept, and the program's command and process.

    Returns:
        0, or the exit code of what went wrong; a line on stderr has said it.
    """
    try:
        path = Path(tempfile.mkdtemp(prefix="pinscope-trace-"))
        signal.signal(signal.SIGTERM, partial(_give_up, path))
        try:
            with opened_folder(str(path)) as folder:
                return _keep(folder, path, what)
        finally:
            remove_spool(path)
    except (PinScopeError, OSError) as error:  # such as of a spool that is gone, because the part did not begin
        complain(f"the part {what['name']!r} is not recorded: {error}")
        return error.exit_code if isinstance(error, PinScopeError) else PinScopeError.exit_code


def _give_up(path: Path, *signalled: object) -> NoReturn:
    """The part did not begin."""
    del signalled
    remove_spool(path)
    os._exit(1)


def _keep(folder: Path, path: Path, what: Mapping[str, Any]) -> int:
    output = None if what["output"] is None else Path(what["output"])
    if output is not None:
        check_output(output, "trace")
    environment, scope = capture_environment(), Scope(stacks=what["stacks"], children=False)
    setup = ask_cupti(environment.cuda_driver)
    with Store() as store:
        reconcile(store)
        if store.refusal:
            raise StoreFailed(f"nothing can be stored in {store.name}: {store.refusal}")
        rates = pinned_rates(store, environment)
        params = TraceParams(
            program=tuple(what["program"]), part=what["name"], stacks=scope.stacks, children=False, **rates
        )
        kept = folder / "kept"
        kept.mkdir()
        spool = make_spool(folder, setup, scope, time.time_ns())
        answer = {"spool": SpoolFolder.of(folder.stat(), str(path)).handover, "library": setup["library"]}
        sys.stdout.write(f"\n{json.dumps(answer)}\n")
        sys.stdout.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the program reads to the end
        begun_ns = _begun_ns(spool, what["pid"])
        tracing = Tracing(store, new_run(params, environment), kept, scope, lambda _: ())
        traced = tracing.follow(lambda look: _follow(spool, what["pid"], begun_ns, look), output)
    print_summary(open_document(traced.run, traced.rows, with_charts=False))
    if traced.run.error:
        complain(f"the trace failed: {traced.run.error}")
    if traced.saved is not None:
        complain(saved_line(traced.saved))
    return 0


def _begun_ns(spool: Spool, program: int) -> int:
    """When the program began to record. It is waited for: before, there is nothing to store.

    Raises:
        NotPossible: CUPTI did not let it, or it ended before.
    """
    latest = time.monotonic() + BEGIN_SECONDS
    goes_on = True
    while goes_on:
        goes_on = _goes_on(spool, program) and time.monotonic() < latest  # first: a short part may end meanwhile
        if started := spool.document("started.json"):
            return int(started["ns"])
        _mind_refusal(spool)
        time.sleep(LOOK_SECONDS / 5)
    raise NotPossible("the program ended before it could begin")


def _follow(spool: Spool, program: int, begun_ns: int, look: Callable[[Spool], None]) -> Ended:
    """Look at the spool until the part has ended.

    Raises:
        NotPossible: CUPTI did not let the program record.
    """
    while _goes_on(spool, program):
        look(spool)
        time.sleep(LOOK_SECONDS)
    ended = spool.document("ended.json") or {"ns": time.time_ns()}
    look(spool)
    _mind_refusal(spool)
    return Ended(begun_ns, int(ended["ns"]), None)


def _goes_on(spool: Spool, program: int) -> bool:
    return os.getppid() == program and (spool.folder / "config.json").exists()


def _mind_refusal(spool: Spool) -> None:
    if refused := spool.document("refused.json"):
        raise refusal(refused)


if __name__ == "__main__":
    sys.exit(main(json.load(sys.stdin)))
