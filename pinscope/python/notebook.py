"""``%%pinscope``: a cell of a notebook, traced."""

from __future__ import annotations

import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pinscope


def load(shell: Any) -> None:
    """Give an IPython shell the magic."""

    def traced(line: str, cell: str) -> pinscope.Run | None:
        """Run the cell, and show which of its lines copy pageable memory. Beside the magic stands a name for it."""
        name = line.strip() or "cell"
        source = f"\n{shell.transform_cell(cell)}"  # the line of the magic is the cell's first
        with TemporaryDirectory(prefix="pinscope-cell-") as folder:  # from where its lines are read and named
            file = Path(folder, f"{re.sub(r'[^a-zA-Z0-9]+', '_', name)}.py")
            file.write_text(source, "utf-8")
            with pinscope.trace(name) as part:
                exec(compile(source, file, "exec", dont_inherit=True), shell.user_ns)  # noqa: S102 - as a cell is run
        return part.result

    shell.register_magic_function(traced, "cell", "pinscope")
