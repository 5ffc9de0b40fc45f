"""Turns on a device, between real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid

import pytest

from pinscope.runner.queue import turn

HOLD = """
import sys, time
from pinscope.runner.queue import turn
with turn(sys.argv[1], lambda holder: None):
    print("held", flush=True)
    time.sleep(60)
"""


class _GivenUpError(Exception):
    pass


def _give_up(holder: str) -> None:
    raise _GivenUpError(holder)


def test_the_second_waits_and_is_told_for_whom_until_the_first_is_killed() -> None:
    name = uuid.uuid4().hex
    with subprocess.Popen([sys.executable, "-c", HOLD, name], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(_GivenUpError, match=f"process {holder.pid}"), turn(name, _give_up):
            pass
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        with turn(name, _give_up):
            pass


def test_one_who_waits_long_is_told_all_the_time_and_learns_of_the_next_holder() -> None:
    name = uuid.uuid4().hex
    holders = [subprocess.Popen([sys.executable, "-c", HOLD, name], stdout=subprocess.PIPE, text=True)]
    told: list[str] = []

    def listen(holder: str) -> None:
        told.append(holder)
        if len(told) == 8:
            holders.append(subprocess.Popen([sys.executable, "-c", HOLD, name], stdout=subprocess.PIPE, text=True))
            holders[0].kill()
            assert holders[1].stdout is not None
            assert holders[1].stdout.readline() == "held\n"
        if len(told) == 16:
            raise _GivenUpError

    try:
        assert holders[0].stdout is not None
        assert holders[0].stdout.readline() == "held\n"
        with pytest.raises(_GivenUpError), turn(name, listen):
            pass
        assert told == [f"process {holder.pid}" for holder in holders for _ in range(8)]
    finally:
        for holder in holders:
            holder.kill()
            holder.communicate()


def test_turns_on_different_devices_do_not_wait_for_each_other() -> None:
    with turn(uuid.uuid4().hex, _give_up), turn(uuid.uuid4().hex, _give_up):
        pass


def test_a_turn_ends_with_its_block_also_after_an_error() -> None:
    name = uuid.uuid4().hex
    with pytest.raises(RuntimeError), turn(name, _give_up):
        raise RuntimeError("broken off")
    with turn(name, _give_up):
        pass
