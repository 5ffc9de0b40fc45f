"""A run as a child process: jobs start, follow and cancel it; the worker is the child."""
