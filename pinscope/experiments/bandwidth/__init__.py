"""Kept here together: how fast copies are."""
