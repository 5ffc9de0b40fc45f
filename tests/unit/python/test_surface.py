"""What ``import pinscope`` offers, and what it costs."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pinscope

ROOT = Path(__file__).parents[3]
LOADED = "import sys; before = set(sys.modules); import pinscope; print(*sorted(set(sys.modules) - before))"


def test_the_names_are_these_in_order_each_with_words_and_offered_by_completion() -> None:
    names = [
        "Comparison",
        "Plan",
        "Run",
        "Runs",
        "__version__",
        "check",
        "compare",
        "live",
        "open",
        "pinned_empty",
        "plan",
    ]
    names += ["report_host_memory", "run", "runs", "trace"]
    assert names == pinscope.__all__ == sorted(pinscope.__all__)
    assert set(pinscope.__all__) <= set(dir(pinscope))
    assert all(inspect.getdoc(getattr(pinscope, name)) for name in pinscope.__all__)
    assert (ROOT / "pinscope" / "py.typed").exists()


def test_importing_it_loads_nothing_but_itself() -> None:
    """So it takes milliseconds, and nothing of a working folder can run."""
    loaded = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert loaded.split() == ["pinscope"]


def test_a_name_that_there_is_not_is_none() -> None:
    assert not hasattr(pinscope, "open_run")


def test_what_it_names_for_type_checkers_is_what_it_gives() -> None:
    source = (ROOT / "pinscope" / "__init__.py").read_text()
    offered = source.partition("from pinscope.python.session import ")[2].splitlines()[0].split(", ")
    assert {getattr(pinscope, name).__module__ for name in offered} == {"pinscope.python.session"}
    assert {name for name in pinscope.__all__ if name not in vars(pinscope)} <= {*offered, "live"}
