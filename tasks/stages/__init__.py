"""What all stages are made of: the decorator, calls, sessions, keys."""
