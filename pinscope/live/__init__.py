"""Who holds pinned memory now: one frozen reading, joined from what the probes give."""
