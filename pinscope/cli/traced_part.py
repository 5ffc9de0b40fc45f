"""Keeps what is recorded of a part of a program that runs beside it: ``traced_part.py SPOOL WHAT``.

``pinscope.trace`` starts it, with the part's name and file as JSON. It ends when the part does, or the program.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pinscope.cli.terminal import complain
from pinscope.cli.trace_summary import print_summary
from pinscope.errors import PinScopeError, StoreFailed
from pinscope.experiments.trace.experiment import TraceParams
from pinscope.probes.environment import capture_environment
from pinscope.report.document import open_document
from pinscope.runner.jobs import reconcile
from pinscope.runner.pinned_rates import pinned_rates
from pinscope.runner.recording import check_output
from pinscope.runner.traced_program import ask_cupti, make_spool, refusal
from pinscope.runner.tracing import Tracing, new_run
from pinscope.store.rescue import saved_line
from pinscope.store.store import Store
from pinscope.tracing.part import PART_ENDED
from pinscope.tracing.scope import Scope
from pinscope.tracing.spool import Spool
from pinscope.tracing.summed import Ended

LOOK_SECONDS = 0.05
"""How often the keeper looks at the spool; the program waits for it at the part's end."""


def main(spool: Path, what: Mapping[str, Any], program: int) -> int:
    """Keep the part.

    Args:
        spool: the folder that the program has made; it is gone afterwards.
        what: name, file, whether stacks are kept, and the program's command.
        program: its process.

    Returns:
        0, or the exit code of what went wrong; a line on stderr has said it.
    """
    try:
        return _keep(spool, what, program)
    except PinScopeError as error:
        complain(f"the part {what['name']!r} is not recorded: {error}")
        return error.exit_code
    finally:
        shutil.rmtree(spool, ignore_errors=True)


def _keep(folder: Path, what: Mapping[str, Any], program: int) -> int:
    output = None if what["output"] is None else Path(what["output"])
    if output is not None:
        check_output(output)
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
        tracing = Tracing(store, new_run(params, environment), kept, scope, lambda _: ())
        traced = tracing.follow(lambda look: _follow(spool, program, look), output)
    print_summary(open_document(traced.run, traced.rows, with_charts=False))
    if traced.run.error:
        complain(f"the trace failed: {traced.run.error}")
    if traced.saved is not None:
        complain(saved_line(traced.saved))
    return 0


def _follow(spool: Spool, program: int, look: Callable[[Spool], None]) -> Ended:
    """Look at the spool until the part has ended.

    Raises:
        NotPossible: CUPTI did not let the program record.
    """
    begun = time.time_ns()
    while os.getppid() == program and spool.document(PART_ENDED) is None:
        look(spool)
        time.sleep(LOOK_SECONDS)
    ended = spool.document(PART_ENDED) or {"ns": time.time_ns()}
    look(spool)
    if refused := spool.document("refused.json"):
        raise refusal(refused)
    started = spool.document("started.json") or {"ns": begun}
    return Ended(int(started["ns"]), int(ended["ns"]), None)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), json.loads(sys.argv[2]), os.getppid()))
