"""Environments with their own observations and actions, on tensors or simulated.

E parallel episodes, A agents, observations D wide, actions K wide. A state [E] has
``datapoint_id``, ``seed``, ``round`` (steps so far) int64, ``done``, ``terminated`` bool and under
``agents`` ``observation`` f32 (bytes for images) [E, A, D] and ``episode_reward`` f32 [E, A]. Where
agents take turns, ``agents`` also has ``active`` bool [E, A, 1], and ``legal`` bool [E, A, N] where
not all actions are legal. An episode is a function of its datapoint, which is a seed, and of the
actions.
"""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from ratchet.errors import ParameterError, StateError
from ratchet.scenarios.gymnasium.catalogue import BatchedEnvSpec
from ratchet.scenarios.gymnasium.dynamics import Dynamics
from ratchet.scenarios.gymnasium.gif_recorder import film_episodes
from ratchet.scenarios.gymnasium.protocol import SimulatorProtocolHandler
from ratchet.scenarios.gymnasium.spaces import AgentSpaces, ContinuousActions
from ratchet.scenarios.gymnasium.turns import (
    Turn,
    check_actions,
    check_turn,
    stack_turns,
    turn_entries,
)
from ratchet.scenarios.tensor_environment import (
    Key,
    RolloutShape,
    TensorEnvironment,
    check_new_episodes,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.trainers import RlParameters
    from ratchet.protocols.handler import ProtocolHandler
    from ratchet.scenarios.dataset import TensorDictDataset
    from ratchet.scenarios.gymnasium.catalogue import SimulatedEnvSpec
    from ratchet.scenarios.gymnasium.parameters import GymnasiumParameters
    from ratchet.scenarios.gymnasium.simulators import SimulatedStep, Simulator

DEFAULT_NUM_ENVS = 8
DEFAULT_FRAMES = 1000

DYNAMICS = "dynamics"
_MEMORY = ("agents", "memory")
"""Agents' recurrent state, if any: zero at the start of an episode."""
Nested = dict[str, Any]
"""Tensors by name, and mappings of them."""
_ACTIONS = "past_actions"
_LENGTHS = "past_lengths"


def environment_shape(
    rl: RlParameters,
    section: GymnasiumParameters,
    num_datapoints: int,
    *,
    train: bool,
    tests_at_once: bool,
) -> RolloutShape:
    """Return the shape of one iteration's rollouts.

    In training ``gymnasium.num_envs`` environments, 8 by default, for the number of steps that
    results in ``rl.frames_per_batch`` (1000 if not set); ``rl.steps_per_env_per_iteration`` gives
    the steps instead, and the environments then follow from the frames if they are not given.

    In tests all episodes together, or for costly environments the number that completes them in
    ``rl.num_test_iterations`` rounds.
    """
    if not train:
        together = math.ceil(num_datapoints / rl.num_test_iterations)
        return RolloutShape(num_datapoints if tests_at_once else together, 1)
    frames, steps, num_envs = rl.frames_per_batch, rl.steps_per_env_per_iteration, section.num_envs
    if rl.rollouts_per_iteration is not None:
        raise ParameterError(
            f"rl.rollouts_per_iteration: got {rl.rollouts_per_iteration}, but how long the episodes"
            " of an environment are is not known before. Set rl.frames_per_batch instead."
        )
    if steps is None:
        num_envs = num_envs or DEFAULT_NUM_ENVS
        steps = math.ceil((frames or DEFAULT_FRAMES) / num_envs)
        return RolloutShape(num_envs, steps)
    if frames is None:
        return RolloutShape(num_envs or DEFAULT_NUM_ENVS, steps)
    if frames % steps or (num_envs is not None and num_envs * steps != frames):
        raise ParameterError(
            f"rl.frames_per_batch: got {frames} with rl.steps_per_env_per_iteration={steps} and"
            f" gymnasium.num_envs={num_envs}, expected environments times steps. Leave out one of"
            " the three."
        )
    return RolloutShape(frames // steps, steps)


class ControlEnvironment(TensorEnvironment):
    """Base class of batched and simulated environments.

    Episodes that have ended must be restarted before the next step.
    """

    outcome_keys: tuple[Key, ...] = (
        "done",
        "terminated",
        *(("agents", k) for k in ("done", "truncated", "reward", "episode_reward")),
    )
    hidden_keys: ClassVar[tuple[str, ...]] = (DYNAMICS,)
    plays_tests_at_once: ClassVar[bool] = False
    """Whether all test episodes run in parallel."""

    def __init__(
        self,
        hyper_params: HyperParameters,
        dataset: TensorDictDataset,
        protocol_handler: ProtocolHandler,
        *,
        spaces: AgentSpaces,
        train: bool,
        device: str | torch.device = "cpu",
    ) -> None:
        self.section: GymnasiumParameters = hyper_params.gymnasium
        self.spaces = spaces
        super().__init__(hyper_params, dataset, protocol_handler, train=train, device=device)
        self.carries_episodes = train and self.section.carry_episodes

    def _rollout_shape(self) -> RolloutShape:
        return environment_shape(
            self.hyper_params.rl,
            self.section,
            len(self.dataset),
            train=self.train,
            tests_at_once=self.plays_tests_at_once,
        )

    def _first(self, ids: Tensor, seeds: Tensor, observation: Tensor, turn: Turn | None) -> Nested:
        """Create first states from the parts that all environments share."""
        check_turn(turn, self.spaces, self.hyper_params.dataset)
        over = torch.zeros(ids.shape, dtype=torch.bool, device=self.device)
        nothing = torch.zeros(observation.shape[:-1], device=self.device)
        return {
            "datapoint_id": ids,
            "seed": seeds,
            "round": torch.zeros_like(ids),
            "done": over,
            "terminated": over.clone(),
            "agents": {
                "observation": observation,
                "episode_reward": nothing,
                **turn_entries(turn, self.device),
            },
        }

    @property
    def num_films(self) -> int:
        """The number of the section ``gymnasium``."""
        return 0 if self.train else self.section.num_test_videos

    def film(self, played: Mapping[int, Sequence[Tensor]]) -> tuple[bytes, ...]:
        """Render episodes in a simulator, given their actions ``[A, K]``."""
        if not played:
            return ()
        assert isinstance(self.protocol_handler, SimulatorProtocolHandler)
        base_dir = self.protocol_handler.base_dir
        return film_episodes(self.hyper_params, self.dataset, played, base_dir)

    @property
    def action_keys(self) -> list[Key]:
        """One action of each agent."""
        return [("agents", "action")]

    def reset_where(
        self, td: TensorDictBase, mask: Tensor, ids: Tensor, seeds: Tensor
    ) -> TensorDictBase:
        """Start new episodes where ``mask`` is true, and keep the other states."""
        where = check_new_episodes(mask, ids, seeds)
        if len(where) == 0:
            return td
        fresh = self._begin(where, ids.to(self.device), seeds.to(self.device))
        memory = td.get(_MEMORY, None)
        if memory is not None:
            fresh["agents"]["memory"] = memory.new_zeros(len(where), *memory.shape[1:])
        return _tensordict(_replaced(td, fresh, where), td.batch_size)

    def reset(self, ids: Tensor | None = None, seeds: Tensor | None = None) -> TensorDict:
        """Start episodes; see :class:`TensorEnvironment`."""
        ids, seeds = self.new_episodes(ids, seeds)
        fresh = self._begin(torch.arange(len(ids)), ids, seeds)
        return _tensordict(fresh, torch.Size([len(ids)]))

    @abstractmethod
    def _begin(self, where: Tensor, ids: Tensor, seeds: Tensor) -> Nested:
        """Start episodes at the indices int64 [k]: first states [k]."""

    def save_episodes(self, td: TensorDictBase) -> dict[str, Tensor]:
        """Return the states' tensors by dotted name."""
        flat = td.exclude("next", *_CHOICES).flatten_keys(".")
        return {str(name): value for name, value in flat.items()}

    def restore_episodes(self, saved: dict[str, Tensor]) -> TensorDictBase:
        """Return the states that were saved."""
        size = saved["datapoint_id"].shape[0]
        on_device = {name: value.to(self.device) for name, value in saved.items()}
        return TensorDict(on_device, batch_size=[size]).unflatten_keys(".")


_CHOICES = tuple(("agents", name) for name in ("action", "log_prob", "value"))


def _replaced(old: TensorDictBase, new: Nested, where: Tensor) -> Nested:
    """Return the values of ``old``, with the rows ``where`` replaced by those of ``new``."""
    return {
        name: (
            _replaced(old.get(name), value, where)
            if isinstance(value, dict)
            else old.get(name).index_copy(0, where, value)
        )
        for name, value in new.items()
    }


def _tensordict(content: Nested, size: torch.Size) -> TensorDict:
    nested = {
        name: _tensordict(value, size) if isinstance(value, dict) else value
        for name, value in content.items()
    }
    return TensorDict(nested, batch_size=size)


class BatchedEnvironment(ControlEnvironment):
    """Dynamics on tensors: one step advances all episodes."""

    plays_tests_at_once = True

    def __init__(
        self,
        hyper_params: HyperParameters,
        dataset: TensorDictDataset,
        protocol_handler: ProtocolHandler,
        *,
        train: bool,
        game: BatchedEnvSpec,
        device: str | torch.device = "cpu",
    ) -> None:
        self.dynamics: Dynamics = game.make()
        self.max_episode_steps = game.max_episode_steps
        spaces = AgentSpaces(self.dynamics.agents)
        super().__init__(
            hyper_params, dataset, protocol_handler, spaces=spaces, train=train, device=device
        )
        self._check_observations()

    def _begin(self, where: Tensor, ids: Tensor, seeds: Tensor) -> Nested:
        state = self.dynamics.first_state(self.dataset["seed"][ids])
        observation, turn = self.dynamics.observe(state), self.dynamics.turn(state)
        return {**self._first(ids, seeds, observation, turn), DYNAMICS: dict(state)}

    def step(self, td: TensorDictBase) -> TensorDict:
        """Advance all episodes; see :class:`TensorEnvironment`."""
        check_actions(td, self.spaces, self.hyper_params.dataset)
        actions = td.get(("agents", "action"))
        if self._bounds is not None:
            actions = actions.clamp(*self._bounds)
        state, reward, terminated = self.dynamics.step(dict(td.get(DYNAMICS).items()), actions)
        rounds = td.get("round") + 1
        size = td.batch_size
        agents = {
            "observation": self.dynamics.observe(state),
            **turn_entries(self.dynamics.turn(state), self.device),
            "episode_reward": td.get(("agents", "episode_reward")) + reward,
            "reward": reward * self.section.reward_scale,
        }
        done = terminated
        if self.max_episode_steps is not None:
            cut = (rounds >= self.max_episode_steps) & ~terminated
            done = cut | terminated
            agents["truncated"] = cut.unsqueeze(-1).expand(reward.shape)
        return TensorDict(
            {
                "datapoint_id": td.get("datapoint_id"),
                "seed": td.get("seed"),
                "round": rounds,
                "done": done,
                "terminated": terminated,
                "agents": TensorDict(agents, batch_size=size),
                DYNAMICS: TensorDict(state, batch_size=size),
            },
            batch_size=size,
        )

    @cached_property
    def _bounds(self) -> tuple[Tensor, Tensor] | None:
        """Bounds of actions, f32 [A, K] each; None if all are choices."""
        if self.spaces.all_discrete:
            return None
        shape = (len(self.spaces.names), self.spaces.action_width)
        low, high = torch.full(shape, -torch.inf), torch.full(shape, torch.inf)
        for index, space in enumerate(self.spaces.by_name.values()):
            if isinstance(space.actions, ContinuousActions):
                low[index, : len(space.actions.low)] = torch.tensor(space.actions.low)
                high[index, : len(space.actions.high)] = torch.tensor(space.actions.high)
        return low.to(self.device), high.to(self.device)

    def _check_observations(self) -> None:
        """Check that the dynamics show what their spaces say."""
        seeds = self.dataset["seed"][:2]
        observations = self.dynamics.observe(self.dynamics.first_state(seeds))
        expected = (len(seeds), len(self.spaces.names), self.spaces.observation_width)
        dtype = self.spaces.observation_dtype
        if tuple(observations.shape) != expected or observations.dtype != dtype:
            raise ParameterError(
                f"{type(self.dynamics).__qualname__}.observe: got {observations.dtype}"
                f" {tuple(observations.shape)}, expected {dtype} {expected}: episodes, agents,"
                " numbers."
            )


class SimulatedEnvironment(ControlEnvironment):
    """A simulator for each of E episodes; episode e is simulated by the e-th.

    A simulator's state cannot be saved, but an episode is a function of its seed and the actions so
    far: these are stored, and executed again when an interrupted run resumes.

    Under ``agents`` states have ``done`` bool [E, A] too: agents may leave before the others.
    """

    outcome_keys: tuple[Key, ...] = ControlEnvironment.outcome_keys

    def __init__(
        self,
        hyper_params: HyperParameters,
        dataset: TensorDictDataset,
        protocol_handler: ProtocolHandler,
        *,
        train: bool,
        game: SimulatedEnvSpec,
        device: str | torch.device = "cpu",
    ) -> None:
        spaces = game.spaces()
        super().__init__(
            hyper_params, dataset, protocol_handler, spaces=spaces, train=train, device=device
        )
        self.game = game
        self._simulators: list[Simulator] = []
        self._past: list[list[npt.NDArray[Any]]] = []

    def own(self) -> Self:
        """Return an environment with separate simulators."""
        mine = copy.copy(self)
        mine._simulators, mine._past = [], []
        return mine

    def close(self) -> None:
        """Close the simulators; the next reset makes new ones."""
        for simulator in self._simulators:
            simulator.close()
        self._simulators, self._past = [], []

    def reset(self, ids: Tensor | None = None, seeds: Tensor | None = None) -> TensorDict:
        """Start episodes; see :class:`TensorEnvironment`."""
        ids, seeds = self.new_episodes(ids, seeds)
        while len(self._simulators) < len(ids):
            self._simulators.append(self.game.make())
        self._past = [[] for _ in self._simulators]
        return super().reset(ids, seeds)

    def _begin(self, where: Tensor, ids: Tensor, seeds: Tensor) -> Nested:
        observations, turns = [], []
        for index, seed in zip(where.tolist(), self.dataset["seed"][ids].tolist(), strict=True):
            self._past[index] = []
            observations.append(self._simulators[index].reset(seed))
            turns.append(self._simulators[index].turn())
        observation = torch.from_numpy(np.stack(observations)).to(self.device)
        first = self._first(ids, seeds, observation, stack_turns(turns))
        nobody = torch.zeros(first["agents"]["observation"].shape[:-1], dtype=torch.bool)
        first["agents"]["done"] = nobody.to(self.device)
        return first

    def step(self, td: TensorDictBase) -> TensorDict:
        """Run a step of every simulator; see :class:`TensorEnvironment`."""
        check_actions(td, self.spaces, self.hyper_params.dataset)
        actions = td.get(("agents", "action")).cpu().numpy()
        steps: list[SimulatedStep] = []
        turns: list[Turn | None] = []
        for index, action in enumerate(actions):
            self._past[index].append(action)
            steps.append(self._simulators[index].step(action))
            turns.append(self._simulators[index].turn())
        columns = [
            torch.from_numpy(np.stack(column)).to(self.device)
            for column in zip(*steps, strict=True)
        ]
        observation, reward, terminated, truncated = columns
        agent_done = td.get(("agents", "done"))
        fresh = ~agent_done
        reward = reward * fresh
        agent_done = agent_done | terminated | truncated
        done = agent_done.all(-1)
        size = td.batch_size
        agents = {
            "observation": observation,
            **turn_entries(stack_turns(turns), self.device),
            "episode_reward": td.get(("agents", "episode_reward")) + reward,
            "done": agent_done,
            "reward": reward * self.section.reward_scale,
            "truncated": truncated & fresh,
        }
        return TensorDict(
            {
                "datapoint_id": td.get("datapoint_id"),
                "seed": td.get("seed"),
                "round": td.get("round") + 1,
                "done": done,
                "terminated": done & ~truncated.any(-1),
                "agents": TensorDict(agents, batch_size=size),
            },
            batch_size=size,
        )

    def save_episodes(self, td: TensorDictBase) -> dict[str, Tensor]:
        """Return the states, and the actions that led to them."""
        past = self._past[: td.batch_size[0]]
        actions = [action for episode in past for action in episode]
        shape = (0, len(self.spaces.names), self.spaces.action_width)
        flat = np.stack(actions) if actions else np.zeros(shape, np.float32)
        return {
            **super().save_episodes(td),
            _ACTIONS: torch.from_numpy(flat),
            _LENGTHS: torch.tensor([len(episode) for episode in past]),
        }

    def restore_episodes(self, saved: dict[str, Tensor]) -> TensorDictBase:
        """Replay the episodes up to their saved position.

        Raises StateError if that leads elsewhere: the simulator draws on more than its seed.
        """
        lengths = saved[_LENGTHS].tolist()
        actions = iter(saved[_ACTIONS].numpy())
        states = {name: saved[name] for name in saved if name not in (_ACTIONS, _LENGTHS)}
        td = super().restore_episodes(states)
        observations = (
            self.reset(td["datapoint_id"], td["seed"])["agents", "observation"].cpu().clone()
        )
        for index, length in enumerate(lengths):
            for _ in range(length):
                action = next(actions)
                self._past[index].append(action)
                step = self._simulators[index].step(action)
                observations[index] = torch.from_numpy(step.observation)
        if not torch.equal(observations, td["agents", "observation"].cpu()):
            raise StateError(
                f"environment {self.hyper_params.dataset!r}: playing the saved actions again from"
                " the same seeds leads to other observations, expected the same: the simulator"
                " draws on more than what reset(seed=...) sets. Set"
                " gymnasium.carry_episodes: false, so that iterations begin with new episodes."
            )
        return td
