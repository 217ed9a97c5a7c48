"""Custom protocol, played with random decisions.

Run it:    python examples/custom_protocol.py
Train it:  interaction_protocol: examples/custom_protocol.py:CrossExamination (experiment file)
"""

from __future__ import annotations

import torch

from ratchet import HyperParameters
from ratchet.protocols import (
    DeterministicSingleVerifierProtocolHandler,
    build_protocol_handler,
    register_protocol_handler,
)


@register_protocol_handler("cross_examination")
class CrossExamination(DeterministicSingleVerifierProtocolHandler):
    """Protocol in which both provers speak twice in public; then the verifier asks or decides."""

    agent_names = ("prover0", "prover1", "verifier")  # prover0 wants "reject", prover1 "accept"
    max_message_rounds = 6

    def is_agent_active(self, agent_name: str, round: int, channel_name: str) -> bool:
        """Return whether it is the agent's turn: both provers twice, then the verifier."""
        return (agent_name == "verifier") == (round % 3 == 2)


def play_at_random(num_games: int, seed: int = 0) -> dict[str, float]:
    """Play a batch of games with random decisions; return each agent's mean reward."""
    hyper_params = HyperParameters(
        scenario="graph_isomorphism",
        trainer="vanilla_ppo",
        dataset="generated",
        interaction_protocol="cross_examination",
    )
    handler = build_protocol_handler(hyper_params)
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(2, (num_games,), generator=generator)
    done = terminated = torch.zeros(num_games, dtype=torch.bool)
    agent_done = torch.zeros(num_games, handler.num_agents, dtype=torch.bool)
    total = torch.zeros(num_games, handler.num_agents)
    for round in range(handler.max_message_rounds):
        decision = torch.randint(3, (num_games, handler.num_agents), generator=generator)
        done, agent_done, terminated, reward = handler.step_interaction_protocol(
            {
                "round": torch.full_like(y, round),
                "seed": torch.arange(num_games),
                "y": y,
                "done": done,
                "terminated": terminated,
                ("agents", "done"): agent_done,
                ("agents", "decision"): decision,
            }
        )
        total += reward
    return dict(zip(handler.agent_names, total.mean(0).tolist(), strict=True))


def main() -> None:
    """Print the mean rewards of random play."""
    for name, reward in play_at_random(num_games=10_000).items():
        print(f"{name:>10}: {reward:+.3f}")


if __name__ == "__main__":
    main()
