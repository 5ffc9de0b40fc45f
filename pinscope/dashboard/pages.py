"""The page table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_FOLDER = Path(__file__).resolve().parent


@dataclass(frozen=True)
class PageEntry:
    """One page.

    Attributes:
        path: its script.
        title: its name in the navigation.
        icon: a Material symbol.
    """

    path: Path
    title: str
    icon: str


HOME = PageEntry(_FOLDER / "home.py", "Home", ":material/home:")
NOW = PageEntry(_FOLDER / "now.py", "Now", ":material/monitoring:")
EXPERIMENTS = PageEntry(_FOLDER / "experiments.py", "Experiments", ":material/science:")
RUNS = PageEntry(_FOLDER / "runs.py", "Runs", ":material/stacked_line_chart:")
PLAN = PageEntry(_FOLDER / "plan.py", "Plan", ":material/calculate:")

PAGES = (HOME, NOW, EXPERIMENTS, RUNS, PLAN)
"""In the order of the navigation; the dashboard opens on the first."""
