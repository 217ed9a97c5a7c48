"""Learning from tokens: pure functions on tensors. The mask alone says which tokens count.

Shape letters: B rows, T tokens, N trajectories, P pairs. Losses are given token by token,
``[B, T]`` and 0 where the mask is, and are summed with the weights of :mod:`.aggregation`.
"""
