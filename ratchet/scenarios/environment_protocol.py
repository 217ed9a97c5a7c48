"""Protocol ``environment``: the environment defines turns, ends of episodes and rewards.

Shared by scenarios with environments; each has a handler in its module ``protocol``.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from ratchet.errors import ParameterError, ProtocolSpecificationError
from ratchet.protocols.handler import (
    Integers,
    KeyPathMapping,
    ProtocolHandler,
    ProtocolStep,
    rounds_and_seeds,
)
from ratchet.protocols.registry import register_protocol_handler

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters

_SCENARIOS = ("gymnasium", "language_task")


@register_protocol_handler("environment")
class EnvironmentProtocolHandler(ProtocolHandler):
    """All agents act in every step; there is formally one round.

    A subclass defines the agents.
    """

    max_message_rounds = 1

    @classmethod
    def build(cls, hyper_params: HyperParameters, base_dir: Path | None) -> Self:
        """Create the handler of the scenario's environments; they may be in a user's file."""
        scenario = hyper_params.scenario
        if scenario not in _SCENARIOS:
            raise ParameterError(
                f"interaction_protocol: got 'environment' with scenario {scenario!r}, expected"
                f" scenario {' or '.join(map(repr, _SCENARIOS))}. Take a protocol that agents speak"
                " by, e.g. nip."
            )
        # By name, since scenarios don't know each other.
        module = import_module(f"ratchet.scenarios.{scenario}.protocol")
        handler: Self = module.build(hyper_params, base_dir)
        return handler

    @property
    def prover_names(self) -> Sequence[str]:
        """Empty, regardless of agents' names."""
        return ()

    @property
    def verifier_names(self) -> Sequence[str]:
        """Empty: there are no decisions."""
        return ()

    def can_agent_be_active(self, agent_name: str, round: int, channel_name: str) -> bool:
        """Return true: all agents act."""
        return True

    def get_active_agents_mask_from_rounds_and_seed(
        self, round: Integers, seed: Integers
    ) -> Tensor:
        """Return true everywhere, bool[*B, A, 1]: all agents act."""
        rounds, _ = rounds_and_seeds(round, seed)
        shape = (*rounds.shape, self.num_agents, self.num_channels)
        return torch.ones(shape, dtype=torch.bool, device=rounds.device)

    def get_verifier_guess_mask_from_rounds_and_seed(
        self, round: Integers, seed: Integers
    ) -> Tensor:
        """Return false everywhere, bool[*B]: no agent decides."""
        rounds, _ = rounds_and_seeds(round, seed)
        return torch.zeros_like(rounds, dtype=torch.bool)

    def step_interaction_protocol(self, env_td: KeyPathMapping) -> ProtocolStep:
        """Refuse: the environment judges."""
        raise ProtocolSpecificationError(
            "protocol 'environment': the environment determines outcomes; call its step."
        )
