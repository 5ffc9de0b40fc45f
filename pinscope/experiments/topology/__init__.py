"""Kept here together: all GPUs of a host at once, from each NUMA node, by one process and by several."""
