"""Common parts of all stages: how they are made and driven, calls, sessions, keys."""
