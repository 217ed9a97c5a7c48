"""Custom network for an agent in a built-in scenario.

Run it:    python examples/custom_network.py
Train it:  agents.verifier.network: examples/custom_network.py:RecurrentBody (in an experiment file)

Only the body is new: the heads for messages, decisions and values stay, as do the other agents.
The network's code is part of the key of every stage that uses it.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from ratchet import ExperimentSettings, HyperParameters
from ratchet.agents import AgentBody, AgentInput, Representation
from ratchet.agents.building import AgentPlan
from ratchet.agents.networks.layers import Initializer
from ratchet.parameters.networks import NetworkAgentParameters
from ratchet.scenarios import build_scenario_instance
from trainers.registry import build_trainer

NUM_SYMBOLS, NUM_SIGHTS = 2, 3  # of the binary erasure channel: messages, observations
D_HIDDEN = 32


class RecurrentBody(AgentBody):
    """Recurrent body over the rounds of the conversation and the agent's observation.

    Parameters
    ----------
    plan
        The agent's parameters, protocol and sizes.
    init
        Creates layers with seeded weights.
    read
        Inputs of the heads: ``"pooled"``, ``"symbols"`` or both.
    """

    def __init__(
        self, plan: AgentPlan[NetworkAgentParameters], init: Initializer, read: Collection[str]
    ) -> None:
        super().__init__()
        self.sees = "bit" if plan.name in plan.handler.prover_names else "observation"
        d_round = plan.d_history // plan.max_rounds * NUM_SYMBOLS
        d_out = plan.hyper_params.d_representation
        self.begin = init.linear(NUM_SIGHTS, D_HIDDEN)
        self.hear = init.linear(d_round, D_HIDDEN)
        self.remember = init.linear(D_HIDDEN, D_HIDDEN)
        self.whole = init.linear(D_HIDDEN, d_out) if "pooled" in read else None
        self.each = init.linear(D_HIDDEN, NUM_SYMBOLS * d_out) if "symbols" in read else None

    def forward(self, inputs: AgentInput) -> Representation:
        """Represent b conversations: pooled [b, d], and each symbol [b, S, d]."""
        memory: Tensor = torch.tanh(self.begin(inputs.data[self.sees]))
        for heard in inputs.history.flatten(2).unbind(1):
            memory = torch.tanh(self.hear(heard) + self.remember(memory))
        pooled = None if self.whole is None else self.whole(memory)
        each = None if self.each is None else self.each(memory).unflatten(1, (NUM_SYMBOLS, -1))
        return Representation(pooled=pooled, symbols=each)


def train(num_iterations: int) -> list[float]:
    """Train prover and verifier by PPO; return the verifier's accuracy before and after."""
    hyper_params = HyperParameters(
        scenario="binary_erasure_channel",
        trainer="vanilla_ppo",
        dataset="generated",
        interaction_protocol="adp",
        protocol_common={"shared_reward": True},
        agents={"verifier": {"network": f"{__file__}:RecurrentBody"}},
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
