"""The same runs on many hosts at once, each measured there as a local run is, through Dask.distributed.

Imports ``runner``, ``store``, ``experiments``, ``probes`` and ``records``; the only room that knows Dask.

``campaign`` asks the hosts of a ``cluster``, which starts their workers, and keeps what they answer; ``worker`` is the
process that stands for a host, and ``host`` what it does when asked.
"""
