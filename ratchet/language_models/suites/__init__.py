"""Evaluation suites of ``inspect-ai``, which runs in a process, and an environment, of its own."""
