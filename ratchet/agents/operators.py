"""The combined agents as modules from TensorDict to TensorDict, for TorchRL's losses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase

from ratchet.agents.actor_critic import ActorCritic


class PolicyOperator(TensorDictModuleBase):  # type: ignore[misc] # untyped base
    """Acts for all agents, which are bound to an environment."""

    def __init__(
        self,
        combined_agents: ActorCritic,
        generators: Mapping[str, torch.Generator] | None = None,
        *,
        deterministic: bool = False,
    ) -> None:
        super().__init__()
        self.combined_agents = combined_agents
        self.generators = generators
        self.deterministic = deterministic
        self.in_keys = list(combined_agents.observation_keys)
        self.out_keys = [
            *combined_agents.action_keys,
            ("agents", "log_prob"),
            ("agents", "value"),
        ]

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Add actions, log-probabilities and values to frames [B]."""
        return self.combined_agents.act(
            tensordict, generators=self.generators, deterministic=self.deterministic
        )

    def get_dist(self, tensordict: TensorDictBase) -> Any:  # noqa: ANN401 -- of the agents' kind
        """Return the distribution over actions in frames [B], with gradients."""
        return self.combined_agents.get_dist(tensordict)


class ValueOperator(TensorDictModuleBase):  # type: ignore[misc] # untyped base
    """Estimates the returns of all agents that act; they are bound to an environment."""

    def __init__(self, combined_agents: ActorCritic) -> None:
        super().__init__()
        self.combined_agents = combined_agents
        self.in_keys = list(combined_agents.observation_keys)
        self.out_keys = [("agents", "value")]

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Add ``("agents", "value")`` f32 [B, A] to frames [B], with gradients."""
        tensordict.set(("agents", "value"), self.combined_agents.values(tensordict))
        return tensordict
