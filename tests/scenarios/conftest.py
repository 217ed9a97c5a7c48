"""A small dataset of graph pairs, environments over it, and a policy that plays at random."""

import pytest
import torch

from ratchet.parameters import HyperParameters
from ratchet.protocols.registry import build_protocol_handler
from ratchet.scenarios.graph_isomorphism.dataset import build_graph_datasets
from ratchet.scenarios.graph_isomorphism.scenario import GraphIsomorphismEnvironment

SECTION = {
    "graph_sizes": (6, 7),
    "edge_probabilities": (0.4, 0.6),
    "prop_score_1": 0.5,
    "prop_score_2": 0.5,
}


def make_parameters(protocol: str = "nip", **changes) -> HyperParameters:
    return HyperParameters(
        scenario="graph_isomorphism",
        trainer="vanilla_ppo",
        dataset="er50",
        interaction_protocol=protocol,
        graph_isomorphism=SECTION,
        **changes,
    )


@pytest.fixture
def small_parameters():
    return make_parameters


@pytest.fixture(scope="session")
def small_datasets():
    return build_graph_datasets(make_parameters())


@pytest.fixture
def make_environment(small_datasets):
    def make(protocol: str = "nip", *, train: bool = True, **changes):
        hyper_params = make_parameters(protocol, **changes)
        return GraphIsomorphismEnvironment(
            hyper_params,
            small_datasets["train"],
            build_protocol_handler(hyper_params),
            train=train,
        )

    return make


class RandomPolicy:
    """Samples all actions uniformly for all agents, also out of turn."""

    def __init__(self, environment, seed: int = 0, decide: bool = True) -> None:
        self.environment = environment
        self.generator = torch.Generator().manual_seed(seed)
        self.decide = decide

    def __call__(self, td):
        agents = self.environment.protocol_handler.num_agents
        channels, positions, symbols = self.environment.message_shape
        td = td.clone()
        size = td.batch_size[0]
        td["agents", "message"] = self.draw(symbols, size, agents, channels, positions)
        td["agents", "decision"] = (
            self.draw(3, size, agents) if self.decide else torch.full((size, agents), 2)
        )
        if self.environment.num_linear_symbols is not None:
            td["agents", "linear_message"] = self.draw(
                self.environment.num_linear_symbols, size, agents
            )
        shape = (size, agents, channels, positions, symbols)
        td["agents", "message_logits"] = torch.randn(shape, generator=self.generator)
        td["agents", "decision_logits"] = torch.randn((size, agents, 3), generator=self.generator)
        return td

    def draw(self, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(high, shape, generator=self.generator)


@pytest.fixture
def random_policy():
    return RandomPolicy
