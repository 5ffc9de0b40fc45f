"""Pure arithmetic on plain numbers: no I/O, no clock, no drawing."""
