"""Which line of a program a call belongs to."""

from __future__ import annotations

import sysconfig
from pathlib import Path

from pinscope.tracing import places
from pinscope.tracing.places import NATIVE, place_of

LIBRARY = "/opt/venv/lib/python3.12/site-packages/torch/utils/data/dataloader.py"
STANDARD = f"{sysconfig.get_path('stdlib')}/threading.py"
OURS = str(Path(places.__file__).parent / "start.py")


def test_it_is_the_innermost_line_of_the_program_s_own_code(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("import torch\n  batch = batch.cuda()  # up\n")
    stack = [(LIBRARY, 7, "_next"), (STANDARD, 9, "Thread.run"), (str(path), 2, "train"), (str(path), 40, "<module>")]
    place = place_of([*stack, (OURS, 60, "main")])
    assert (place.file, place.line, place.function) == (str(path), 2, "train")
    assert place.source == "batch = batch.cuda()  # up"
    assert place.stack.splitlines() == [f"{name} ({file}:{line})" for file, line, name in stack]


def test_of_a_program_that_is_a_library_it_is_the_innermost_line() -> None:
    assert place_of([(LIBRARY, 7, "_next"), (STANDARD, 9, "run")]).file == LIBRARY


def test_code_that_is_in_no_file_is_not_the_program_s() -> None:
    assert place_of([("<frozen runpy>", 1, "run"), ("/srv/a.py", 3, "f")]).line == 3


def test_a_thread_without_python_has_no_place() -> None:
    assert place_of([]) == NATIVE
    assert place_of([(OURS, 60, "main")]) == NATIVE
