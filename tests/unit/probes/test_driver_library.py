"""Which copies of the driver's library are installed, and which processes use another one."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinscope.probes import uprobes
from pinscope.probes.proc import Proc
from pinscope.probes.uprobes import ANOTHER_COPY, NAME, LibraryUsers, installed_libraries

ADDRESS = "7f1000000000-7f1000001000"


class Host:
    """A synthetic /proc, and three copies of the library: followed, refused by the kernel, and of a container."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("followed", "refused", "other"):
            (folder / name).write_text(name)
        keys = {
            name: ((folder / name).stat().st_dev, (folder / name).stat().st_ino) for name in ("followed", "refused")
        }
        self.users = LibraryUsers({keys["followed"]: None, keys["refused"]: "refused"}, Proc.below(folder))

    def process(self, pid: int, copy: str = "", path: str = "/usr/lib/libcuda.so.580.1", code: int = 10) -> None:
        """It maps a copy as executable; ``path`` is what maps calls it."""
        place = self.folder / "proc" / str(pid)
        (place / "map_files").mkdir(parents=True, exist_ok=True)
        (place / "status").write_text(f"Name:\tx\nVmLib:\t{code} kB\n")
        line = f"{ADDRESS} r-xp 00166000 fd:01 7                   {path}\n" if copy else ""
        (place / "maps").write_text("7f0000000000-7f0000001000 rw-p 00000000 00:00 0 \n" + line)
        (place / "map_files" / ADDRESS).unlink(missing_ok=True)
        if copy:
            (place / "map_files" / ADDRESS).symlink_to(self.folder / copy)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_who_uses_a_copy_that_is_not_followed_is_named_with_the_reason(host: Host) -> None:
    host.process(9)
    host.process(10, "followed")
    host.process(11, "followed", "/opt/with blank/libcuda.so.1 (deleted)")
    host.process(12, "other")
    host.process(13, "other", "/opt/with blank/libcuda.so.1 (deleted)")
    host.process(14, "refused")
    host.process(15, "other", "/usr/lib/libcudart.so.13")
    host.process(16, "gone")
    (host.folder / "proc/17").mkdir()  # it ends meanwhile
    assert host.users.not_followed() == {12: ANOTHER_COPY, 13: ANOTHER_COPY, 14: "refused"}


def test_a_copy_that_is_mapped_later_is_seen_and_one_that_goes_is_gone(host: Host) -> None:
    host.process(10)
    assert host.users.not_followed() == {}
    host.process(10, "other", code=20)
    assert host.users.not_followed() == {10: ANOTHER_COPY}
    (host.folder / "proc/10/status").write_text("")
    assert host.users.not_followed() == {}


def test_a_process_that_maps_no_code_is_not_read_again(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    for pid in range(10, 20):
        host.process(pid)
    (host.folder / "proc/10/status").write_text("Name:\tkworker\n")  # a thread of the kernel
    host.users.not_followed()
    names: list[str] = []
    real = Proc.read
    monkeypatch.setattr(Proc, "read", lambda self, path: (names.append(path.rpartition("/")[2]), real(self, path))[1])
    host.process(11)  # no more code
    host.process(12, code=20)
    assert host.users.not_followed() == {}
    assert names.count("maps") == 1


def test_installed_copies_come_from_the_loader_s_cache_and_the_usual_places_once_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    real = tmp_path / "a" / "libcuda.so.580"
    real.write_text("")
    (tmp_path / "a" / NAME).symlink_to(real)
    (tmp_path / "b" / NAME).symlink_to(real)
    other = tmp_path / "b" / "other"
    other.write_text("")
    ldconfig = tmp_path / "ldconfig"
    ldconfig.write_text(
        f"#!/bin/sh\necho '2 libs found in cache'\necho '\t{NAME} (libc6,x86-64) => {other}'\n"
        f"echo '\tlibcudart.so.13 (libc6,x86-64) => {other}x'\necho '\t{NAME} (libc6) => {tmp_path}/gone'\n"
    )
    ldconfig.chmod(0o755)
    monkeypatch.setattr(uprobes, "_LDCONFIG", (str(ldconfig),))
    monkeypatch.setattr(uprobes, "USUAL_FOLDERS", (f"{tmp_path}/a", f"{tmp_path}/b", f"{tmp_path}/c"))
    assert installed_libraries() == (other, real)
    other.write_bytes(b"\x7fELF\x01\x01\x01" + bytes(9) + b"\x03\x00\x03\x00")  # the 32-bit driver of a PC
    assert installed_libraries() == (real,)
    monkeypatch.setattr(uprobes, "_LDCONFIG", (str(tmp_path / "none"),))
    assert installed_libraries() == (real,)
