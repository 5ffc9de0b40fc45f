"""Which file system a folder is on, by the mounts of this process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pinscope.probes.containers import IN_MEMORY, file_system

if TYPE_CHECKING:
    from tests.unit.probes.conftest import Plant

MOUNTS = (
    "1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 0:5 / /nowhere rw - tmpfs t rw\n3 1 8:2 / /nowhere/data rw - xfs /dev/b rw\n"
    "4 1 0:6 / /twice rw - ext4 /dev/c rw\n5 4 0:7 / /twice rw - tmpfs t rw\n6 1 0:8 / /a\\040b rw - nfs n rw\ntorn\n"
)


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/nowhere/x", "tmpfs"), ("/nowhere/data/x/y", "xfs"), ("/nowhere/database", "tmpfs"), ("/other", "ext4"),
        ("/twice", "tmpfs"), ("/a b/c", "nfs"),
    ],
)  # fmt: skip
def test_the_nearest_and_last_mount_counts(plant: Plant, folder: str, kind: str) -> None:
    assert file_system(folder, plant({"/proc/self/mountinfo": MOUNTS})).value == kind


def test_a_folder_whose_mounts_are_unknown_has_a_reason(plant: Plant) -> None:
    assert file_system("/x", plant({})).reason == "/proc/self/mountinfo is not there"
    assert file_system("/x", plant({"/proc/self/mountinfo": "torn\n"})).reason == "no mount holds /x"


def test_this_machine_tells(tmp_path: Path) -> None:
    assert file_system(str(tmp_path)).value
    if Path("/dev/shm").is_dir():
        assert file_system("/dev/shm").value in IN_MEMORY
