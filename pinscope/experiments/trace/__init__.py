"""Kept here together: a program that was traced; no experiment, but read like one."""
