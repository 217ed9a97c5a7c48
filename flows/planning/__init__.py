"""Plans of experiments: stages, cache hits and misses, estimated calls and cost."""
