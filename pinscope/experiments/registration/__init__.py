"""Kept here together: several processes that register one piece of memory."""
