"""Kept here together: what each kind of host memory takes to make and to give back."""
