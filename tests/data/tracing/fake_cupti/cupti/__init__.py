"""Stands in for cupti-python: the layouts of 13.0, and the library that a test has compiled from fake_cupti.c."""
