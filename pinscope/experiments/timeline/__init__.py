"""Kept here together: a live view that was kept; no experiment, but read like one."""
