"""To read takes neither pandas nor Plotly, which a terminal and an exporter do not need."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pandas", "plotly"):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocked())
from pinscope.experiments.registry import read_run
from pinscope.planning.reading import read_plan
from pinscope.store.recordings import recorded_observations, recorded_runs
from tests.unit.planning.test_plan import plan

for run in {run.experiment: run for run in recorded_runs()}.values():
    print(run.experiment, bool(read_run(run, recorded_observations(run.id)).verdict))
print("plan", bool(read_plan(plan(2**30)).verdict))
"""


def test_runs_traces_and_plans_are_read_without_pandas_and_plotly() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert all(line.endswith("True") for line in lines)
    assert {"trace", "timeline", "staging", "plan"} <= {line.partition(" ")[0] for line in lines}
