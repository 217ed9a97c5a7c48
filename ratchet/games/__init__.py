"""Games of several seats, with turns, private views and rewards by seat."""

OPEN_SPIEL = "open_spiel/"
"""Prefix of the names of OpenSpiel's games."""
