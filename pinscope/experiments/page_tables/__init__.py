"""Kept here together: what pinned memory costs each GPU."""
