"""Records in, figures out. No I/O."""
