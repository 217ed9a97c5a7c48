"""Where a trainer stands: weights, optimizer, generators, as values and files."""
