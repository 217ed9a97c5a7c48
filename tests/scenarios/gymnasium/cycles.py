"""PettingZoo environments in a file whose agents act in turn."""

from __future__ import annotations

from types import MappingProxyType

import numpy as np
from gymnasium.spaces import Box, Discrete
from pettingzoo import AECEnv
from pettingzoo.classic.connect_four.connect_four import raw_env


class Hidden(raw_env):
    """Connect Four with the legal actions in infos."""

    def observation_space(self, agent):
        return Box(0, 1, (6, 7, 2))

    def observe(self, agent):
        both = super().observe(agent)
        self.infos[agent] = {"action_mask": both["action_mask"]}
        return both["observation"]

    def reset(self, seed=None, options=None):
        super().reset(seed, options)
        for agent in self.agents:
            self.observe(agent)

    def step(self, action):
        super().step(action)
        for agent in self.agents:
            self.observe(agent)


class Paid(AECEnv):
    """Three agents; a step rewards the acting agent with 1 and the next one with 10; the first
    leaves early."""

    metadata = MappingProxyType({"name": "paid", "render_modes": ()})
    render_mode = None

    def __init__(self):
        self.possible_agents = ["a", "b", "c"]

    def observation_space(self, agent):
        return Box(0, 99, (1,))

    def action_space(self, agent):
        return Discrete(2)

    def reset(self, seed=None, options=None):
        self.agents, self.steps = list(self.possible_agents), 0
        self.agent_selection = "a"
        for name, value in (("rewards", 0), ("_cumulative_rewards", 0), ("terminations", False)):
            setattr(self, name, dict.fromkeys(self.agents, value))
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: {} for agent in self.agents}

    def observe(self, agent):
        return np.array([self.steps], np.float32)

    def step(self, action):
        agent = self.agent_selection
        if self.terminations[agent]:
            self._was_dead_step(action)
            return
        following = self.agents[(self.agents.index(agent) + 1) % len(self.agents)]
        self._cumulative_rewards[agent] = 0
        self.rewards = {each: 0 for each in self.agents} | {agent: 1, following: 10}
        self.steps += 1
        self.terminations["a"] = self.steps >= 4
        if self.steps == 8:
            self.terminations = dict.fromkeys(self.agents, True)
        self._accumulate_rewards()
        self.agent_selection = following
        self._deads_step_first()
