"""Agents trained alone, before the game or instead of it."""
