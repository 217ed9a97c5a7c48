"""No protocol: an environment of its own says who acts, what ends an episode, and who is paid.

What scenarios of environments share; each has a handler of its own in its module ``protocol``.
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
    """All agents act in every step; there is one round, as far as there are rounds.

    A subclass says which agents there are.
    """

    max_message_rounds = 1

    @classmethod
    def build(cls, hyper_params: HyperParameters, base_dir: Path | None) -> Self:
        """Make the handler of the scenario's environments; they may be in a user's file.

        Raises
        ------
        ParameterError
            If the scenario has none.
        """
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
        """Nobody, whatever agents are called."""
        return ()

    @property
    def verifier_names(self) -> Sequence[str]:
        """Nobody: there is nothing to decide."""
        return ()

    def can_agent_be_active(self, agent_name: str, round: int, channel_name: str) -> bool:
        """Return true: everybody acts."""
        return True

    def get_active_agents_mask_from_rounds_and_seed(
        self, round: Integers, seed: Integers
    ) -> Tensor:
        """Return true everywhere, bool[*B, A, 1]: everybody acts."""
        rounds, _ = rounds_and_seeds(round, seed)
        shape = (*rounds.shape, self.num_agents, self.num_channels)
        return torch.ones(shape, dtype=torch.bool, device=rounds.device)

    def get_verifier_guess_mask_from_rounds_and_seed(
        self, round: Integers, seed: Integers
    ) -> Tensor:
        """Return false everywhere, bool[*B]: nobody decides."""
        rounds, _ = rounds_and_seeds(round, seed)
        return torch.zeros_like(rounds, dtype=torch.bool)

    def step_interaction_protocol(self, env_td: KeyPathMapping) -> ProtocolStep:
        """Refuse: the environment judges."""
        raise ProtocolSpecificationError(
            "protocol 'environment': the environment itself judges what agents do; call its step."
        )
