"""Another user of the machine runs nothing in a program that is traced, and writes nothing through it.

The other user is a real process of another user id, in a folder where everybody may make files, as in /tmp.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pinscope.tracing.descendants import CHILD, JOINING, LIBRARY, SPOOL
from pinscope.tracing.spool_folder import SpoolFolder
from tests.data.fake_cupti import PRELUDE, variables

STRANGER = 65534
pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user"),
    pytest.mark.xdist_group("strangers"),  # one of them takes every folder's name that it sees
]


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder as /tmp is, which no folder above it hides."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def evil(shared: Path) -> Path:
    """A library that leaves a file where it is loaded."""
    source, library = shared / "evil.c", shared / "evil.so"
    mark = str(shared / "loaded-by-")
    source.write_text(
        "#include <stdio.h>\n#include <unistd.h>\n__attribute__((constructor)) static void run(void) {\n"
        f'char name[256]; sprintf(name, "{mark}%d", (int)geteuid()); fclose(fopen(name, "w")); }}\n'
    )
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    return library


BECOME = f"import json, os, re, sys, time\nos.setgroups([])\nos.setgid({STRANGER})\nos.setuid({STRANGER})\n"
"""The interpreter may lie where only root comes in."""


def as_stranger(code: str, *arguments: str | Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-I", "-S", "-c", BECOME + code, *map(str, arguments)])


def loaded(shared: Path) -> bool:
    return bool(list(shared.glob("loaded-by-0")))


AMBUSH = """
import json, os, re, sys, time
shared, evil = sys.argv[1:]
seen, deadline = set(), time.monotonic() + 30
while time.monotonic() < deadline and not os.path.exists(shared + "/over"):
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try: command = open(f"/proc/{pid}/cmdline", "rb").read().decode(errors="replace")
        except OSError: continue
        for name in set(re.findall(r"/[^\\0:]*pinscope-trace-[^\\0:/]*", command)) - seen:
            seen.add(name)
            try: os.mkdir(name)
            except OSError: continue
            os.chmod(name, 0o777)
            with open(name + "/config.json", "w") as file: json.dump({"library": evil, "stacks": True, "callback": {
                "fields": {"correlation_id": [0, "<u4"]}}, "libraries": []}, file)
"""


def test_a_folder_that_somebody_else_makes_under_a_part_s_name_is_not_read(
    library: Path, shared: Path, evil: Path, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(
        PRELUDE + "import pinscope\nwith pinscope.trace('part'): copy(1 << 20, PAGEABLE, DEVICE)\nprint('end')\n"
    )
    environment = variables(library, TMPDIR=str(shared))
    with as_stranger(AMBUSH, shared, evil) as stranger:
        try:
            done = subprocess.run(
                [sys.executable, tmp_path / "program.py"], capture_output=True, text=True, check=False, env=environment
            )
            assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr
            assert "pinscope: part part: " in done.stderr
        finally:
            (shared / "over").touch()
    assert stranger.returncode == 0
    assert not loaded(shared)


MAKE = """
import json, os, sys
name, evil = sys.argv[1:]
os.mkdir(name)
os.chmod(name, 0o777)
with open(name + "/config.json", "w") as file: json.dump({"library": evil, "stacks": True, "children": True,
    "redirect": None, "callback": {"fields": {"correlation_id": [0, "<u4"]}}, "libraries": []}, file)
os.mkfifo(name + "/stacks")
os.symlink("/etc/passwd", name + "/started.json")
"""


def test_a_python_that_starts_after_its_trace_joins_nobody_who_has_taken_the_spool_s_name(
    library: Path, shared: Path, evil: Path
) -> None:
    """A daemon keeps the variables of the trace that it was started in."""
    spool = shared / "pinscope-trace-gone"
    spool.mkdir(0o700)
    handover = SpoolFolder.of(spool.stat(), str(spool)).handover
    spool.rmdir()
    assert as_stranger(MAKE, spool, evil).wait() == 0
    environment = variables(library)
    for given in (handover, str(spool)):
        there = {SPOOL: f"{CHILD}:{given}", LIBRARY: str(library), "PINSCOPE_TRACE_LIBRARY": str(library)}
        path = f"{JOINING}{os.pathsep}{environment['PYTHONPATH']}"
        subprocess.run(
            [sys.executable, "-c", "import ctypes"], env={**environment, **there, "PYTHONPATH": path}, check=True
        )
    assert not loaded(shared)
    assert sorted(path.name for path in spool.iterdir()) == ["config.json", "stacks", "started.json"]


REPLACE = """
import json, os, sys, time
shared, evil, victim = sys.argv[1:]
deadline = time.monotonic() + 30
while time.monotonic() < deadline and not os.path.exists(shared + "/over"):
    for name in os.listdir(shared):
        path = f"{shared}/{name}"
        if name.startswith("pinscope-trace-") and os.path.isdir(path) and os.stat(path).st_uid == 0:
            os.rename(path, path + ".taken")
            for folder in (path, path + "/spool"):
                os.mkdir(folder)
                os.chmod(folder, 0o777)
            for name in ("started.json", "stacks", "ranges", "switched", "fault", "full", "ended.json"):
                os.symlink(victim, f"{path}/spool/{name}")
                os.symlink(victim, f"{path}/{name}")
    time.sleep(0.001)
"""


@pytest.mark.parametrize("how", ["whole", "part"])
def test_where_anybody_may_rename_folders_nothing_is_written_through_what_stands_in_their_place(
    how: str, library: Path, shared: Path, evil: Path, tmp_path: Path
) -> None:
    shared.chmod(0o777)  # without the sticky bit
    victim = tmp_path / "victim"
    victim.write_text("as it was")
    copies = "for _ in range(20): copy(1 << 20, PAGEABLE, DEVICE); time.sleep(0.01)\n"
    part = f"import pinscope\nwith pinscope.trace('part'):\n    {copies}"
    (tmp_path / "program.py").write_text(PRELUDE + (copies if how == "whole" else part) + "print('end')")
    command = ["-m", "pinscope", "trace", "program.py"] if how == "whole" else ["program.py"]
    with as_stranger(REPLACE, shared, evil, victim):
        try:
            done = subprocess.run(
                [sys.executable, *command], capture_output=True, text=True, check=False, cwd=tmp_path,
                env=variables(library, TMPDIR=str(shared)),
            )  # fmt: skip
        finally:
            (shared / "over").touch()
    assert victim.read_text() == "as it was"
    assert "Traceback" not in done.stderr
    assert not loaded(shared)
    assert done.returncode in {0, 1, 3}  # 1: the folder was taken before the program began
    assert (done.stdout == "end\n") == (done.returncode == 0), done.stderr


def test_a_folder_of_a_spool_is_opened_only_where_it_is_the_one_and_this_user_s_alone(shared: Path) -> None:
    spool = shared / "spool"
    spool.mkdir(0o700)
    folder = SpoolFolder.of(spool.stat(), str(spool))
    folder.append("stacks", b"1")
    assert (spool / "stacks").stat().st_mode & 0o777 == 0o600
    (spool / "ranges").symlink_to("/etc/passwd")
    with pytest.raises(OSError, match="symbolic links"):
        folder.append("ranges", b"x")
    spool.chmod(0o755)
    with pytest.raises(PermissionError, match="alone"):
        folder.append("stacks", b"2")
    spool.rename(shared / "moved")
    spool.mkdir(0o700)
    with pytest.raises(FileNotFoundError, match="another folder"):
        folder.append("stacks", b"2")
    assert not folder.has("stacks")
    spool.rmdir()
    spool.symlink_to(shared / "moved")
    with pytest.raises(OSError, match="Not a directory"):
        folder.append("stacks", b"2")
    assert (shared / "moved" / "stacks").read_bytes() == b"1"
