"""A program that the recorder starts is as python would have started it: each is run both ways and compared."""

from __future__ import annotations

import os
import py_compile
import subprocess
import sys
import zipapp
from pathlib import Path

import pytest

START = Path(__file__).parents[3] / "pinscope" / "tracing" / "start.py"
PROGRAMS = {
    "its arguments, path and names": "import sys; print(sys.argv, sys.path, __name__, __file__, __spec__, "
    "sorted(globals()), sys.stdin.read())",
    "its loader, by which it finds its own source": "import inspect\ndef f():\n    return 1\nprint(type(__loader__), "
    "__loader__.name, __loader__.get_filename(), __loader__.get_data(__file__)[:9], inspect.getsource(f), __cached__)",
    "an exception, with its own traceback": "def f():\n    1 / 0\nf()",
    "an exception with a cause": "try:\n    1 / 0\nexcept Exception as error:\n    raise KeyError('x') from error",
    "a group of exceptions": "raise ExceptionGroup('some', [ValueError(1)])",
    "a syntax error": "x = (\n",
    "an exit code": "import sys; sys.exit(3)",
    "an exit with a message": "import sys; sys.exit('bye')",
    "an end by os._exit": "import os; os._exit(7)",
    "Ctrl-C": "import os, signal, time\ndef f():\n    os.kill(os.getpid(), signal.SIGINT)\n    time.sleep(1)\nf()",
    "a signal": "import os; os.kill(os.getpid(), 15)",
    "a hook of its own for exceptions": "import sys\nsys.excepthook = lambda kind, value, trace: "
    "print(kind, value, trace.tb_lineno)\n1 / 0",
    "threads and atexit after an exception": "import atexit, threading, time\natexit.register(print, 'at exit')\n"
    "threading.Thread(target=lambda: (time.sleep(.1), print('thread'))).start()\nraise ValueError('x')",
    "pickles of its own classes": "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))))",
    "a child by fork": "import os, sys, warnings\nchild = os.fork()\nif not child:\n    sys.exit(8)\n"
    "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))",
    "children by spawn": "import multiprocessing\ndef f(x):\n    return x + 1\nif __name__ == '__main__':\n"
    "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n        print(pool.map(f, [1, 2]))",
}


def end(*command: str, folder: Path, environment: dict[str, str] | None = None) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, cwd=folder, input="from stdin",
        env={**os.environ, **(environment or {})}, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("what", PROGRAMS)
def test_a_script_is_started_as_python_does(what: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAMS[what])
    arguments = ("program.py", "--flag", "-m", "x y")
    assert end(str(START), str(tmp_path), *arguments, folder=tmp_path) == end(*arguments, folder=tmp_path)


@pytest.mark.parametrize("arguments", [("-m", "package", "x"), ("package", "x"), ("-m", "package.inner"), ("-m", "no")])
def test_a_module_a_folder_and_a_module_that_is_not_there(arguments: tuple[str, ...], tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text("import sys; print(sys.argv, sys.path[0], __name__, __spec__.name); 1 / 0")
    (package / "inner.py").write_text("import sys; print(sys.argv, __package__); sys.exit(4)")
    assert end(str(START), str(tmp_path), *arguments, folder=tmp_path) == end(*arguments, folder=tmp_path)


@pytest.mark.parametrize("first_line", [None, "/usr/bin/env python3"])
def test_an_archive_is_started_as_python_does_whatever_its_first_line(first_line: str | None, tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__main__.py").write_text("import sys; print(sys.argv, sys.path[0], __name__); 1 / 0")
    zipapp.create_archive(tmp_path / "app", tmp_path / "app.pyz", interpreter=first_line)
    arguments = ("app.pyz", "x")
    plain = end(*arguments, folder=tmp_path)
    assert "app.pyz" in plain[1]
    assert end(str(START), str(tmp_path), *arguments, folder=tmp_path) == plain


@pytest.mark.parametrize("name", ["program.pyc", "of another name"])
def test_a_compiled_file_is_started_as_python_does(name: str, tmp_path: Path) -> None:
    (tmp_path / "source.py").write_text(
        "import sys\nprint(sys.argv, sys.path, __name__, __file__, type(__loader__), sorted(globals()))\n1 / 0"
    )
    py_compile.compile(str(tmp_path / "source.py"), str(tmp_path / name))
    plain = end(name, "x", folder=tmp_path)
    assert plain[1].startswith(f"['{name}', 'x']")
    assert end(str(START), str(tmp_path), name, "x", folder=tmp_path) == plain


def test_the_safe_path_of_python_is_kept(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import sys; print(sys.path)")
    given = end("-P", str(START), str(tmp_path), "program.py", folder=tmp_path)
    assert given == end("-P", "program.py", folder=tmp_path)
