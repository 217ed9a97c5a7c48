"""Code validation: whether a program solves the problem that it was written for."""
