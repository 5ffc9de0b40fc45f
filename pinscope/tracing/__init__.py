"""Recording of a program's copies and pinned memory under CUPTI, and what is derived from the raw records."""
