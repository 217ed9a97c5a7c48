"""A TorchRL environment, one episode of one agent at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tensordict import NestedKey, TensorDictBase
from torch import Tensor
from torchrl.data import (
    Binary,
    Bounded,
    Categorical,
    MultiCategorical,
    MultiOneHot,
    OneHot,
    TensorSpec,
    Unbounded,
)
from torchrl.envs import EnvBase, step_mdp

from ratchet.errors import ParameterError
from ratchet.scenarios.gymnasium.simulators import SimulatedStep, Simulator, numpy_dtype
from ratchet.scenarios.gymnasium.spaces import (
    Actions,
    AgentSpace,
    AgentSpaces,
    ContinuousActions,
    DiscreteActions,
)
from ratchet.seeding import put_global_generators, seeded_globals, take_global_generators

if TYPE_CHECKING:
    import numpy.typing as npt

    from ratchet.scenarios.gymnasium.simulators import Numbers


class TorchRlSimulator(Simulator):
    """Simulator of a subclass of ``torchrl.envs.EnvBase``; observations are concatenated.

    Many sample from torch's global generator. Each episode has a separate state of it, initialised
    by the seed, and restores the process's.
    """

    def __init__(self, env: EnvBase, max_episode_steps: int | None = None) -> None:
        self.env = env
        self.max_episode_steps = max_episode_steps
        self._num_steps = 0
        self._generators: dict[str, Any] = {}
        self._td: TensorDictBase | None = None
        self._seen: list[NestedKey] = list(
            env.observation_spec.keys(include_nested=True, leaves_only=True)
        )
        name = type(env).__qualname__
        if (
            env.batch_size
            or len(env.action_keys) != 1
            or prod(env.reward_spec_unbatched.shape) != 1
        ):
            raise _unsuited(
                name,
                f"batch size {tuple(env.batch_size)}, {len(env.action_keys)} actions"
                f" and rewards of shape {tuple(env.reward_spec.shape)}",
            )
        action = env.full_action_spec[env.action_key]
        self.spaces = AgentSpaces({"agent": _space(env, self._seen, _read_actions(action, name))})
        self._action_spec = action

    def reset(self, seed: int) -> Numbers:
        """Start an episode."""
        self._num_steps = 0
        with seeded_globals(seed):
            self.env.set_seed(seed)
            td = self.env.reset()
            self._generators = take_global_generators()
        self._td = td
        return self._flat(td)

    def step(self, actions: npt.NDArray[Any]) -> SimulatedStep:
        """Act."""
        assert self._td is not None  # reset comes first
        self._td.set(self.env.action_key, _write_action(self._action_spec, actions[0]))
        with self._own_generators():
            after = self.env.step(self._td)
        following = after.get("next")
        self._num_steps += 1
        late = self.max_episode_steps is not None and self._num_steps >= self.max_episode_steps
        terminated = bool(following.get("terminated").any())
        over = bool(following.get("done").any()) or late
        self._td = step_mdp(after)
        return SimulatedStep(
            self._flat(following),
            following.get(self.env.reward_key).numpy().astype(np.float32).reshape(1),
            np.array([terminated], np.bool_),
            np.array([over and not terminated], np.bool_),
        )

    def close(self) -> None:
        """Close the environment."""
        if not self.env.is_closed:
            self.env.close()

    @contextmanager
    def _own_generators(self) -> Iterator[None]:
        """Use the episode's generators within a context."""
        before = take_global_generators()
        put_global_generators(self._generators)
        try:
            yield
            self._generators = take_global_generators()
        finally:
            put_global_generators(before)

    def _flat(self, td: TensorDictBase) -> Numbers:
        parts = [td.get(key).reshape(-1).numpy() for key in self._seen]
        seen: Numbers = np.concatenate(parts).astype(numpy_dtype(self.spaces))
        return seen[None]


def _space(env: EnvBase, seen: list[NestedKey], actions: Actions) -> AgentSpace:
    shapes = [tuple(env.observation_spec[key].shape) for key in seen]
    size = sum(prod(shape) for shape in shapes)
    if len(shapes) != 1 or len(shapes[0]) < 2:
        return AgentSpace(size, actions)
    is_bytes = env.observation_spec[seen[0]].dtype == torch.uint8
    return AgentSpace(size, actions, shapes[0], is_bytes)


def _read_actions(spec: TensorSpec, name: str) -> Actions:
    size = prod(spec.shape)
    match spec:
        case MultiCategorical():
            return DiscreteActions(tuple(spec.nvec.flatten().tolist()))
        case Binary():
            return DiscreteActions((2,) * size)
        case Categorical():
            return DiscreteActions((int(spec.space.n),) * size)
        case MultiOneHot():
            return DiscreteActions(tuple(spec.nvec))
        case OneHot() if len(spec.shape) == 1:
            return DiscreteActions((int(spec.space.n),))
        case Bounded():
            low, high = (bound.expand(spec.shape) for bound in (spec.space.low, spec.space.high))
            return ContinuousActions(tuple(low.flatten().tolist()), tuple(high.flatten().tolist()))
        case Unbounded() if spec.dtype.is_floating_point:
            return ContinuousActions((-torch.inf,) * size, (torch.inf,) * size)
    raise _unsuited(name, f"actions {spec}")


def _write_action(spec: TensorSpec, action: npt.NDArray[Any]) -> Tensor:
    """Return the numbers [K] that the agent chose as an action of its specification."""
    chosen = torch.as_tensor(action)
    if isinstance(spec, OneHot):
        sizes = spec.nvec if isinstance(spec, MultiOneHot) else [int(spec.space.n)]
        hot = [
            torch.nn.functional.one_hot(index, size)
            for index, size in zip(chosen.long(), sizes, strict=True)
        ]
        return torch.cat(hot).to(spec.dtype).reshape(spec.shape)
    chosen = chosen.to(spec.dtype).reshape(spec.shape)
    return spec.project(chosen) if isinstance(spec, Bounded) else chosen


def _unsuited(name: str, got: str) -> ParameterError:
    return ParameterError(
        f"dataset: {name!r} has {got}, expected an environment of one episode and one agent, with"
        " one reward and one action: choices, or real numbers. Others are played by TorchRL's"
        " trainers, e.g. `trainer: torchrl_ppo`; several agents also as pettingzoo.ParallelEnv."
    )
