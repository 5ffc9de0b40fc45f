"""``pinscope trace`` of programs whose children use CUDA: each is recorded to the byte, or named and fails a check.

Predicted: children by fork are named, all others that are Python are recorded.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.machine import MIB
from tests.gpu.test_trace import ROOT, TRACED, has_cupti

pytestmark = pytest.mark.skipif(not has_cupti(), reason="no library of CUPTI fits, or there is no driver")


def check(folder: Path, *arguments: str) -> tuple[int, str, dict[str, Any]]:
    """Exit code of a check, what the program wrote to stdout, and the trace."""
    answer = folder / "answer.json"
    command = [sys.executable, "-m", "pinscope", "trace", "--json", str(answer), "--fail-on", "pageable=1TiB"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False, cwd=ROOT, timeout=100)
    sys.stdout.write(done.stdout + done.stderr)
    return done.returncode, done.stdout, json.loads(answer.read_text())


@pytest.mark.parametrize("library", ["torch", "cupy", "numba"])
def test_every_python_child_that_copies_is_recorded_to_the_byte(library: str, tmp_path: Path) -> None:
    pytest.importorskip(library)
    code, stdout, document = check(tmp_path, "--allow-unseen", str(TRACED / "children.py"), library)
    assert stdout.splitlines() == ["spawn 0", "forkserver 0", "subprocess 0", "own True"]
    rows = document["observations"]
    copies = [row for row in rows if row["kind"] == "site" and row["direction"] == "h2d" and row["large_count"]]
    (program,) = (row for row in rows if row["kind"] == "program")
    assert (code, document["run"]["notes"], program["unrecorded"]) == (0, [], 0)
    count = 7 + 8 + 10 + 11 + 13
    assert sum(row["count"] for row in copies) == count
    assert sum(row["bytes"] for row in copies) == count * 4 * MIB
    assert {row["process"] for row in copies} == {row["process"] for row in rows if row["kind"] == "process"}


DRIVER = """\
import ctypes
def use():
    cuda, device, context, there = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
    assert not cuda.cuInit(0)
    cuda.cuDeviceGet(ctypes.byref(device), 0)
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    cuda.cuCtxSetCurrent(context)
    cuda.cuMemAlloc_v2(ctypes.byref(there), ctypes.c_size_t(1 << 20))
    assert not cuda.cuMemcpyHtoD_v2(there, ctypes.create_string_buffer(1 << 20), ctypes.c_size_t(1 << 20))
"""
NATIVE = """\
#include <cuda.h>
#include <stdlib.h>
int main(void) {
    CUdevice device; CUcontext context; CUdeviceptr there;
    if (cuInit(0)) return 1;
    cuDeviceGet(&device, 0); cuDevicePrimaryCtxRetain(&context, device); cuCtxSetCurrent(context);
    cuMemAlloc(&there, 1 << 20);
    return cuMemcpyHtoD(there, calloc(1 << 20, 1), 1 << 20) != 0;
}
"""
KINDS = {
    "fork": "child = ctypes.CDLL(None).fork()\nif not child: use(); os._exit(0)\nassert not os.waitpid(child, 0)[1]",
    "python": "subprocess.run([sys.executable, '-I', __file__, 'use'], check=True)",
    "native": "subprocess.run(['sh', '-c', f'{HERE}/native; true'], check=True)",
    "exec": "os.execv(f'{HERE}/native', ['native'])",
    "": "subprocess.run(['sh', '-c', 'nvidia-smi -L >&2; sleep 0.3'], check=True)",
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_child_that_used_cuda_unrecorded_is_named_and_fails_a_check(kind: str, tmp_path: Path) -> None:
    """One copy and no more: seen to live for 0.34 s on an H100. What uses NVML alone does not use CUDA."""
    if kind in {"native", "exec"}:
        (tmp_path / "native.c").write_text(NATIVE)
        toolkits = sorted(Path("/usr/local").glob("cuda*/include")) + sorted(Path(sys.prefix).rglob("nvidia/*/include"))
        headers = [f"-I{folder}" for folder in toolkits if (folder / "cuda.h").exists()]
        if not headers:
            pytest.skip("there is no cuda.h here")
        command = ["cc", "-o", str(tmp_path / "native"), str(tmp_path / "native.c"), *headers, "-l:libcuda.so.1"]
        subprocess.run(command, check=True)
    (tmp_path / "program.py").write_text(
        f"import os, subprocess, sys\n{DRIVER}HERE = os.path.dirname(__file__)\n"
        f"if len(sys.argv) > 1: use(); sys.exit()\n{KINDS[kind]}\n"
    )
    code, _, document = check(tmp_path, "--allow-unseen", str(tmp_path / "program.py"))
    assert [row["child"] for row in document["observations"] if row["kind"] == "unrecorded"] == kind.split()
    assert code == bool(kind)
    if kind:
        assert document["run"]["verdict"].startswith("1 ")
    else:
        assert document["run"]["verdict"].endswith(" copied nothing to or from a GPU.")
