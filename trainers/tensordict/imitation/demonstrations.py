"""Demonstrators that agents imitate: scripted agents in their roles, or the rollouts of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from tensordict import TensorDictBase
from torch import Tensor

from ratchet.errors import DataError, ParameterError
from ratchet.rollouts.files import load_rollouts, read_about
from ratchet.scenarios.dataset import DataCursor
from ratchet.scenarios.registry import build_scenario
from ratchet.scenarios.tensor_scenario import MessageScenario
from trainers.tensordict.collectors import RolloutCollector
from trainers.tensordict.testing import TestPlayer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratchet.agents.combined import CombinedAgents
    from ratchet.agents.parts import Agent
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.protocols.handler import ProtocolHandler
    from ratchet.scenarios.tensor_environment import TensorEnvironment
    from trainers.tensordict.base import TensorDictTrainer

STAGE = "imitate"
_RIGHT = -100.0
"""A log-probability between those of actions that a scripted agent takes and never takes."""


def build_demonstrators(
    hyper_params: HyperParameters, handler: ProtocolHandler, base_dir: Path | None
) -> dict[str, Agent]:
    """Build the scripted agents that agents imitate, by name.

    Raises ParameterError if the scenario, as configured, has none.
    """
    scenario = build_scenario(hyper_params.scenario, base_dir)
    if not isinstance(scenario, MessageScenario):
        raise ParameterError(
            f"imitation.agents: got {list(hyper_params.imitation.agents)} with the scenario"
            f" {hyper_params.scenario!r}, expected one whose agents exchange messages, e.g."
            " graph_isomorphism. Leave imitation out."
        )
    return scenario.build_hand_made_agents(hyper_params, handler, hyper_params.imitation.agents)


class ScriptedDemonstrator:
    """Scripted agents in the roles of imitating agents; the other agents are unchanged.

    If several actions are equally good, a scripted agent samples one of them.
    """

    def __init__(self, trainer: TensorDictTrainer) -> None:
        hyper_params, instance = trainer.hyper_params, trainer.scenario_instance
        base_dir = trainer.settings.base_dir
        folder = None if base_dir is None else Path(base_dir)
        teachers = build_demonstrators(hyper_params, instance.protocol_handler, folder)
        scenario = build_scenario(hyper_params.scenario, folder)
        assert isinstance(scenario, MessageScenario)  # checked by build_demonstrators
        agents = scenario.combine_agents(
            hyper_params, instance.protocol_handler, {**instance.agents, **teachers}
        )
        agents.normalizer.load_state_dict(trainer.combined_agents.normalizer.state_dict())
        self.agents: CombinedAgents = agents.to(trainer.device)
        self.environment: TensorEnvironment = trainer.test_environment
        """The environment of the held-out datapoints."""
        environment, seed = trainer.train_environment, hyper_params.seed
        cursor = DataCursor(len(environment.dataset), seed, purpose=STAGE)
        self._collector = RolloutCollector(environment, self.agents, cursor, seed=seed, stage=STAGE)
        self._held_out = TestPlayer(trainer.test_environment, self.agents, seed=seed, purpose=STAGE)

    def frames(self, iteration: int) -> TensorDictBase:
        """Collect the frames ``[N]`` of one training iteration; call it once per iteration."""
        return self._collector.collect(iteration).reshape(-1)

    def held_out(self) -> TensorDictBase:
        """Collect episodes of held-out datapoints, one per environment: frames ``[N]``."""
        self._held_out.keeps_rollouts = True
        self._held_out.play(self._held_out.num_envs)
        assert self._held_out.rollouts is not None  # since keeps_rollouts
        return self._held_out.rollouts.reshape(-1)

    def right(self, frames: TensorDictBase, done: TensorDictBase, name: str) -> Tensor:
        """Return in which frames ``[N]`` an agent's action is as good as its demonstrator's."""
        index = self.agents.agent_names.index(name)
        with self.agents.bound_to(self.environment):
            return self.agents.score(done, agents=[name])[0][:, index] > _RIGHT


class RolloutDemonstrator:
    """The stored rollouts of a run: the same in each iteration, every tenth held out."""

    def __init__(self, trainer: TensorDictTrainer, files: Sequence[Path]) -> None:
        if not files:
            raise ParameterError(
                f"imitation.source: got {trainer.hyper_params.imitation.source!r}, but no rollouts"
                " were passed. Run the experiment with `ratchet run`, which finds those of the"
                " run; trainers without it imitate scripted agents."
            )
        for file in files:
            _check_game(file, trainer)
        played = [load_rollouts(file).exclude("next").reshape(-1) for file in files]
        frames: TensorDictBase = torch.cat(played).to(trainer.device)
        self.agents = trainer.combined_agents
        self.environment: TensorEnvironment = trainer.train_environment
        """The environment of the held-out datapoints."""
        self._frames = frames
        ids: Tensor = frames.get("datapoint_id")
        self._is_held_out = ids % 10 == 0

    def frames(self, iteration: int) -> TensorDictBase:
        """Return the frames ``[N]`` to learn from."""
        return self._frames[~self._is_held_out]

    def held_out(self) -> TensorDictBase:
        """Return the frames ``[N]`` of every tenth datapoint."""
        return self._frames[self._is_held_out]

    def right(self, frames: TensorDictBase, done: TensorDictBase, name: str) -> Tensor:
        """Return in which frames ``[N]`` an agent's action equals the recorded one."""
        index = self.agents.agent_names.index(name)
        same = torch.ones(len(frames), dtype=torch.bool, device=frames.device)
        counts = frames.get(("agents", "active"))[:, index]
        for key in self.agents.action_keys:
            one, other = (each.get(key)[:, index] for each in (frames, done))
            differs = one != other
            if key[-1] == "message":  # [N, C, P]: in channels in which it acts
                differs = differs & counts.unsqueeze(-1)
            same &= ~differs.reshape(len(frames), -1).any(1)
        return same


def _check_game(file: Path, trainer: TensorDictTrainer) -> None:
    """Refuse rollouts with other agents, rounds, channels or messages."""
    names = json.loads(read_about(file, "agent_names"))
    history = list(load_rollouts(file).get("x").shape[2:])
    environment = trainer.train_environment
    expected = list(environment.reset()["x"].shape[1:])
    if names != trainer.agent_names or history != expected:
        raise DataError(
            f"imitation.source: got rollouts of {names} with message histories {history},"
            f" expected {trainer.agent_names} and {expected} (rounds, channels, positions,"
            " symbols). Imitate a run of the same protocol with the same number of rounds."
        )
