"""The page table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_FOLDER = Path(__file__).resolve().parent
SCRIPT = _FOLDER / "shell.py"
"""What Streamlit serves: every page stands in it."""


@dataclass(frozen=True)
class PageEntry:
    """One page.

    Attributes:
        path: its script.
        title: its name in the navigation.
        icon: a Material symbol.
        help: page of the documentation that explains it.
    """

    path: Path
    title: str
    icon: str
    help: str


HOME = PageEntry(_FOLDER / "home.py", "Home", ":material/home:", "quick-start")
NOW = PageEntry(_FOLDER / "now.py", "Now", ":material/monitoring:", "live-view")
EXPERIMENTS = PageEntry(_FOLDER / "experiments.py", "Experiments", ":material/science:", "reading-results")
RUNS = PageEntry(_FOLDER / "runs.py", "Runs", ":material/stacked_line_chart:", "reading-results")
PLAN = PageEntry(_FOLDER / "plan.py", "Plan", ":material/calculate:", "plan")

PAGES = (HOME, NOW, EXPERIMENTS, RUNS, PLAN)
"""In the order of the navigation; the dashboard opens on the first."""
