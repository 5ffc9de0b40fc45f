"""Adding a way to ``staging`` is one record and one function of its name: it is then measured, read, told and drawn."""

from __future__ import annotations

import subprocess
import sys

RECORD = """
    "twice": way(
        "two copies", "copying it twice", LineStyle("copy", "cross"), "choice", "two cudaMemcpyAsync in a row"
    ),
"""
FUNCTION = """

def twice(bench: Bench, threads: int, held: ExitStack) -> Steps:
    def run(uses: int) -> Marks:
        bench.copies(bench.source.address, uses)
        return bench.copies(bench.source.address, uses)

    return bench.steps(run)
"""
PROGRAM = """
import sys
from importlib.util import find_spec, module_from_spec
from pathlib import Path

spec = find_spec("pinscope.experiments.staging.ways")
ways = sys.modules[spec.name] = module_from_spec(spec)
begin, table, rest = Path(spec.origin).read_text().partition("WAYS: Mapping[str, Way] = {")
exec(compile(begin + table + sys.argv[1] + rest + sys.argv[2], spec.origin, "exec"), vars(ways))

from pinscope.experiments.registry import draw_run, read_run
from pinscope.experiments.staging.experiment import Staging, StagingParams, _repeat
from pinscope.lab.harness import Harness
from tests.data import synthetic
from tests.unit.experiments.staging.late_engine import LateEngine
from tests.unit.experiments.staging.test_ways import bench

params = StagingParams.preset("cuda", quick=True).with_overrides(
    {"ways": "plain,twice", "repeats": 8, "sizes": "64KiB,128KiB"}
)
rows = []
for case in Staging().cases(params):
    with bench(LateEngine(), case.what.bytes) as here:
        rows += [row.model_dump() for row in _repeat(case.what, here, params, Harness())]
run = synthetic.run("staging")
print(StagingParams.model_fields["ways"].description)
reading = read_run(run, rows)
print(*(row for table in reading.tables for row in table.rows if "two copies" in row))
print(*(trace.name for chart in draw_run(run, rows) for trace in chart.figure.data))
print(reading.verdict)
"""


def test_a_new_way_is_a_parameter_a_row_of_the_tables_and_a_line_of_the_charts() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, RECORD, FUNCTION], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    parameter, rows, drawn, verdict = done.stdout.splitlines()
    assert "twice: two cudaMemcpyAsync in a row; plain: " in parameter
    assert rows.count("two copies") >= 2
    assert "two copies" in drawn
    assert verdict.startswith("Copy ")
