"""Faster implementations of a few methods, each measured; the methods name them in one line."""
