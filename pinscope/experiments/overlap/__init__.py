"""Kept here together: how much of the copies hides behind compute."""
