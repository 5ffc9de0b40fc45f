"""Offsets of functions in libraries: against binutils, and in files that are none."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinscope.probes.uprobes import MACHINES, MOST_TABLE_BYTES, function_offsets

MACHINE = os.uname().machine
LIBRARY = Path(
    next(line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if re.search(r"/libc[.-]", line))
)
NAMES = ("malloc", "free", "getpid", "mlock", "nothing_of_that_name", "environ")


def offsets(path: Path, machine: str = MACHINE) -> dict[str, int] | str | None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        answer = function_offsets(descriptor, NAMES, machine)
    finally:
        os.close(descriptor)
    return answer.value if answer.reason is None else answer.reason


def test_offsets_are_those_at_which_the_running_library_has_its_functions() -> None:
    import ctypes

    found = offsets(LIBRARY)
    assert isinstance(found, dict)
    assert set(found) == {"malloc", "free", "getpid", "mlock"}  # environ is no function
    libc = ctypes.CDLL(None)
    mappings = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if str(LIBRARY) in line]
    for name, offset in found.items():
        address = ctypes.cast(getattr(libc, name), ctypes.c_void_p).value
        assert address is not None
        (at,) = [
            address - int(start, 16) + int(fields[2], 16)
            for fields in mappings
            for start, end in [fields[0].split("-")]
            if int(start, 16) <= address < int(end, 16)
        ]
        assert offset == at


def test_offsets_agree_with_binutils() -> None:
    if shutil.which("nm") is None:
        pytest.skip("no nm here")
    listed = subprocess.run(["nm", "-D", LIBRARY], capture_output=True, text=True, check=True).stdout
    addresses = {
        fields[2].split("@")[0]: int(fields[0], 16)
        for fields in map(str.split, listed.splitlines())
        if len(fields) == 3 and fields[1] in "TW"
    }
    segments = subprocess.run(["readelf", "-lW", LIBRARY], capture_output=True, text=True, check=True).stdout
    (load,) = [line.split() for line in segments.splitlines() if re.match(r"\s+LOAD.* R E ", line)]
    shift = int(load[1], 16) - int(load[2], 16)
    assert offsets(LIBRARY) == {name: addresses[name] + shift for name in ("malloc", "free", "getpid", "mlock")}


def test_a_library_for_another_processor_is_refused() -> None:
    other = next(machine for machine in MACHINES if machine != MACHINE)
    assert offsets(LIBRARY, other) == f"it is made for another processor than {other}"


@pytest.mark.parametrize(("place", "value"), [(4, 1), (5, 2), (18, 3)])
def test_a_32_bit_library_is_told_from_a_damaged_one(tmp_path: Path, place: int, value: int) -> None:
    content = bytearray(LIBRARY.read_bytes()[:4096])
    content[place] = value
    path = tmp_path / "library"
    path.write_bytes(content)
    assert "made for another processor" in str(offsets(path))
    path.write_bytes(content[:19])
    assert "not a shared library" in str(offsets(path))


def test_a_folder_and_a_table_that_is_too_long_are_refused(tmp_path: Path) -> None:
    assert "cannot be read" in str(offsets(tmp_path))
    content = bytearray(LIBRARY.read_bytes()[:4096])
    content[40:48] = (64).to_bytes(8, "little")  # sections begin right after the header
    content[64:128] = (bytes(4) + (11).to_bytes(4, "little") + bytes(24) + (MOST_TABLE_BYTES + 24).to_bytes(8, "little")
                       + bytes(16) + (24).to_bytes(8, "little"))  # fmt: skip
    path = tmp_path / "long"
    path.write_bytes(content)
    assert "not a shared library" in str(offsets(path))


@given(cut=st.integers(0, 2000), place=st.integers(0, 2000), noise=st.binary(max_size=64))
def test_no_file_breaks_the_reader(
    tmp_path_factory: pytest.TempPathFactory, cut: int, place: int, noise: bytes
) -> None:
    content = LIBRARY.read_bytes()
    path = tmp_path_factory.mktemp("elf") / "library"
    for spoilt in (content[:cut], content[:place] + noise + content[place + len(noise) :]):
        path.write_bytes(spoilt)
        assert isinstance(offsets(path), dict | str)
