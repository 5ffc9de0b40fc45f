"""Runs of one machine, slower from one on, whose driver is another."""

from __future__ import annotations

import math
from random import Random

from pinscope.records.run import quantity
from pinscope.store.store import Store
from tests.unit.store.runs import new_run

KEY = "pinned.h2d.rate"
MANY, STEP = 20, 12
SLOWER = 0.8


def add_stepping_runs(store: Store, many: int = MANY) -> str:
    """So many runs, slower from the thirteenth on, and one of other parameters. Gives the id of the thirteenth."""
    random = Random(9)
    for place in range(many):
        rate = 10e9 * math.exp(0.005 * random.gauss(0, 1)) * (SLOWER if place >= STEP else 1.0)
        made = new_run(f"run-{place:02}", status="done", figure=quantity("Pinned", rate, "bytes/second", key=KEY))
        driver = {"driver": "590.2" if place >= STEP else "580.1"}
        store.add(made.model_copy(update={"environment": made.environment.model_copy(update=driver)}))
    store.add(new_run("quick", status="done", created_at=made.created_at.replace(year=2020), params={"sizes": [1]}))
    return f"run-{STEP}"
