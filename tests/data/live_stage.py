"""``pinscope live`` on a SYNTHETIC host: ``python -m tests.data.live_stage FOLDER [OPTION]…``.

The host lies in FOLDER, with as many holders as :func:`set_up` gives it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pinscope.cli.live
from pinscope.cli.main import main
from pinscope.live.source import LiveSource
from pinscope.probes.proc import Proc
from tests.data.synthetic_host import PAGE, SyntheticHost, zero

GIB = 2**30
HELD = {"train": 8 * GIB, "serve": 3 * GIB, "loader": 5 * GIB, "index": 1 * GIB}
"""Program → its cudaHostAlloc memory, in the order of their pids."""


def set_up(folder: Path) -> dict[str, int]:
    """Make the host; program → pid."""
    host = SyntheticHost(folder, pinned_bytes=sum(HELD.values()))
    return {
        name: host.cuda_process([zero(size, number)], name=name, parent=2)
        for number, (name, size) in enumerate(HELD.items(), 1)
    }


def pin_more(folder: Path, more: int) -> None:
    """Let the host's total grow: memory that somebody registered."""
    acquired = 7_000_000 + (sum(HELD.values()) + more) // PAGE
    text = f"nr_free_pages 1\nnr_foll_pin_acquired {acquired}\nnr_foll_pin_released 7000000\npswpin 0\n"
    place = folder / "proc/vmstat"
    place.with_suffix(".new").write_text(text)
    place.with_suffix(".new").rename(place)


if __name__ == "__main__":
    here = Proc.below(Path(sys.argv[1]))
    pinscope.cli.live.open_source = lambda **_: LiveSource(here)  # type: ignore[assignment]
    raise SystemExit(main(["live", *sys.argv[2:]]))
