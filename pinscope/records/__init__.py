"""Frozen data that rooms pass to each other: pydantic models that become JSON and come back from it, and the bounds
of what is read. Imports no other room, does no I/O and reads no clock; a record knows how to check itself, not how to
get what it holds.

``run`` has the runs of each kind and what a reading is made of (findings, quantities, tables); ``environment`` the
machine; ``snapshot`` one live reading, ``timeline`` a series of them, ``registration`` what the probe saw, and the
strategies of pinning; ``figure`` the table of figures and their bounds; ``parameters`` what forms and options are made
from; ``base`` what all share.
"""
