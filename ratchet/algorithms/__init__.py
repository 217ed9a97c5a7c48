"""Algorithms as pure functions on tensors or arrays: each formula once, no configuration or state.

Trainers and the embedded model service compute with these functions.
"""
