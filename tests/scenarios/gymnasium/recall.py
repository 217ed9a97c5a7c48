"""An environment that requires a memory, and a custom memory; tests name them by their path."""

from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from ratchet.scenarios.gymnasium.recurrent_bodies import RecurrentBody


class Recall(gymnasium.Env):
    """A sign is shown once; after some empty steps, the reward is 1 for recalling it, else -1."""

    observation_space = Box(-1, 1, (2,))
    action_space = Discrete(2)

    def __init__(self, delay: int = 3) -> None:
        self.delay = delay

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count, self.sign = 0, int(self.np_random.integers(2))
        return np.array([2 * self.sign - 1, 0], np.float32), {}

    def step(self, action):
        self.count += 1
        asked = self.count > self.delay
        paid = (1.0 if int(action) == self.sign else -1.0) if asked else 0.0
        seen = np.array([0, self.count == self.delay], np.float32)
        return seen, paid, asked, False, {}


class Decaying(RecurrentBody):
    """Remembers half of its memory, and the new features."""

    def __init__(self, inner, size, init):
        super().__init__(inner, size, init)
        self.layer = init.linear(inner.num_features, size)

    def step(self, features, memory):
        after = memory / 2 + self.layer(features)
        return after.tanh(), after
