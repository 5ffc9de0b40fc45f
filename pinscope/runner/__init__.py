"""Whatever becomes a run: parameters or a command in, a stored run out, whoever dies on the way.

Starts and ends processes, takes locks, writes to the ``store``. How to measure and what it means, it asks
``experiments``, ``live`` and ``tracing``; besides it imports ``lab``, ``probes`` and ``records``, nothing that shows.

Experiments: ``jobs`` prepares, starts, cancels and notices who is gone; ``worker`` is the child; ``queue`` lets one
measure at a time; ``suite`` runs several. Programs: ``tracing`` traces one and keeps its rows; ``traced_program`` is
its process. The live view: ``timeline`` keeps it, in the process that takes the samples.
"""
