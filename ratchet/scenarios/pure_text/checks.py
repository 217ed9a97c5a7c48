"""Whether a protocol can be played in text, and the errors when it turns out that it can't."""

from __future__ import annotations

import torch

from ratchet.errors import ParameterError, ProtocolSpecificationError
from ratchet.protocols.base import SingleVerifierProtocolHandler
from ratchet.protocols.handler import ProtocolHandler


def check_common(handler: ProtocolHandler) -> None:
    """Check ``protocol_common``, however the handler was made.

    Raises
    ------
    ParameterError
        With zero knowledge, or stances that are drawn for anything but a single prover.
    """
    common = handler.common
    if common.zero_knowledge:
        raise ParameterError(
            "protocol_common.zero_knowledge: got True with a text scenario; expected a tensor"
            " scenario, since it compares logits. Set it to false."
        )
    if not common.randomize_prover_stance:
        return
    if len(handler.prover_names) != 1 or not isinstance(handler, SingleVerifierProtocolHandler):
        raise ParameterError(
            f"protocol_common.randomize_prover_stance: got True with {type(handler).__name__},"
            f" whose provers are {list(handler.prover_names)}; expected a protocol with a single"
            " prover and a single verifier. Set it to false, or change the protocol."
        )


def check_speakers(handler: ProtocolHandler, num_seeds: int) -> None:
    """Check for the first seeds that a channel never has two speakers at once.

    Raises
    ------
    ProtocolSpecificationError
        With the first such round and channel.
    """
    rounds = torch.arange(handler.max_message_rounds).unsqueeze(-1)
    seeds = torch.arange(num_seeds)
    active = handler.get_active_agents_mask_from_rounds_and_seed(rounds, seeds)
    crowded = (active.sum(-2) > 1).nonzero().tolist()
    if crowded:
        round, seed, channel = crowded[0]
        raise crowded_channel(handler, round, channel, active[round, seed, :, channel].tolist())


def crowded_channel(
    handler: ProtocolHandler, round: int, channel: int, speaks: list[bool]
) -> ProtocolSpecificationError:
    """Make the error for agents that write in one channel in one round."""
    speakers = [name for name, acts in zip(handler.agent_names, speaks, strict=True) if acts]
    return ProtocolSpecificationError(
        f"{type(handler).__name__}: in round {round} channel"
        f" {handler.message_channel_names[channel]!r} has the speakers {speakers}; in a text"
        " scenario expected at most one. Give each a channel of its own, or a round."
    )


def endless(handler: ProtocolHandler) -> ProtocolSpecificationError:
    """Make the error for an episode that does not end with its last round."""
    last = handler.max_message_rounds - 1
    return ProtocolSpecificationError(
        f"{type(handler).__name__}: an episode goes on after round {last}, its last; expected"
        " step_interaction_protocol to say that it is done or terminated."
    )
