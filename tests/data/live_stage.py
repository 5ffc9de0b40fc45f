"""``pinscope live`` on a SYNTHETIC host: ``python -m tests.data.live_stage FOLDER [OPTION]…``.

``… FOLDER dashboard`` serves the dashboard with it. The host lies in FOLDER, with as many holders as :func:`set_up`
gives it.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from pathlib import Path

import pinscope.cli.live
from pinscope.cli.main import main
from pinscope.live.source import LiveSource
from pinscope.probes.proc import Proc
from tests.data.synthetic_host import PAGE, SyntheticHost, maps_text, named, zero

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


def grow(folder: Path, name: str, size: int) -> None:
    """Let a program hold so many bytes."""
    number, pid = next((place + 1, 1000 + place) for place, one in enumerate(HELD) if one == name)
    libraries = [named(25 * 2**20, "/usr/lib/x86_64-linux-gnu/libcuda.so.580.159", "r-xp")]
    for path, text in (
        (f"proc/{pid}/maps", maps_text([*libraries, zero(size, number)])),
        (f"proc/{pid}/status", _with_size(folder / f"proc/{pid}/status", size)),
    ):
        place = folder / path
        place.with_suffix(".new").write_text(text)
        place.with_suffix(".new").rename(place)


def _with_size(status: Path, size: int) -> str:
    """Its status, with that much shared memory in it."""
    amounts = {"VmPeak": size + 45 * 2**20, "VmSize": size + 45 * 2**20, "RssShmem": size}
    return re.sub(
        r"^(VmPeak|VmSize|RssShmem):.*$", lambda found: f"{found[1]}:\t{amounts[found[1]] // 1024:8} kB",
        status.read_text(), flags=re.M,
    )  # fmt: skip


if __name__ == "__main__":
    if name := os.environ.get("PINSCOPE_STAGE_NAME"):
        platform.node = lambda: name
    here = Proc.below(Path(sys.argv[1]))
    pinscope.cli.live.open_source = lambda **_: LiveSource(here)  # type: ignore[assignment]
    if sys.argv[2:] == ["dashboard"]:
        from pinscope.dashboard import live_board

        live_board.open_source = lambda **_: LiveSource(here)  # type: ignore[assignment]
        raise SystemExit(main(["dashboard"]))
    raise SystemExit(main(["live", *sys.argv[2:]]))
