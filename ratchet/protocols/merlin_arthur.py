"""Merlin and Arthur: one of two opposed provers, sampled by the seed, precedes the verifier."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from ratchet.protocols.base import SingleVerifierProtocolHandler
from ratchet.protocols.handler import Integers, rounds_and_seeds, with_silent_end
from ratchet.protocols.registry import register_protocol_handler
from ratchet.protocols.text_specs import TextAgentSpec


@register_protocol_handler("merlin_arthur")
class MerlinArthurProtocolHandler(SingleVerifierProtocolHandler):
    """Merlin and Arthur: one of two opposed provers sends a message, and the verifier decides.

    In round 0 ``prover0`` acts for an even seed, ``prover1`` for an odd one.
    """

    agent_names = ("prover0", "prover1", "verifier")
    max_message_rounds = 2

    def can_agent_be_active(self, agent_name: str, round: int, channel_name: str) -> bool:
        """Return whether the agent acts for an even or for an odd seed."""
        return (agent_name == "verifier") == (round == 1)

    def get_active_agents_mask_from_rounds_and_seed(
        self, round: Integers, seed: Integers
    ) -> Tensor:
        """Return which agents act in which channels, bool[*B, A, C]."""
        rounds, seeds = rounds_and_seeds(round, seed)
        table = self.on_device("_order_of_play", rounds.device)
        return table[seeds % 2, rounds.clamp(max=self.max_message_rounds)]

    def text_agent_spec(self, agent_name: str) -> TextAgentSpec:
        """Return the provers names the verifier never sees: it can't know which of them spoke."""
        if agent_name == "verifier":
            return TextAgentSpec("Verifier")
        human_name = {"prover0": "Expert_1", "prover1": "Expert_2"}[agent_name]
        return TextAgentSpec(human_name, {"main": "Argument:"}, anonymous=True)

    @cached_property
    def _order_of_play(self) -> Tensor:
        """bool[2, R + 1, A, C], first by the parity of the seed."""
        silent = torch.tensor([self.agent_index("prover1"), self.agent_index("prover0")])
        tables = with_silent_end(self.can_be_active_mask).repeat(2, 1, 1, 1)
        tables[torch.arange(2), :, silent] = False
        return tables
