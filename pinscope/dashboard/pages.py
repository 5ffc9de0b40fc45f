"""The page table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_FOLDER = Path(__file__).resolve().parent
SCRIPT = _FOLDER / "shell.py"
"""What Streamlit serves: every page stands in it."""
MANUAL_ROOT = "/manual/"
"""Below it the dashboard serves the documentation."""


@dataclass(frozen=True)
class PageEntry:
    """One page.

    Attributes:
        path: its script.
        title: its name in the navigation.
        icon: a Material symbol.
        help: page of the documentation that explains it.
        opening: the sentences below its heading, where it has any.
        heading: what the page begins with, where that is not its title.
    """

    path: Path
    title: str
    icon: str
    help: str
    opening: str = ""
    heading: str = ""

    @property
    def address(self) -> str:
        """Path of its address."""
        return "/" if self is HOME else f"/{self.path.stem}"


HOME = PageEntry(
    _FOLDER / "home.py",
    "Home",
    ":material/home:",
    "quick-start",
    "PinScope measures what page-locked (pinned) host memory brings to a CUDA program, and what it costs: "
    "on this machine, with the numbers behind every conclusion.",
    heading="What does pinned memory buy on this machine?",
)
NOW = PageEntry(
    _FOLDER / "now.py",
    "Now",
    ":material/monitoring:",
    "live-view",
    "Who holds pinned memory on this host, and what does it cost the GPUs? "
    "The usual tools (psutil, VmLck, smaps) show zero for memory that CUDA pinned.",
)
EXPERIMENTS = PageEntry(_FOLDER / "experiments.py", "Experiments", ":material/science:", "reading-results")
RUNS = PageEntry(_FOLDER / "runs.py", "Runs", ":material/stacked_line_chart:", "reading-results")
COMPARE = PageEntry(
    _FOLDER / "compare.py", "Compare", ":material/compare_arrows:", "compare", "Is it better now, and by how much?"
)
TREND = PageEntry(
    _FOLDER / "trend.py", "Trend", ":material/timeline:", "check", "Since when is it slower, and what changed there?"
)
FLEET = PageEntry(
    _FOLDER / "fleet.py",
    "Fleet",
    ":material/hub:",
    "fleet",
    "Are all hosts as they should be? A GPU is named that is worse than others like it in at least two runs.",
)
PLAN = PageEntry(
    _FOLDER / "plan.py",
    "Plan",
    ":material/calculate:",
    "plan",
    "What does it take to pin an amount: GPU memory for page tables, time, and how much is safe on this host? "
    "The plan uses runs of this machine where there are any, else recorded ones. Nothing is pinned.",
)

TRACES = PageEntry(
    _FOLDER / "traces.py",
    "Traces",
    ":material/route:",
    "tracing",
    "Which line of your program copies pageable memory, and what would pinning it save? "
    "A trace runs the program as it is and answers line by line.",
)

PAGES = (HOME, NOW, EXPERIMENTS, TRACES, RUNS, COMPARE, TREND, FLEET, PLAN)
"""In the order of the navigation; the dashboard opens on the first."""
