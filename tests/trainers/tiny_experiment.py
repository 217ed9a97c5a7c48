"""The smallest experiment that has everything; also a script that trains it and saves the state."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict

from ratchet import ExperimentSettings, HyperParameters
from ratchet.scenarios import ScenarioInstance, build_scenario_instance
from ratchet.scenarios.dataset import TensorDictDataset
from trainers.registry import trainer_class

NODES = 4
AGENT = {
    "num_gnn_layers": 1,
    "d_gnn": 4,
    "d_gin_mlp": 4,
    "num_heads": 2,
    "num_transformer_layers": 1,
    "d_transformer": 4,
    "d_transformer_mlp": 4,
    "d_node_selector": 4,
    "d_decider": 4,
    "d_value": 4,
}
PARAMETERS: dict[str, Any] = {
    "scenario": "graph_isomorphism",
    "trainer": "vanilla_ppo",
    "dataset": "generated",
    "d_representation": 4,
    "nip_protocol": {"max_message_rounds": 4},
    "rl": {
        "frames_per_batch": 32,
        "minibatch_size": 12,
        "num_epochs": 2,
        "num_iterations": 3,
        "num_normalization_steps": 32,
        "num_test_iterations": 2,
    },
    "solo_agent": {"num_epochs": 2, "batch_size": 8},
    "agents": {"_default": AGENT},
}


def parameters(**changes: object) -> HyperParameters:
    """Make the parameters, with changes by dotted path (dots written as two underscores)."""
    plain = {path.replace("__", "."): value for path, value in changes.items()}
    return HyperParameters(**PARAMETERS).replace(plain)


def dataset(size: int, seed: int) -> TensorDictDataset:
    """Make pairs of random graphs with three or four nodes; half are relabelled copies."""
    generator = torch.Generator().manual_seed(seed)
    upper = torch.triu(torch.rand(size, 2, NODES, NODES, generator=generator) < 0.5, 1)
    present = torch.ones(size, 2, NODES, dtype=torch.bool)
    present[::3, :, -1] = False
    y = torch.arange(size) % 2
    upper[:, 1] = torch.where(y.bool().view(-1, 1, 1), upper[:, 0], upper[:, 1])
    adjacency = (upper | upper.mT) & present.unsqueeze(-1) & present.unsqueeze(-2)
    fields = {
        "adjacency": adjacency.to(torch.uint8),
        "node_mask": present,
        "y": y,
        "wl_score": 1 - y,
        "num_nodes": present[:, 0].sum(-1),
    }
    return TensorDictDataset(TensorDict(fields, batch_size=[size]))


def scenario(hyper_params: HyperParameters, **settings: Any) -> ScenarioInstance:
    """Build the components with fresh agents."""
    return build_scenario_instance(
        hyper_params,
        ExperimentSettings(**settings),
        datasets={"train": dataset(20, 1), "test": dataset(10, 2)},
        trainer_type=trainer_class(hyper_params).trainer_type,
    )


def trainer(hyper_params: HyperParameters, **settings: Any) -> Any:
    """Build the trainer with fresh agents."""
    instance = scenario(hyper_params, **settings)
    return trainer_class(hyper_params)(hyper_params, instance, ExperimentSettings(**settings))


if __name__ == "__main__":
    torch.set_num_threads(1)
    made = trainer(parameters(pretrain_agents=True))
    made.train()
    made.state.save(Path(sys.argv[1]))
