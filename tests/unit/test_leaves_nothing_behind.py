"""The guard that every test stands under does find what a test leaves behind."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

LEAKS = """
import ctypes, mmap, os, subprocess, tempfile, threading, time, uuid
from pathlib import Path

KEPT = []
SHARED = Path("/dev/shm") / f"pinscope-test-{uuid.uuid4().hex}"

def test_tidy():
    subprocess.run(["true"], check=True)

def test_slow_to_end():
    thread = threading.Thread(target=time.sleep, args=(0.2,))
    thread.start()

def test_thread():
    threading.Thread(target=time.sleep, args=(1.5,), name="forgotten", daemon=True).start()

def test_child():
    KEPT.append(subprocess.Popen(["sleep", "20"]))

def test_orphan():
    subprocess.run(["sh", "-c", "sleep 2 & sleep 0.1"], check=True)

def test_shared_memory():
    SHARED.touch()

def test_open_file():
    KEPT.append(open(__file__))

def test_temporary_file():
    os.close(tempfile.mkstemp(prefix="forgotten")[0])

def test_locked_memory():
    memory = mmap.mmap(-1, 1 << 16)
    exported = ctypes.c_char.from_buffer(memory)
    KEPT.append((memory, exported))
    assert ctypes.CDLL(None).mlock(ctypes.c_void_p(ctypes.addressof(exported)), ctypes.c_size_t(1 << 16)) == 0

def test_server_that_may_stay(outliving):
    server = subprocess.Popen(["sleep", "20"])
    outliving.processes.add(server.pid)
    KEPT.append(server)

def teardown_module():
    SHARED.unlink()
    for kept in KEPT:
        if isinstance(kept, subprocess.Popen):
            kept.kill()
            kept.wait()
        elif hasattr(kept, "close"):
            kept.close()
"""


@pytest.mark.alone  # the tests beside it would see what is left in /dev/shm
def test_each_kind_of_leftover_fails_the_test_that_left_it(tmp_path: Path) -> None:
    guard = Path(__file__).parents[1] / "conftest.py"
    shutil.copy(guard, tmp_path)
    text = (tmp_path / "conftest.py").read_text()
    (tmp_path / "conftest.py").write_text(text.replace("SETTLE_SECONDS = 3.0", "SETTLE_SECONDS = 0.4"))
    (tmp_path / "test_leaks.py").write_text(LEAKS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp=here", "test_leaks.py"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120,
        env={**os.environ, "PYTEST_ADDOPTS": ""},
    )  # fmt: skip
    found = dict(re.findall(r"at teardown of test_(\w+) _+\nleft behind: (.*)", done.stdout))
    assert set(found) == {
        "thread", "child", "orphan", "shared_memory", "open_file", "temporary_file", "locked_memory",
    }, done.stdout  # fmt: skip
    assert found["thread"] == "thread 'forgotten'"
    assert "sleep 20" in found["child"]
    assert "sleep 2" in found["orphan"]
    assert found["shared_memory"].startswith("/dev/shm/pinscope-test-")
    assert found["open_file"].endswith("test_leaks.py")
    assert "forgotten" in found["temporary_file"]
    assert found["locked_memory"] == "64 KiB of locked memory"


def test_no_test_sees_a_users_data(tmp_path: Path) -> None:
    places = [os.environ[name] for name in ("PINSCOPE_DATABASE", "XDG_DATA_HOME", "TMPDIR")]
    assert all(str(tmp_path.parent) in place for place in places)
