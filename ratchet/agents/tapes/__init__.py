"""The fast path: what networks compute on tapes, each derivative written by hand.

Recorders know the networks they stand in for, and networks know nothing of tapes.
"""
