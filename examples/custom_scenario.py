"""Custom scenario: its data, the agents' observations, and their network bodies.

Run it:    python examples/custom_scenario.py
Train it:  ratchet run examples/custom_scenario.yaml

Two cards are dealt. The prover sees both, the verifier only the first, and must decide whether the
second is higher. Without a prover, the verifier's best accuracy is 75 %.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

import torch
from pydantic import PositiveInt
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from ratchet import ExperimentSettings, HyperParameters
from ratchet.agents import AgentBody, AgentInput, Perception, Representation
from ratchet.agents.building import AgentBuilder, AgentPlan
from ratchet.agents.networks.layers import Initializer, Mlp
from ratchet.parameters import SubParameters, register_parameters
from ratchet.parameters.networks import NetworkAgentParameters
from ratchet.scenarios import (
    Environment,
    TensorDictDataset,
    build_scenario_instance,
    register_scenario,
)
from ratchet.scenarios.tensor_scenario import MessageScenario
from ratchet.seeding import torch_generator
from trainers.registry import build_trainer

NUM_CARDS = 10
NUM_SYMBOLS = 2


@register_parameters("cards", scenarios=("cards",))
class CardsParameters(SubParameters):
    """The section ``cards`` of an experiment file.

    - ``num_deals``: number of deals, training and test.
    """

    num_deals: PositiveInt = 2000


class CardsAgentParameters(NetworkAgentParameters):
    """Parameters of an agent apart from the common heads.

    - ``d_body``: width of the body.
    """

    d_body: PositiveInt = 32

    @property
    def message_selector_size(self) -> tuple[int, int]:
        """Size and number of layers of the message head."""
        return self.d_body, 1


class CardsEnvironment(Environment):
    """Environment in which messages are one of two symbols."""

    data_keys: ClassVar[tuple[str, ...]] = ("hand",)

    @property
    def num_symbols(self) -> int:
        """Two."""
        return NUM_SYMBOLS


class CardsPerception(Perception):
    """Agents' observations: one-hot cards."""

    def prepare(self, data: TensorDictBase) -> dict[str, Tensor]:
        """Return ``hand`` f32 [b, 2, 10]."""
        return {"hand": torch.nn.functional.one_hot(data["hand"], NUM_CARDS).float()}

    def num_symbols(self, data: dict[str, Tensor]) -> int:
        """Two."""
        return NUM_SYMBOLS

    def allowed_symbols(self, is_prover: bool, data: dict[str, Tensor], message: Tensor) -> Tensor:
        """Allow both."""
        return torch.ones(1, 1, 1, NUM_SYMBOLS, dtype=torch.bool, device=message.device)


class CardsBody(AgentBody):
    """Perceptron over the messages and the cards that the agent sees."""

    def __init__(
        self, plan: AgentPlan[CardsAgentParameters], init: Initializer, read: Collection[str]
    ) -> None:
        super().__init__()
        self.num_seen = 2 if plan.name in plan.handler.prover_names else 1
        d_in = self.num_seen * NUM_CARDS + plan.d_history * NUM_SYMBOLS
        d_body, d_out = plan.section.d_body, plan.hyper_params.d_representation
        self.mlp = Mlp([d_in, d_body, d_body], plan.section.activation_function, init)
        self.whole = init.linear(d_body, d_out)
        self.each = init.linear(d_body, NUM_SYMBOLS * d_out)

    def forward(self, inputs: AgentInput) -> Representation:
        """Represent b conversations: pooled [b, d], and each symbol [b, S, d]."""
        cards = inputs.data["hand"][:, : self.num_seen]
        hidden = self.mlp(torch.cat([cards.flatten(1), inputs.history.flatten(1)], dim=1))
        return Representation(
            pooled=self.whole(hidden), symbols=self.each(hidden).unflatten(1, (NUM_SYMBOLS, -1))
        )


class CardsAgentBuilder(AgentBuilder[CardsAgentParameters]):
    """Builder of agents with these bodies and the common heads."""

    section_class = CardsAgentParameters

    def build_perception(self, hyper_params: HyperParameters) -> CardsPerception:
        """Build the perception of cards."""
        return CardsPerception()

    def build_body(
        self, plan: AgentPlan[CardsAgentParameters], init: Initializer, read: Collection[str]
    ) -> CardsBody:
        """Make a body."""
        return CardsBody(plan, init, read)


@register_scenario("cards")
class Cards(MessageScenario):
    """Scenario: decide whether the second card is higher than the first."""

    environment_class = CardsEnvironment
    agent_builder = CardsAgentBuilder

    def build_datasets(self, hyper_params: HyperParameters) -> dict[str, TensorDictDataset]:
        """Build ``train`` and ``test``."""
        num_test = round(hyper_params.cards.num_deals * hyper_params.test_size)
        sizes = {"train": hyper_params.cards.num_deals - num_test, "test": num_test}
        return {side: _deal(size, hyper_params.seed, side) for side, size in sizes.items()}


def _deal(size: int, seed: int, side: str) -> TensorDictDataset:
    """Sample ``hand`` int64 [N, 2], distinct in a row, and ``y`` [N]: 1 if the second wins."""
    generator = torch_generator(seed, "cards", purpose=side)
    cards = torch.rand(size, NUM_CARDS, generator=generator).argsort(dim=1)[:, :2]
    fields = {"hand": cards, "y": (cards[:, 1] > cards[:, 0]).long()}
    return TensorDictDataset(TensorDict(fields, batch_size=[size]))


def train(num_iterations: int) -> list[float]:
    """Train prover and verifier by PPO; return the verifier's accuracy before and after."""
    hyper_params = HyperParameters(
        scenario="cards",
        trainer="vanilla_ppo",
        dataset="generated",
        interaction_protocol="adp",
        protocol_common={"shared_reward": True},
        rl={
            "num_iterations": num_iterations,
            "frames_per_batch": 1024,
            "minibatch_size": 256,
            "lr": 0.01,
        },
    )
    settings = ExperimentSettings()
    scenario_instance = build_scenario_instance(hyper_params, settings)
    trainer = build_trainer(hyper_params, scenario_instance, settings)
    trainer.initial_state()
    before = trainer.run_test().metrics["verifier.accuracy"]
    trainer.run_iterations(0, num_iterations)
    return [before, trainer.run_test().metrics["verifier.accuracy"]]


def main() -> None:
    """Print the verifier's accuracy before and after training."""
    torch.set_num_threads(1)
    for when, accuracy in zip(("before", "after"), train(num_iterations=20), strict=True):
        print(f"{when:>7}: accuracy {accuracy:.1%}")


if __name__ == "__main__":
    main()
