"""Common parts of all stages: their creation and execution, calls, sessions, keys."""
