"""What works where only PinScope's base is installed: no Streamlit, Plotly, pandas or jinja2."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
COMMANDS = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("google", "streamlit", "starlette", "plotly", "pandas", "jinja2", "markupsafe"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
from pinscope.cli.main import main

ended, run = [], ""
for command in json.loads(sys.argv[1]):
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as errors:
        code = main([word.replace("RUN", run) for word in command])
    ended.append((code, out.getvalue(), errors.getvalue()))
    if command[0] == "run":
        run = json.loads(out.getvalue())["run"]["id"]
print(json.dumps(ended))
"""
"""Each command's exit code, standard output and errors; RUN is the one that was measured before."""
MEASURE = "run bandwidth --lab host --quick --set sizes=64KiB --set repeats=8 --set directions=h2d --json"
FILES = ("run.csv", "run.json", "run.md", "run.parquet")


def test_a_node_without_a_dashboard_measures_shows_writes_and_says_what_it_lacks(tmp_path: Path) -> None:
    shown = ("runs list", "runs show RUN", "doctor", "live --once --json", "plan --pinned 64GiB")
    works = (MEASURE, *shown, "record --for 0.5s", "docs quick-start --text", *(f"report RUN -o {f}" for f in FILES))
    lacks = ("dashboard", "report RUN -o run.html")
    commands = json.dumps([command.split() for command in (*works, *lacks)])
    done = subprocess.run(
        [sys.executable, "-P", "-c", COMMANDS, commands], cwd=tmp_path, stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    ended: list[Any] = json.loads(done.stdout)
    for command, (code, out, errors) in zip(works, ended, strict=False):
        assert (code, bool(out)) == (0, True), f"{command}: {errors}"
    run = json.loads(ended[0][1])["run"]
    assert run["id"][:15] in ended[1][1]
    assert run["verdict"].split()[0] in ended[2][1]
    assert all((tmp_path / name).stat().st_size for name in FILES)
    for code, _, errors in ended[len(works) :]:
        (line,) = errors.splitlines()
        assert code == 3
        assert "this needs the extra dashboard, which is not installed here; run: " in line
