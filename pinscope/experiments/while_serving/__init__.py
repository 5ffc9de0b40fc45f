"""Kept here together: how long a program that serves waits while another of its threads pins memory."""
