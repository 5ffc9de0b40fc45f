"""Where experiments run: the Lab protocol, its two implementations, the budget guard and the timing harness."""
