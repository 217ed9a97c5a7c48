"""Evaluation suites of ``inspect-ai``, run in a separate process and environment."""
