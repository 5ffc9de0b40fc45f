"""What stands in a bundle: its manifest, and how its members are called."""

from __future__ import annotations

import zipfile
from functools import cache
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

import pinscope
from pinscope.probes.software import source_commit
from pinscope.records.base import Moment
from pinscope.records.limits import BUNDLE_PARTS

PARTS_FOLDER = "/attachments/"
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""Member times carry nothing: equal runs make equal members."""


class WrittenBy(BaseModel):
    """Which PinScope wrote a bundle."""

    version: str
    commit: str | None


class Manifest(BaseModel):
    """What a bundle says of itself."""

    model_config = ConfigDict(extra="ignore")  # additive fields keep the format

    format: int
    written_by: WrittenBy
    created: Moment
    runs: list[str]
    attachments: dict[str, dict[str, Annotated[int, Field(ge=0, le=BUNDLE_PARTS)]]] = {}
    """Run → attachment → number of its parts."""


@cache
def this_version() -> WrittenBy:
    """The PinScope that runs now."""
    return WrittenBy(version=pinscope.__version__, commit=source_commit().value)


def member_info(name: str) -> zipfile.ZipInfo:
    """How a member of that name is written."""
    info = zipfile.ZipInfo(name, _EPOCH)
    info.compress_type = zipfile.ZIP_DEFLATED
    return info


def run_member(run_id: str) -> str:
    """The run."""
    return f"runs/{run_id}/run.json"


def rows_member(run_id: str) -> str:
    """Its observations."""
    return f"runs/{run_id}/observations.jsonl"


def part_member(run_id: str, name: str, number: int) -> str:
    """A part of one of its attachments."""
    return f"runs/{run_id}{PARTS_FOLDER}{name}/{number:06}.parquet"
