"""Which copies of the driver's library are installed and in use, and that looking again costs little."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinscope.probes import driver_library
from pinscope.probes.driver_library import NAME, OLD_TURNS, MappedLibraries, installed_libraries
from pinscope.probes.proc import Proc

CUDA = "/usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04"


class Host:
    """A synthetic /proc whose reads are counted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "proc").mkdir()

    @property
    def proc(self) -> Proc:
        return Proc.below(self.folder)

    def process(self, pid: int, *mapped: str, pages: int = 100, code: int = 10) -> None:
        place = self.folder / "proc" / str(pid)
        place.mkdir(exist_ok=True)
        (place / "statm").write_text(f"{pages} 1 1 1 0 1 0\n")
        (place / "status").write_text(f"Name:\tx\nVmLib:\t{code} kB\n")
        (place / "maps").write_text("7f0000000000-7f0000001000 rw-p 00000000 00:00 0 \n" + "".join(mapped))

    def end(self, pid: int) -> None:
        place = self.folder / "proc" / str(pid)
        for path in place.iterdir():
            path.unlink()
        place.rmdir()


def line(path: str = CUDA, inode: int = 7, rights: str = "r-xp", start: int = 0x7F1000000000) -> str:
    return f"{start:x}-{start + 4096:x} {rights} 00166000 fd:01 {inode}                   {path}\n"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_each_copy_in_use_is_found_once_with_its_users_and_where_it_can_be_opened(host: Host) -> None:
    host.process(10, line(), line(rights="r--p", start=0x7F2000000000))
    host.process(11, line(start=0x7F3000000000), line(start=0x7F4000000000))
    host.process(12, line("/opt/with blank/libcuda.so.1 (deleted)", inode=8))
    host.process(13, line("/usr/lib/libcudart.so.13"), line("/usr/lib/libcuda.so.1.txt/x"), line(rights="rw-p"))
    found = MappedLibraries(host.proc).look()
    assert set(found) == {("fd:01", "7"), ("fd:01", "8")}
    one = found["fd:01", "7"]
    assert (one.path, sorted(one.pids)) == (CUDA, [10, 11])
    assert one.place in ("/proc/10/map_files/7f1000000000-7f1000001000", "/proc/11/map_files/7f3000000000-7f3000001000")
    assert found["fd:01", "8"].path == "/opt/with blank/libcuda.so.1 (deleted)"


def test_a_path_that_would_upset_a_terminal_is_shown_without_that(host: Host) -> None:
    host.process(10, line("/\x1b[2J/libcuda.so.1"))
    assert [one.path for one in MappedLibraries(host.proc).look().values()] == ["/?[2J/libcuda.so.1"]


def test_a_copy_that_comes_later_is_found_and_one_that_goes_is_gone(host: Host) -> None:
    mapped = MappedLibraries(host.proc)
    assert mapped.look() == {}
    host.process(10)
    assert mapped.look() == {}
    host.process(10, line(), pages=200, code=20)
    assert [one.pids for one in mapped.look().values()] == [(10,)]
    host.process(11, line())
    assert [sorted(one.pids) for one in mapped.look().values()] == [[10, 11]]
    host.end(10)
    host.end(11)
    assert mapped.look() == {}


def test_an_old_process_takes_turns(host: Host) -> None:
    host.process(10)
    mapped = MappedLibraries(host.proc)
    mapped.look()
    host.process(10, line(), pages=200, code=20)
    looks = [bool(mapped.look()) for _ in range(OLD_TURNS)]
    assert looks[-1]
    assert looks == sorted(looks)


def test_a_process_that_maps_no_code_is_not_looked_at_again(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.process(5, pages=0)  # a thread of the kernel
    for pid in range(10, 20):
        host.process(pid)
    mapped = MappedLibraries(host.proc)
    mapped.look()
    read: list[str] = []
    original = Proc.read
    monkeypatch.setattr(
        Proc, "read", lambda self, path: (read.append(path.rpartition("/")[2]), original(self, path))[1]
    )
    host.process(10, pages=300)  # memory, but no code
    for _ in range(OLD_TURNS):
        mapped.look()
    assert "maps" not in read
    assert read.count("statm") == 11
    assert read.count("status") == 1


def test_a_host_that_shows_no_process_gives_nothing(tmp_path: Path) -> None:
    assert MappedLibraries(Proc.below(tmp_path)).look() == {}


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
    monkeypatch.setattr(driver_library, "_LDCONFIG", (str(ldconfig),))
    monkeypatch.setattr(driver_library, "USUAL_FOLDERS", (f"{tmp_path}/a", f"{tmp_path}/b", f"{tmp_path}/c"))
    assert installed_libraries() == (other, real)
    other.write_bytes(b"\x7fELF\x01\x01\x01" + bytes(9) + b"\x03\x00\x03\x00")  # the 32-bit driver of a PC
    assert installed_libraries() == (real,)
    monkeypatch.setattr(driver_library, "_LDCONFIG", (str(tmp_path / "none"),))
    assert installed_libraries() == (real,)
