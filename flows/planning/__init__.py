"""What would happen: stages, hits and misses, and what they would cost."""
