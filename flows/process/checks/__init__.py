"""Checks of ``ratchet doctor``, one function per kind of problem."""
