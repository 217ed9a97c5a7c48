"""Sandbox in which scenarios run untrusted programs."""
