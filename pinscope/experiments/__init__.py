"""One file an experiment: its question, parameters, budget, procedure and reading."""
