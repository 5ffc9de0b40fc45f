"""Frozen data that rooms pass to each other, checked, to JSON and back; and the bounds of what is read.

Imports no other room, does no I/O and reads no clock: a record does not know where its values come from.

``run`` has the runs of each kind and what a reading is made of (findings, quantities, tables), ``trace_row`` what a
trace keeps of a line of the program; ``labels`` what users write on their runs; ``environment`` the machine;
``snapshot`` one live reading, ``timeline`` a series of them, ``registration`` what the probe saw, and the strategies of
pinning; ``figure`` the table of figures and their bounds; ``parameters`` what forms and options are made from; ``base``
what all share.
"""
