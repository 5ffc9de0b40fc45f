"""Where a worker keeps its files, and which GPUs it measures."""

from __future__ import annotations

import os
import tempfile

import pytest

from tests.data.second_user import NOBODY, as_another_user, needs_root, open_place

pytest.importorskip("distributed")

from pinscope.fleet import worker
from pinscope.fleet.host import HERE, describe

LOOK = """
import os
for folder in sys.argv[1:]:
    try:
        print(os.listdir(folder))
    except PermissionError:
        print("refused")
"""


@needs_root
def test_no_other_user_looks_into_a_worker_s_folder_or_makes_it_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.umask(0)
    try:
        with open_place() as place:
            monkeypatch.setattr(tempfile, "tempdir", str(place))
            folder = worker._own_folder()
            (folder / "run").mkdir()
            assert as_another_user(LOOK, folder, folder / "run").split() == ["refused"] * 2
            os.chown(folder, NOBODY, NOBODY)
            with pytest.raises(PermissionError):
                worker._own_folder()
    finally:
        os.umask(before)


def test_a_host_says_who_it_is_and_which_gpus_are_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gpu:
        def __init__(self, index: int) -> None:
            self.index = index

    class Environment:
        host, machine_id, devices = "node1", "m1", tuple(map(Gpu, range(5)))

    monkeypatch.setattr("pinscope.fleet.host.capture_environment", Environment)
    assert describe("cuda")["gpus"] == [0, 1, 2, 3, 4]
    assert describe("host")["gpus"] == [0]
    monkeypatch.setattr(HERE, "share", (1, 2))
    monkeypatch.setattr(HERE, "name", "local-2")
    assert describe("cuda")["gpus"] == [1, 3]
    assert describe("cuda")["host"] == "local-2"
