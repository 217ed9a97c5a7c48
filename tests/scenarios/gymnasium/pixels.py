"""A small environment of pixels, which tests name by its path."""

from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

SIDE = 12


class Sides(gymnasium.Env):
    """A bright patch is on the left or right; the reward is 1 for its side, else 0."""

    def __init__(self, layout: str = "last", stack: int = 0, steps: int = 8) -> None:
        self.layout, self.steps = layout, steps
        shapes = {"last": (SIDE, SIDE, 3), "first": (3, SIDE, SIDE), "grey": (SIDE, SIDE)}
        shape = ((stack,) if stack else ()) + shapes[layout]
        self.observation_space = Box(0, 255, shape, np.uint8)
        self.action_space = Discrete(2)
        self.render_mode = "rgb_array"

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self._draw(), {}

    def step(self, action):
        self.count += 1
        paid = float(int(action) == self.right)
        return self._draw(), paid, self.count >= self.steps, False, {}

    def render(self):
        return np.repeat(self.image[..., None], 3, -1)

    def _draw(self):
        self.right = int(self.np_random.integers(2))
        row = int(self.np_random.integers(SIDE - 2))
        column = int(self.np_random.integers(SIDE // 2 - 2)) + self.right * SIDE // 2
        self.image = np.zeros((SIDE, SIDE), np.uint8)
        self.image[row : row + 3, column : column + 3] = 255
        image = self.image
        if self.layout != "grey":
            image = np.stack([image] * 3, -1 if self.layout == "last" else 0)
        return np.broadcast_to(image, self.observation_space.shape).copy()
