"""Algorithms on tokens: pure functions on tensors; only the mask decides which tokens count.

Shape letters: B rows, T tokens, N trajectories, P pairs. Losses are given token by token,
``[B, T]`` and 0 outside the mask, and are summed with the weights of :mod:`.token_weights`.
"""
