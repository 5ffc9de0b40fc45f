"""The same runs on many hosts at once, each measured there as a local run is, through Dask.distributed.

Imports ``runner``, ``store``, ``experiments``, ``probes`` and ``records``; the only room that knows Dask.
"""
