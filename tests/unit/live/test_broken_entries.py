"""Whatever /proc shows of some processes – nonsense, halves, nothing, refusals – a series of snapshots goes on.

On the captured host, so that what is broken is what real entries look like. No file is changed: the reader lies.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from pinscope.live.series import changes, sample_of
from pinscope.live.source import snapshot
from pinscope.probes.proc import Answer, Proc
from pinscope.probes.process_scan import Remembered
from pinscope.records.snapshot import DeviceFigures, Holder, Snapshot
from pinscope.records.timeline import Sample
from tests.data.one_door import OneDoor
from tests.data.snapshot_checks import captured, captured_gpus, without_reason

HOST = Path(__file__).parents[3] / "tests" / "data" / "proc" / "h200-holders"
PIDS = [int(path.name) for path in (HOST / "proc").iterdir() if path.name.isdecimal()]
PARENT, CHILD = 746, 749
SEEDS = st.integers(0, 2**32 - 1)
"""Far more lies than hypothesis would choose one by one; a seed is enough to see an example again."""
NOISE = st.binary(max_size=60).map(lambda noise: noise.decode("utf-8", "replace"))


@cache
def host_texts() -> dict[str, str]:
    """All texts of the captured host, so that each example is quick."""
    proc = Proc.below(HOST)
    paths = [f"/{path.relative_to(HOST)}" for path in HOST.rglob("*") if path.is_file()]
    return {path: text for path in paths if (text := proc.read(path).value) is not None}


@cache
def strangers() -> list[str]:
    """Files whose text another one may show. With somebody's maps one would have what is his."""
    return sorted(path for path in host_texts() if not path.endswith("/maps"))


@cache
def whole() -> Snapshot:
    return captured(HOST)


@cache
def gpus() -> Answer[tuple[DeviceFigures, ...]] | None:
    return captured_gpus(HOST)


class Lying(OneDoor):
    """The captured host, of which some entries are broken, each time anew."""

    def __init__(self, chance: random.Random, noise: str, broken: tuple[str, ...]) -> None:
        super().__init__(HOST)
        self._chance = chance
        self._noise = noise
        self._broken = broken

    def _is_broken(self, path: str) -> bool:
        return path.startswith(self._broken) and self._chance.random() < 0.7

    def read(self, path: str) -> Answer[str]:
        text = host_texts().get(path)
        if text is None:
            return super().read(path)
        if not self._is_broken(path):
            return Answer(text)
        place = self._chance.randrange(len(text) + 1)
        digit = str(self._chance.randrange(10))
        lies = (
            None,
            "",
            self._noise,
            text[:place],  # half of it
            text[place:],
            text[:place] + self._noise + text[place:],
            text[:place] + digit * 30 + text[place:],  # a number that no counter reaches
            text * 2,
            text.replace("kB", "MB"),
            text.translate({ord(each): self._chance.choice("0123456789abcdef-: \n") for each in "57 "}),
            host_texts()[self._chance.choice(strangers())],
        )
        lie = self._chance.choice(lies)
        return Answer.missing(f"{path} may not be read by this user") if lie is None else Answer(lie)

    def links(self, folder: str) -> Answer[dict[str, str]]:
        found = super().links(folder)
        if found.value is None or not self._is_broken(folder):
            return found
        few = {name: target for name, target in found.value.items() if self._chance.random() < 0.5}
        lies = [Answer.missing(f"{folder} is not there"), Answer(few), Answer({"0": self._noise, "1": ""})]
        return self._chance.choice(lies)

    def exists(self, path: str) -> bool:
        return super().exists(path) and not self._is_broken(path)


def series(proc: Proc) -> Iterator[Snapshot]:
    """Three snapshots one after the other, as the sampler takes them."""
    remembered = Remembered()
    before: Snapshot | None = None
    sample: Sample | None = None
    for second in range(3):
        found = snapshot(proc, gpus(), remembered)
        changes(before, found)
        sample = sample_of(found, float(second), sample)
        assert Sample.model_validate_json(sample.model_dump_json()) == sample
        before = found
        yield found


def kept(one: Holder) -> tuple[object, ...]:
    return one.host_alloc_bytes, one.allocations, one.managed_bytes, one.locked_bytes, one.started_at, one.user


@settings(max_examples=60)
@given(seed=SEEDS, noise=NOISE, victims=st.sets(st.sampled_from(PIDS), min_size=1, max_size=3))
def test_broken_entries_of_some_processes_change_nothing_about_the_others(
    seed: int, noise: str, victims: set[int]
) -> None:
    if victims & {PARENT, CHILD}:  # what one of them shows is told of the other
        victims |= {PARENT, CHILD}
    proc = Lying(random.Random(seed), noise, tuple(f"/proc/{pid}/" for pid in victims))
    others = {one.pid: kept(one) for one in whole().holders if one.pid not in victims}
    for found in series(proc):
        assert without_reason(found) == []
        assert {one.pid: kept(one) for one in found.holders if one.pid in others} == others
        assert found.model_dump_json()
        assert found.host.pinned_bytes == whole().host.pinned_bytes
