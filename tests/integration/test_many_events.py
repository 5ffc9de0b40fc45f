"""A run that carries many events: writing, reading, exporting and importing it take the memory of a few parts.

A million events here; ten million with ``PINSCOPE_FAULTS=whole``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
EVENTS = 10_000_000 if os.environ.get("PINSCOPE_FAULTS") == "whole" else 1_000_000
MOST_MIB = 300
"""Beyond what the process has when everything is imported."""
PROGRAM = """
import sys
from pathlib import Path
import pyarrow.parquet
from pinscope.store.bundle import open_bundle, write_bundle
from pinscope.store.store import Store
from tests.data.events import SCHEMA, events
from tests.unit.store.runs import new_run

def memory(name):
    # Not of getrusage: on Linux that counts the peak of the parent before the exec as well.
    return int(next(line for line in Path("/proc/self/status").open() if line.startswith(name)).split()[1])

def do(step, folder, count):
    with Store(f"sqlite:///{folder}/{'there' if step == 'import' else 'here'}.db") as store:
        if step == "write":
            store.add(new_run("many", status="done"))
            with store.attach("many", "copies", SCHEMA) as writer:
                for first in range(0, count, 100_000):
                    writer.write(events(first, min(100_000, count - first)))
        if step == "read":
            assert sum(piece.num_rows for piece in store.attached(store.run("many")).tables("copies")) == count
        if step == "export":
            run = store.run("many")
            write_bundle(folder / "many.pinscope", [(run, store.observations(run.id))], store.parts)
        if step == "import":
            with open_bundle(folder / "many.pinscope") as bundle:
                assert store.import_runs(bundle.items(), bundle.parts).added == ("many",)
            assert store.run("many").attachments[0].rows == count
        if step == "delete":
            store.delete("many")

before = memory("VmRSS")
for step in ("write", "read", "export", "import", "delete"):
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    do(step, Path(sys.argv[1]), int(sys.argv[2]))
    print(step, (memory("VmHWM") - before) / 1024)
"""


def test_no_step_holds_all_events_in_memory(tmp_path: Path) -> None:
    """What one step leaves is what the next one takes."""
    child = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), str(EVENTS)],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert child.returncode == 0, child.stdout + child.stderr
    steps = {step: float(mib) for step, mib in (line.split() for line in child.stdout.splitlines())}
    assert len(steps) == 5
    assert max(steps.values()) < MOST_MIB, steps
