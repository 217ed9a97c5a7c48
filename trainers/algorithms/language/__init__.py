"""Deprecated path of :mod:`ratchet.algorithms.language`."""
