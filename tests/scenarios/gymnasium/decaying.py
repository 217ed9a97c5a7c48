"""Memory of a plug-in: a decaying sum of features."""

from __future__ import annotations

from ratchet.scenarios.gymnasium.recurrent_bodies import RecurrentBody


class Decaying(RecurrentBody):
    """Remembers half of what it remembered, and the new features."""

    def __init__(self, inner, size, init):
        super().__init__(inner, size, init)
        self.layer = init.linear(inner.num_features, size)

    def step(self, features, memory):
        after = memory / 2 + self.layer(features)
        return after.tanh(), after
