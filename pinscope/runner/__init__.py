"""Runs: parameters or a command in, a stored run out, also where a process is killed on the way.

Starts and ends processes, takes locks, has scratch folders, writes to the ``store``; imports no heavy library by
itself: the worker's lab brings CuPy. How to measure and what it means, it asks ``experiments``, ``live`` and
``tracing``; besides it imports ``lab``, ``probes`` and ``records``, nothing that shows.

Experiments: ``jobs`` prepares, starts, cancels and notices who is gone; ``worker`` is the child, and asks before each
turn whether it is to stop; ``queue`` lets one at a time measure on a GPU; ``suite`` runs several for the dashboard.
Programs: ``program`` says which one in which Python, ``tracing`` traces it and keeps its rows, ``with_waits`` again
with waits; ``traced_program`` is its process, ``children`` those that it starts. The live view: ``timeline`` keeps it,
in the process that takes the samples.
"""
