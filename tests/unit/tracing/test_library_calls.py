"""A library's calls are changed when the program imports it, and look as they did."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
LIBRARY = """\
class Tensor:
    def to(self, place): "Moves."; return [place]
KNOWN = [Tensor.to]
def make(size): return ["made", size]
"""
START = f"""\
import sys
sys.path.insert(0, {str(ROOT)!r})
from pinscope.tracing.library_calls import change_function, change_method, when_imported
del sys.path[0]
sys.path.insert(0, sys.argv[1])
def noting(word):
    def around(call):
        def called(*arguments, **named): return [word, *call(*arguments, **named)]
        return called
    return around
def change(word):
    def changed(library):
        change_method(library.Tensor, "to", noting(word))
        change_function(library, "make", noting(word))
    return changed
finders = list(sys.meta_path)
"""


def ended(folder: Path, text: str) -> list[str]:
    """What a program printed beside a library of this folder."""
    (folder / "library.py").write_text(LIBRARY)
    command = [sys.executable, "-c", START + text, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_who_changes_a_call_later_stands_around_who_changed_it_before(tmp_path: Path) -> None:
    text = """
when_imported("library", change("inner"))
when_imported("library", change("outer"))
print("library" in sys.modules, sys.meta_path == finders)
import library
when_imported("library", change("late"))
tensor = library.Tensor()
print(tensor.to("gpu"), library.make(3), library.Tensor.to(tensor, "cpu"))
"""
    changed = (
        "['late', 'outer', 'inner', 'gpu'] ['late', 'outer', 'inner', 'made', 3] ['late', 'outer', 'inner', 'cpu']"
    )
    assert ended(tmp_path, text) == ["False True", changed]


def test_a_changed_method_passes_for_the_one_in_its_place(tmp_path: Path) -> None:
    text = """
for word in "ab": when_imported("library", change(word))
import library, pickle
to = library.Tensor.to
print(to in library.KNOWN, to in set(library.KNOWN), {to: 1}[library.KNOWN[0]], pickle.loads(pickle.dumps(to)) == to)
print(to.__name__, to.__doc__, library.make.__qualname__, library.make.__module__)
"""
    assert ended(tmp_path, text) == ["True True 1 True", "to Moves. make library"]


def test_a_module_that_was_looked_for_and_not_executed_is_changed_when_it_is(tmp_path: Path) -> None:
    text = """
import importlib.util
when_imported("library", change("once"))
print(importlib.util.find_spec("library") is not None, importlib.util.find_spec("no_such_library"))
import library
print(library.Tensor().to(1))
"""
    assert ended(tmp_path, text) == ["True None", "['once', 1]"]


def test_changes_are_taken_back_where_nobody_has_changed_the_call_since(tmp_path: Path) -> None:
    text = """
from pinscope.tracing.library_calls import take_changes_back
import library
class Kind(library.Tensor): pass
as_ever = library.Tensor.to, library.make, vars(sys.modules["importlib.machinery"].PathFinder)["find_spec"]
when_imported("library", change("ours"))
when_imported("never", change("ours"))
change_method(Kind, "to", noting("ours"))
take_changes_back()
finder = vars(sys.modules["importlib.machinery"].PathFinder)["find_spec"]
print((library.Tensor.to, library.make, finder) == as_ever, "to" in vars(Kind))
when_imported("library", change("ours"))
library.make = theirs = noting("theirs")(library.make)
take_changes_back()
print(library.make(3), library.Tensor.to is as_ever[0])
"""
    assert ended(tmp_path, text.replace("import library\n", "import importlib.machinery, library\n")) == [
        "True False", "['theirs', 'ours', 'made', 3] True",
    ]  # fmt: skip
