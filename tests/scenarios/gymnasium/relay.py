"""A game in which one agent leaves after its first step, and the other stays for four steps."""

from __future__ import annotations

from types import MappingProxyType

import numpy as np
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv


class Relay(ParallelEnv):
    """Each step has reward 1; the ends are truncations or terminations."""

    metadata = MappingProxyType({"name": "relay", "render_modes": ()})
    possible_agents = ("short", "long")
    render_mode = None

    def __init__(self, truncate=False):
        self.truncate = truncate

    def observation_space(self, agent):
        return Box(0, 10, (2,), np.float32)

    def action_space(self, agent):
        return Discrete(2)

    def reset(self, seed=None, options=None):
        self.agents, self.steps = list(self.possible_agents), 0
        return self._observations(), {agent: {} for agent in self.agents}

    def step(self, actions):
        self.steps += 1
        playing = self.agents
        ends = {agent: self.steps == (1 if agent == "short" else 4) for agent in playing}
        none = dict.fromkeys(playing, False)
        observations, infos = self._observations(), {agent: {} for agent in playing}
        self.agents = [agent for agent in playing if not ends[agent]]
        terminated, truncated = (none, ends) if self.truncate else (ends, none)
        return observations, dict.fromkeys(playing, 1.0), terminated, truncated, infos

    def _observations(self):
        return {agent: np.array([self.steps, 1], np.float32) for agent in self.agents}
