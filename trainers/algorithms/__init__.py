"""Algorithms as pure functions on tensors or arrays: no configuration, logging or state."""
