"""Simulators behind one interface: an episode of gymnasium's or PettingZoo's at a time.

Their spaces become plain numbers: observations are flattened, actions are numbers of choices or
reals within bounds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from ratchet.errors import ParameterError
from ratchet.scenarios.gymnasium.spaces import (
    Actions,
    AgentSpace,
    AgentSpaces,
    ContinuousActions,
    DiscreteActions,
)
from ratchet.scenarios.gymnasium.turns import Turn

if TYPE_CHECKING:
    import numpy.typing as npt
    from pettingzoo import AECEnv, ParallelEnv

    Numbers: TypeAlias = npt.NDArray[np.float32 | np.uint8]
    Floats: TypeAlias = npt.NDArray[np.float32]
    Booleans: TypeAlias = npt.NDArray[np.bool_]

_FRAMES_PER_SECOND = 10.0
"""Default of environments that set no rate."""


class SimulatedStep(NamedTuple):
    """Result of a step for A agents: observations [A, D] and rewards f32 [A].

    ``terminated`` bool [A] marks agents whose episode is over, ``truncated`` the end by a time
    limit.
    """

    observation: Numbers
    reward: Floats
    terminated: Booleans
    truncated: Booleans


class Simulator(ABC):
    """One episode at a time, which is a function of the seed and the actions."""

    spaces: AgentSpaces
    frames_per_second: float = _FRAMES_PER_SECOND

    @abstractmethod
    def reset(self, seed: int) -> Numbers:
        """Start an episode: first observations [A, D], of the spaces' dtype."""

    @abstractmethod
    def step(self, actions: npt.NDArray[Any]) -> SimulatedStep:
        """Apply the agents' actions: [A, K], int64 or f32."""

    def turn(self) -> Turn | None:
        """Return the next acting agents and their actions; None: all agents, with all actions."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Release the simulator's resources."""

    def render(self) -> npt.NDArray[np.uint8]:
        """Return a picture of the state, bytes [H, W, 3]."""
        raise ParameterError(f"{type(self).__name__}: cannot be rendered.")


class GymnasiumSimulator(Simulator):
    """A gymnasium environment, with a time limit if it has none."""

    def __init__(self, env: gymnasium.Env[Any, Any], max_episode_steps: int | None = None) -> None:
        if max_episode_steps is not None:
            env = gymnasium.wrappers.TimeLimit(env, max_episode_steps)
        self.env = env
        self.frames_per_second = frames_per_second(env)
        self.spaces = AgentSpaces({"agent": read_space(env.observation_space, env.action_space)})

    def reset(self, seed: int) -> Numbers:
        """Start an episode."""
        observation, _ = self.env.reset(seed=seed)
        return self._flat(observation)

    def step(self, actions: npt.NDArray[Any]) -> SimulatedStep:
        """Act."""
        observation, reward, terminated, truncated, _ = self.env.step(
            write_action(self.env.action_space, actions[0])
        )
        return SimulatedStep(
            self._flat(observation),
            np.array([reward], np.float32),
            np.array([terminated], np.bool_),
            np.array([truncated and not terminated], np.bool_),
        )

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def render(self) -> npt.NDArray[np.uint8]:
        """Render the environment, whose mode must be ``rgb_array``."""
        picture: npt.NDArray[np.uint8] = self.env.render()  # type: ignore[assignment]
        return picture

    def _flat(self, observation: Any) -> Numbers:  # noqa: ANN401 -- of the environment's space
        flat = spaces.flatten(self.env.observation_space, observation)
        seen: Numbers = np.asarray(flat, numpy_dtype(self.spaces))
        return seen[None]


class PettingZooSimulator(Simulator):
    """A parallel PettingZoo environment, in which agents may leave before others.

    ``max_episode_steps`` is a time limit in addition to the environment's.
    """

    def __init__(
        self, env: ParallelEnv[str, Any, Any], max_episode_steps: int | None = None
    ) -> None:
        self.env = env
        self.frames_per_second = frames_per_second(env)
        self.names: list[str] = list(env.possible_agents)
        self.spaces = AgentSpaces(
            {
                name: read_space(env.observation_space(name), env.action_space(name))
                for name in self.names
            }
        )
        self.max_episode_steps = max_episode_steps
        self._num_steps = 0

    def reset(self, seed: int) -> Numbers:
        """Start an episode."""
        self._num_steps = 0
        observations, _ = self.env.reset(seed=seed)
        return self._flat(observations)

    def step(self, actions: npt.NDArray[Any]) -> SimulatedStep:
        """Apply the actions of the remaining agents."""
        playing = set(self.env.agents)
        chosen = {
            name: write_action(self.env.action_space(name), actions[index])
            for index, name in enumerate(self.names)
            if name in playing
        }
        observations, rewards, terminations, truncations, _ = self.env.step(chosen)
        self._num_steps += 1
        late = self.max_episode_steps is not None and self._num_steps >= self.max_episode_steps
        terminated = np.array([bool(terminations.get(n, n in playing)) for n in self.names])
        truncated = np.array([bool(truncations.get(n)) for n in self.names])
        if late:
            truncated |= np.array([name in playing for name in self.names])
        reward = np.array([rewards.get(name, 0.0) for name in self.names], np.float32)
        return SimulatedStep(self._flat(observations), reward, terminated, truncated & ~terminated)

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def render(self) -> npt.NDArray[np.uint8]:
        """Render the environment, whose mode must be ``rgb_array``."""
        picture: npt.NDArray[np.uint8] = self.env.render()
        return picture

    def _flat(self, observations: dict[str, Any]) -> Numbers:
        dtype = numpy_dtype(self.spaces)
        flat: Numbers = np.zeros((len(self.names), self.spaces.observation_width), dtype)
        for index, name in enumerate(self.names):
            if name in observations:
                space = self.env.observation_space(name)
                seen = np.asarray(spaces.flatten(space, observations[name]), dtype)
                flat[index, : len(seen)] = seen
        return flat


def frames_per_second(
    env: gymnasium.Env[Any, Any] | ParallelEnv[str, Any, Any] | AECEnv[str, Any, Any],
) -> float:
    """Return the number of frames per second of an environment."""
    metadata: dict[str, Any] = getattr(env, "metadata", None) or {}
    return float(metadata.get("render_fps") or _FRAMES_PER_SECOND)


def numpy_dtype(agents: AgentSpaces) -> type[np.float32] | type[np.uint8]:
    """Return the dtype of stored observations."""
    return np.uint8 if agents.observation_dtype == torch.uint8 else np.float32


def read_space(observation: spaces.Space[Any], action: spaces.Space[Any]) -> AgentSpace:
    """Return an agent's spaces."""
    try:
        size = spaces.flatdim(observation)
    except (NotImplementedError, ValueError) as error:
        raise ParameterError(
            f"observation space {observation}: expected one of a fixed size, such as Box, Discrete"
            f" or Dict of those ({error})."
        ) from error
    if not isinstance(observation, spaces.Box) or len(observation.shape) < 2:
        return AgentSpace(size, _read_actions(action))
    is_bytes = observation.dtype == np.uint8
    return AgentSpace(size, _read_actions(action), observation.shape, is_bytes)


def _read_actions(space: spaces.Space[Any]) -> Actions:
    if isinstance(space, spaces.Discrete):
        return DiscreteActions((int(space.n),))
    if isinstance(space, spaces.MultiDiscrete):
        return DiscreteActions(tuple(int(n) for n in space.nvec.flatten()))
    if isinstance(space, spaces.MultiBinary):
        return DiscreteActions((2,) * int(np.prod(space.shape)))
    if isinstance(space, spaces.Box):
        low, high = space.low.flatten().tolist(), space.high.flatten().tolist()
        return ContinuousActions(tuple(low), tuple(high))
    raise ParameterError(
        f"action space {space}: expected Discrete, MultiDiscrete, MultiBinary or Box. Wrap the"
        " environment so that its actions are one of these."
    )


def write_action(space: spaces.Space[Any], action: npt.NDArray[Any]) -> Any:  # noqa: ANN401
    """Return the numbers [K] that an agent chose as an action of its space."""
    if isinstance(space, spaces.Discrete):
        return int(action[0]) + int(space.start)
    if isinstance(space, spaces.MultiDiscrete):
        chosen = action[: space.nvec.size].reshape(space.shape)
        return (chosen + space.start).astype(space.dtype)
    if isinstance(space, spaces.MultiBinary):
        return action[: int(np.prod(space.shape))].reshape(space.shape).astype(space.dtype)
    assert isinstance(space, spaces.Box)  # read_space has seen to it
    chosen = action[: space.low.size].reshape(space.shape)
    return np.clip(chosen, space.low, space.high).astype(space.dtype)
