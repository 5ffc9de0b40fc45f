"""Kept here together: the quickest way to pin a lot of memory."""
