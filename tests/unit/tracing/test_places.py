"""Which line of a program a call belongs to."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from pinscope.records.base import TEXT_CHARACTERS
from pinscope.tracing import places
from pinscope.tracing.places import NATIVE, Sources, library_folders, place_of

LIBRARY = "/opt/venv/lib/python3.12/site-packages/torch/utils/data/dataloader.py"
STANDARD = f"{sysconfig.get_path('stdlib')}/threading.py"
OURS = str(Path(places.__file__).parent / "part.py")


@pytest.fixture(autouse=True)
def _folders_are_looked_for_anew() -> Iterator[None]:
    library_folders.cache_clear()
    yield
    library_folders.cache_clear()


def test_it_is_the_innermost_line_of_the_program_s_own_code(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("import torch\n  batch = batch.cuda()  # up\n")
    stack = [(LIBRARY, 7, "_next"), (STANDARD, 9, "Thread.run"), (str(path), 2, "train"), (str(path), 40, "<module>")]
    place = place_of([*stack, (OURS, 60, "main")])
    assert (place.file, place.line, place.function) == (str(path), 2, "train")
    assert place.source == "batch = batch.cuda()  # up"
    assert place.stack.splitlines() == [f"{name} ({file}:{line})" for file, line, name in stack]


def test_a_folder_that_packages_were_installed_into_is_a_library_s_and_one_of_own_modules_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed, own = tmp_path / "target", tmp_path / "own"
    (installed / "numba_cuda-0.30.dist-info").mkdir(parents=True)
    own.mkdir()
    monkeypatch.setenv("PYTHONPATH", f"{installed}/:{own}::relative")
    stack = [(f"{installed}/driver.py", 7, "copy"), (f"{own}/model.py", 3, "load"), ("/srv/train.py", 9, "<module>")]
    assert place_of(stack).file == f"{own}/model.py"


def test_code_that_is_in_no_file_is_not_the_program_s() -> None:
    assert place_of([("<frozen runpy>", 1, "run"), ("/srv/a.py", 3, "f")]).line == 3


SITE = "/opt/venv/lib/python3.12/site-packages"
OWN = ("/srv/train.py", 9, "<module>")


def test_the_line_of_a_library_stands_beside_the_program_s() -> None:
    for below, library in [
        (
            [(f"{SITE}/torch/_tensor.py", 3, "to"), (f"{SITE}/accelerate/hooks.py", 31, "pre_forward"),
             (f"{SITE}/torch/nn/modules/module.py", 7, "_call_impl")],
            (f"{SITE}/accelerate/hooks.py", 31),
        ),
        (
            [(f"{SITE}/torch/autograd/graph.py", 395, "unpack"), (f"{SITE}/torch/_tensor.py", 5, "backward")],
            (f"{SITE}/torch/autograd/graph.py", 395),
        ),
        ([(f"{SITE}/torch/nn/modules/module.py", 70, "f"), (f"{SITE}/torch/nn/modules/module.py", 5, "to")], None),
        ([(f"{SITE}/offload.py", 5, "send")], (f"{SITE}/offload.py", 5)),
        ([(f"{SITE}/cupy/_creation/from_data.py", 88, "asarray")], None),
        ([(STANDARD, 3, "run"), (STANDARD, 4, "run"), ("<string>", 1, "f")], None),
        ([], None),
    ]:  # fmt: skip
        place = place_of([*below, OWN])
        assert (place.file, place.line, place.library) == ("/srv/train.py", 9, library)


def test_a_thread_without_python_has_no_place() -> None:
    assert place_of([]) == NATIVE
    assert place_of([(OURS, 60, "main")]) == NATIVE


def test_a_name_that_is_not_utf_8_has_a_question_mark_in_it_and_its_line_is_found(tmp_path: Path) -> None:
    path = tmp_path / "caf\udce9.py"
    path.write_text("batch.cuda()\n")
    frame = (str(path), 1, "od\ud800d")
    Sources().look([[frame]])
    place = place_of([frame])
    assert (place.file, place.function, place.source) == (f"{tmp_path}/caf?.py", "od?d", "batch.cuda()")
    assert place.stack == f"od?d ({tmp_path}/caf?.py:1)"


def test_names_of_any_length_fit_into_a_row_and_paths_of_usual_length_are_whole() -> None:
    usual, longest = f"/srv/{'d' * 250}/{'e' * 250}/train.py", "n" * 2_000_000
    for file in (usual, longest):
        place = place_of([(file, 7, f"{'f' * 5000}.step")] * 40)
        assert sum(map(len, (place.file, place.function, place.stack))) < TEXT_CHARACTERS - 1500  # source, ranges, call
        assert place.function.endswith(".step")
        assert [frame[-8:] for frame in place.stack.splitlines()] == [f"{file[-5:]}:7)"] * places.SHOWN_FRAMES
        assert (place.file == file) == (file is usual)


def test_the_lines_are_those_by_which_python_names_calls(tmp_path: Path) -> None:
    """Each call of this text calls ``here``, which takes the line from its caller's frame."""
    text = "here(\n 1,\n).here()\n(\n here()\n .here()\n)\nhere(\n here(),\n)\n"
    seen = set()

    def here(*_: object) -> SimpleNamespace:
        seen.add(sys._getframe(1).f_lineno)
        return SimpleNamespace(here=here)

    exec(text, {"here": here})  # noqa: S102 - to see what Python says
    path = tmp_path / "calls.py"
    path.write_text(text)
    shown = {line: place_of([(str(path), line, "<module>")]).source for line in sorted(seen)}
    assert shown == {
        1: "here( 1, ).here()", 3: "here( 1, ).here()", 5: "here()", 6: "here() .here()",
        8: "here( here(), )", 9: "here(),",
    }  # fmt: skip


@pytest.mark.parametrize("before", ["", f"x = [{'1, ' * 60}]; "])
def test_no_part_of_a_secret_stays_where_the_middle_is_left_out(before: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(f'{before}model = load(token="{"secret" * 100}")\n')
    source = place_of([(str(path), 1, "<module>")]).source
    assert "secret" not in source
    assert source.endswith('load(token="***")')
