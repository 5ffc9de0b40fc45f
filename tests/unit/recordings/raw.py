"""Recordings as plain files: a run's document and its rows, read without PinScope's own reader."""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import pandas as pd

FOLDER = Path(__file__).parents[3] / "pinscope" / "recordings"


@dataclass(frozen=True)
class Recorded:
    """One recorded run.

    Attributes:
        bundle: the file that it is in.
        run: its document as stored.
    """

    bundle: Path
    run: dict[str, Any]

    @cached_property
    def observations(self) -> list[dict[str, Any]]:
        """As stored, in the order measured; read when they are asked for."""
        with zipfile.ZipFile(self.bundle) as bundle:
            lines = bundle.read(f"runs/{self.run['id']}/observations.jsonl").decode().splitlines()
        return [json.loads(line) for line in lines]

    @cached_property
    def rows(self) -> pd.DataFrame:
        """The observations as a table."""
        return pd.DataFrame(self.observations)

    @property
    def counted(self) -> pd.DataFrame:
        """Without warm-ups."""
        return self.rows[~self.rows["warmup"]]

    def __str__(self) -> str:
        return f"{self.run['experiment']}-{self.run['id']}"


@cache
def recordings() -> tuple[Recorded, ...]:
    """Every run of every bundle that ships; nobody changes them."""
    found = []
    for path in sorted(FOLDER.glob("*.pinscope")):
        with zipfile.ZipFile(path) as bundle:
            for run_id in json.loads(bundle.read("manifest.json"))["runs"]:
                found.append(Recorded(path, json.loads(bundle.read(f"runs/{run_id}/run.json"))))
    return tuple(found)
