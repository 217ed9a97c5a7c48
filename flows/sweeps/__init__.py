"""Sweeps: their members, strategies that choose them, and parallel execution."""
