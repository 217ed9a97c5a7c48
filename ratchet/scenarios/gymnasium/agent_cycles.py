"""PettingZoo's environments whose agents act in turn (``AECEnv``), an episode at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import spaces

from ratchet.scenarios.gymnasium.simulators import (
    SimulatedStep,
    Simulator,
    frames_per_second,
    numpy_dtype,
    read_space,
    write_action,
)
from ratchet.scenarios.gymnasium.spaces import AgentSpaces, DiscreteActions
from ratchet.scenarios.gymnasium.turns import Turn

if TYPE_CHECKING:
    import numpy.typing as npt
    from pettingzoo import AECEnv

    from ratchet.scenarios.gymnasium.simulators import Numbers

_MASK = "action_mask"
_OBSERVATION = "observation"


class AgentCycleSimulator(Simulator):
    """An ``AECEnv``; legal actions are its ``action_mask``, in observations or in infos.

    ``max_episode_steps`` is a time limit in addition to the environment's.
    """

    def __init__(self, env: AECEnv[str, Any, Any], max_episode_steps: int | None = None) -> None:
        self.env = env
        self.frames_per_second = frames_per_second(env)
        self.names: list[str] = list(env.possible_agents)
        self.spaces = AgentSpaces(
            {
                name: read_space(_without_mask(env.observation_space(name)), env.action_space(name))
                for name in self.names
            }
        )
        actions = [space.actions for space in self.spaces.by_name.values()]
        sizes = [each.sizes[0] for each in actions if isinstance(each, DiscreteActions)]
        self._num_actions = max(sizes, default=0)
        self.max_episode_steps = max_episode_steps
        self._num_steps, self._has_masks = 0, False

    def reset(self, seed: int) -> Numbers:
        """Start an episode."""
        self._num_steps = 0
        self.env.reset(seed=seed)
        self._has_masks = self._mask() is not None
        return self._observe()

    def step(self, actions: npt.NDArray[Any]) -> SimulatedStep:
        """Apply the action of the agent whose turn it is, and remove agents that are done."""
        env, acting = self.env, self.env.agent_selection
        before = {**env._cumulative_rewards, acting: 0.0}  # which acting sets to zero
        playing = set(env.agents)
        env.step(write_action(env.action_space(acting), actions[self.names.index(acting)]))
        self._num_steps += 1
        late = self.max_episode_steps is not None and self._num_steps >= self.max_episode_steps
        after = env._cumulative_rewards
        rewards = [after[n] - before[n] if n in playing else 0.0 for n in self.names]
        terminated = np.array([bool(env.terminations.get(n, n in playing)) for n in self.names])
        truncated = np.array([bool(env.truncations.get(n)) for n in self.names])
        if late:
            truncated |= np.array([name in playing for name in self.names])
        observation = self._observe()
        while env.agents and self._has_ended(env.agent_selection):
            env.step(None)
        return SimulatedStep(
            observation, np.array(rewards, np.float32), terminated, truncated & ~terminated
        )

    def turn(self) -> Turn:
        """Return the agent whose turn it is, and its legal actions if there is a mask."""
        acting = torch.zeros(len(self.names), dtype=torch.bool)
        legal = torch.zeros(len(self.names), self._num_actions, dtype=torch.bool)
        if self.env.agents:
            index = self.names.index(self.env.agent_selection)
            acting[index] = True
            if (mask := self._mask()) is not None:
                legal[index, : len(mask)] = torch.from_numpy(np.asarray(mask, np.bool_))
        return Turn(acting, legal if self._has_masks else None)

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def render(self) -> npt.NDArray[np.uint8]:
        """Render the environment, whose mode must be ``rgb_array``."""
        picture: npt.NDArray[np.uint8] = self.env.render()
        return picture

    def _observe(self) -> Numbers:
        dtype = numpy_dtype(self.spaces)
        flat: Numbers = np.zeros((len(self.names), self.spaces.observation_width), dtype)
        for index, name in enumerate(self.names):
            if name in self.env.agents:
                space, observation = self.env.observation_space(name), self.env.observe(name)
                if _has_mask(space):
                    space, observation = space[_OBSERVATION], observation[_OBSERVATION]
                seen = np.asarray(spaces.flatten(space, observation), dtype)
                flat[index, : len(seen)] = seen
        return flat

    def _mask(self) -> npt.NDArray[Any] | None:
        """Return the legal actions of the agent whose turn it is; None if all are."""
        name = self.env.agent_selection
        is_observed = _has_mask(self.env.observation_space(name))
        source = self.env.observe(name) if is_observed else self.env.infos[name]
        mask: npt.NDArray[Any] | None = source.get(_MASK)
        return mask

    def _has_ended(self, name: str) -> bool:
        return bool(self.env.terminations[name] or self.env.truncations[name])


def _has_mask(space: spaces.Space[Any]) -> bool:
    return isinstance(space, spaces.Dict) and set(space) == {_OBSERVATION, _MASK}


def _without_mask(space: spaces.Space[Any]) -> spaces.Space[Any]:
    """Return the space of observations without the mask of legal actions."""
    if isinstance(space, spaces.Dict) and _has_mask(space):
        return space[_OBSERVATION]
    return space
