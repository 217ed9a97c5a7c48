"""A small game on random graphs, played by agents with small bodies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from ratchet.agents.combined import CombinedAgents
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.protocols.base import ProtocolHandler
from ratchet.protocols.registry import build_protocol_handler
from ratchet.scenarios.dataset import TensorDictDataset
from ratchet.scenarios.graph_isomorphism.scenario import (
    GraphAgentBuilder,
    GraphIsomorphismEnvironment,
)

SMALL = {"num_gnn_layers": 2, "num_transformer_layers": 1, "d_gin_mlp": 8, "d_transformer_mlp": 8}


def random_pairs(size: int, n: int = 6, seed: int = 0) -> TensorDict:
    """Graph pairs of 4 to n nodes."""
    generator = torch.Generator().manual_seed(seed)
    upper = (torch.rand(size, 2, n, n, generator=generator) < 0.5).triu(1)
    num_nodes = torch.randint(4, n + 1, (size,), generator=generator)
    mask = torch.arange(n).expand(size, 2, n) < num_nodes[:, None, None]
    adjacency = (upper | upper.mT) & mask.unsqueeze(-1) & mask.unsqueeze(-2)
    return TensorDict(
        {
            "adjacency": adjacency.to(torch.uint8),
            "node_mask": mask,
            "y": torch.randint(0, 2, (size,), generator=generator),
        },
        batch_size=[size],
    )


@dataclass
class Game:
    """Everything needed to play."""

    hyper_params: HyperParameters
    handler: ProtocolHandler
    environment: GraphIsomorphismEnvironment
    agents: CombinedAgents

    def generators(self, seed: int = 0) -> dict[str, torch.Generator]:
        names = self.agents.agent_names
        return {name: torch.Generator().manual_seed(seed + i) for i, name in enumerate(names)}

    def reset(self, size: int = 12) -> TensorDict:
        ids = torch.arange(size) % len(self.environment.dataset)
        return self.environment.reset(ids, torch.arange(size))

    def play(self, size: int = 12, steps: int = 3, **options: Any) -> list[TensorDictBase]:
        """Play without resets; return the frames after acting."""
        td, generators, frames = self.reset(size), self.generators(), []
        for _ in range(steps):
            td = self.agents.act(td, generators=generators, **options)
            frames.append(td)
            td = self.environment.step(td)
        return frames


def make_game(trainer_type: str = "rl", **changes: Any) -> Game:
    agents = {"_default": SMALL}
    given = changes.pop("agents", {})
    agents = {**agents, **{name: {**SMALL, **value} for name, value in given.items()}}
    hyper_params = HyperParameters(
        scenario="graph_isomorphism",
        trainer="vanilla_ppo",
        dataset="generated",
        agents=agents,
        **{"nip_protocol": {"max_message_rounds": 4}, **changes},
    )
    handler = build_protocol_handler(hyper_params)
    environment = GraphIsomorphismEnvironment(
        hyper_params, TensorDictDataset(random_pairs(40)), handler, train=True
    )
    builder = GraphAgentBuilder()
    combined = builder.combine_agents(
        hyper_params, handler, builder.build_agents(hyper_params, handler, trainer_type)
    )
    combined.bind(environment)
    return Game(hyper_params, handler, environment, combined)


@pytest.fixture(scope="session")
def new_game() -> Any:
    """The function that makes games, with changes to the parameters."""
    return make_game
