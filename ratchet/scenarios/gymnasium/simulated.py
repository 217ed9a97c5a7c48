"""Simulated environments, with one simulator for each parallel episode.

A simulator's state cannot be saved, but an episode is a function of its seed and the actions so
far: these are stored, and executed again when an interrupted run resumes.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Self

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from ratchet.errors import StateError
from ratchet.scenarios.gymnasium.environment import ControlEnvironment, Nested
from ratchet.scenarios.tensor_environment import Key

if TYPE_CHECKING:
    from typing import Any

    import numpy.typing as npt

    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.protocols.handler import ProtocolHandler
    from ratchet.scenarios.dataset import TensorDictDataset
    from ratchet.scenarios.gymnasium.catalogue import SimulatedEnvSpec
    from ratchet.scenarios.gymnasium.simulators import SimulatedStep, Simulator

_ACTIONS = "past_actions"
_LENGTHS = "past_lengths"


class SimulatedEnvironment(ControlEnvironment):
    """A simulator for each of E episodes; episode e is simulated by the e-th.

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
        observations = []
        for index, seed in zip(where.tolist(), self.dataset["seed"][ids].tolist(), strict=True):
            self._past[index] = []
            observations.append(self._simulators[index].reset(seed))
        first = self._first(ids, seeds, torch.from_numpy(np.stack(observations)).to(self.device))
        nobody = torch.zeros(first["agents"]["observation"].shape[:-1], dtype=torch.bool)
        first["agents"]["done"] = nobody.to(self.device)
        return first

    def step(self, td: TensorDictBase) -> TensorDict:
        """Run a step of every simulator; see :class:`TensorEnvironment`."""
        actions = td.get(("agents", "action")).cpu().numpy()
        steps: list[SimulatedStep] = []
        for index, action in enumerate(actions):
            self._past[index].append(action)
            steps.append(self._simulators[index].step(action))
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
