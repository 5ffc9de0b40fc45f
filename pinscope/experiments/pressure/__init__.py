"""Kept here together: what pinned memory costs the host."""
