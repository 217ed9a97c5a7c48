"""Common parts of all stages: the decorator, calls, sessions, keys."""
