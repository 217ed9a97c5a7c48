"""Algorithms as pure functions on tensors: no configuration object, no logging, no state."""
