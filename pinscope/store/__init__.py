"""Where runs are kept: the database, bundles that carry runs between machines, and the shipped recordings."""
