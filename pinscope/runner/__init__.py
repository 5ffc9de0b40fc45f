"""Runs: parameters or a command in, a stored run out, also where a process is killed on the way.

Starts and ends processes, takes locks, has scratch folders, writes to the ``store``; imports no heavy library by
itself: the worker's lab brings CuPy. How to measure and what it means, it asks ``experiments``, ``live`` and
``tracing``, and ``planning`` which runs tell of a machine; besides it imports ``lab``, ``probes`` and ``records``,
nothing that shows.

Experiments: ``jobs`` prepares, starts, cancels and notices who is gone, and runs several for the dashboard; ``worker``
is the child: it waits for its turn on the GPU, and asks before each whether it is to stop. Programs: ``program`` says
which one in which Python, ``tracing`` traces it and keeps its rows, ``what_if`` again with a change; ``traced_program``
is its process, with those that it starts; ``attach`` traces those that run already, into which ``injection`` brings
code. The live view: ``timeline`` keeps it, in the process that takes the samples.
"""
