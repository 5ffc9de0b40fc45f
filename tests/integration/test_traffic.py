"""Copies that need not be, and loaders whose batches are copied, from the program to the rows; CUPTI and PyTorch are
stand-ins."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.data.fake_cupti import FIRST_LINE
from tests.integration.traces import program, rows, traced

SIZE = 1 << 20


TEXT = """\
import numpy as np, torch
from torch.utils.data.dataloader import DataLoader
def new():
    return np.random.default_rng().random((512, 512), np.float32)
loader = DataLoader([new() for _ in range(6)], num_workers=1)
for batch in loader:
    batch.to("cuda")
table, values = torch.Tensor(new()), torch.tensor(new())
for _ in range(12):
    table.to("cuda")
for step in range(20):
    values.array[...] = new()
    values.to("cuda")
for batch in loader:
    (torch.Tensor(batch.array + 1)).to("cuda")
"""


@pytest.mark.usefixtures("_packages")
def test_what_is_sent_again_is_counted_and_a_loader_is_known_by_its_batches(tmp_path: Path) -> None:
    """What the program makes of a batch is no batch."""
    code, document = traced(tmp_path, program(tmp_path, TEXT))
    assert code == 0
    site = {row["number"]: row["line"] - FIRST_LINE + 1 for row in rows(document, "site")}
    assert sorted(site.values()) == [7, 10, 13, 15]
    again = {site[row["number"]]: (row["count"], row["bytes"]) for row in rows(document, "sent_again")}
    assert again == {10: (11, 11 * SIZE)}
    (loader,) = rows(document, "loader")
    assert (loader["line"] - FIRST_LINE + 1, site[loader["number"]], loader["count"]) == (5, 7, 6)
    assert (loader["pins_batches"], loader["workers"]) == (False, 1)


@pytest.mark.usefixtures("_packages")
def test_a_loader_that_a_library_makes_anew_is_that_of_the_program_and_a_second_one_is_not(tmp_path: Path) -> None:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "sharding.py").write_text(SHARDING)
    text = f"""\
import numpy as np, sys, torch
sys.path.insert(0, {str(folder)!r})
import sharding
from torch.utils.data.dataloader import DataLoader
class Pieces(list): pass
pieces = Pieces(np.random.default_rng(n).random((512, 512), np.float32) for n in range(3))
loader = DataLoader(pieces, num_workers=1)
for batch in sharding.anew(loader):
    sharding.send(batch)
for batch in DataLoader(pieces, num_workers=2, pin_memory=True):
    batch.to("cuda")
"""
    code, document = traced(tmp_path, program(tmp_path, text))
    assert code == 0
    site = {row["number"]: row for row in rows(document, "site")}
    made = {
        row["line"] - FIRST_LINE + 1: (site[row["number"]]["line"] - FIRST_LINE + 1, row["count"], row["pins_batches"])
        for row in rows(document, "loader")
    }
    assert made == {7: (9, 3, False), 10: (11, 3, True)}
    libraries = {row["line"] - FIRST_LINE + 1: row.get("library_file", "") for row in site.values()}
    assert {line: Path(file).name for line, file in libraries.items()} == {9: "sharding.py", 11: ""}


SHARDING = """\
from torch.utils.data.dataloader import DataLoader
def anew(loader):
    return DataLoader(loader.dataset, num_workers=loader.num_workers)
def send(batch):
    return batch.to("cuda")
"""


@pytest.mark.usefixtures("_packages")
def test_of_a_child_that_imports_a_library_first_the_calls_are_followed(tmp_path: Path) -> None:
    """The recording begins with the import of ctypes, which may stand within that of the library."""
    child = program(tmp_path, TEXT, "child.py")
    child.write_text(f"import torch\n{child.read_text()}")
    text = f"import subprocess, sys\nsubprocess.run([sys.executable, {str(child)!r}], check=True)\n"
    code, document = traced(tmp_path, program(tmp_path, text))
    assert code == 0
    assert [row["count"] for row in rows(document, "loader")] == [6]


@pytest.mark.usefixtures("_packages")
def test_copies_of_a_thread_without_python_are_of_the_call_that_left_them_to_it(tmp_path: Path) -> None:
    """JAX stands in for itself by two functions, and copies where no Python code runs."""
    text = """\
import numpy as np, sys
sys.path.insert(0, os.path.dirname(__file__))
import jax
table, other = np.ones(1 << 18, np.float32), np.ones(1 << 17, np.float32)
for step in range(3):
    jax.device_put(table)
    jax.device_put({"a": other, "b": 1})
"""
    folder = tmp_path / "jax"
    folder.mkdir()
    (folder / "__init__.py").write_text(JAX)
    code, document = traced(tmp_path, program(tmp_path, text))
    assert code == 0
    sites = {row["line"] - FIRST_LINE + 1: row for row in rows(document, "site") if row["file"]}
    assert {line: (row["count"], row["bytes"], row["by_order_count"]) for line, row in sites.items()} == {
        6: (3, 3 * SIZE, 3),
        7: (3, 3 * SIZE // 2, 3),
    }


JAX = """\
import ctypes, os
from types import SimpleNamespace
import numpy as arrays
library = ctypes.CDLL(os.environ["FAKE_CUPTI"])
def leaves(tree):
    return [leaf for each in tree.values() for leaf in leaves(each)] if isinstance(tree, dict) else [tree]
tree_util = SimpleNamespace(tree_leaves=leaves)
def device_put(tree):
    for leaf in leaves(tree):
        if isinstance(leaf, arrays.ndarray):
            library.fake_copy_in_thread(ctypes.c_uint64(leaf.nbytes))
    return tree
def device_get(tree):
    return tree
numpy = SimpleNamespace(asarray=device_put, array=device_put)
"""
