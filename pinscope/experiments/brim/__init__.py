"""Kept here together: memory pinned in a control group until its others are killed.

An experiment beside ``pressure``, not a way of running it: ``pressure`` is safe wherever memory can be pinned and asks
what the *host* loses; this one goes past what is safe, and so needs a group that it may fill, root to make one, another
account of memory (the group's), and another end. A suite leaves it out where it cannot run, and keeps ``pressure``.
"""
