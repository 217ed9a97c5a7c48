"""No protocol: an environment of its own says who acts, what ends an episode, and who is paid.

What scenario ``gymnasium`` plays; it knows the agents' names from the environment.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
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
from ratchet.scenarios.gymnasium.catalogue import Game, LibraryGame, find_game
from ratchet.scenarios.gymnasium.wrappers import classes_of_files

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.scenarios.gymnasium.spaces import AgentSpaces

_SCENARIO = "gymnasium"


@register_protocol_handler("environment")
class EnvironmentProtocolHandler(ProtocolHandler):
    """All agents act in every step; there is one round, as far as there are rounds.

    ``dataset`` is the environment's id; the path of a user's own starts from ``base_dir``.

    Raises
    ------
    ParameterError
        If the scenario has no environments of that kind.
    """

    max_message_rounds = 1

    def __init__(self, hyper_params: HyperParameters, base_dir: Path | None = None) -> None:
        super().__init__(hyper_params)
        if hyper_params.scenario != _SCENARIO:
            raise ParameterError(
                f"interaction_protocol: got 'environment' with scenario {hyper_params.scenario!r},"
                f" expected scenario {_SCENARIO!r}. Take a protocol that agents speak by, e.g. nip."
            )
        self.base_dir = base_dir
        self.game: Game = find_game(hyper_params, base_dir)
        around = (*hyper_params.gymnasium.wrappers, *hyper_params.torchrl.transforms)
        self._around = classes_of_files(around, base_dir)

    @classmethod
    def build(cls, hyper_params: HyperParameters, base_dir: Path | None) -> Self:
        """Make the handler; the environment may be in a user's file."""
        return cls(hyper_params, base_dir)

    @cached_property
    def spaces(self) -> AgentSpaces:
        """What agents observe and do."""
        return self.game.spaces()

    def check_simulated(self) -> None:
        """Refuse an environment of TorchRL's that only its trainers play: ParameterError."""
        if isinstance(self.game, LibraryGame):
            self.game.check()

    @property
    def agent_names(self) -> Sequence[str]:
        """The environment's agents."""
        return self.spaces.names

    @property
    def prover_names(self) -> Sequence[str]:
        """Nobody, whatever agents are called."""
        return ()

    @property
    def verifier_names(self) -> Sequence[str]:
        """Nobody: there is nothing to decide."""
        return ()

    @property
    def source_classes(self) -> tuple[type, ...]:
        """The class itself, the environment's if it is on tensors, and the user's own."""
        source = self.game.source
        sources = () if source is None else (source,)
        return (type(self), *sources, *self._around)

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
