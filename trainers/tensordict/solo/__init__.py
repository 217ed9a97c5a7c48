"""Supervised training of single agents, before the game or instead of it."""
