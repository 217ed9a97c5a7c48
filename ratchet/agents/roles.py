"""What the protocol says about one agent: what it sees, where it writes, whether it decides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ratchet.agents.actions.distributions import FactorLayout

if TYPE_CHECKING:
    from ratchet.protocols.base import ProtocolHandler

_SEEDS_TRIED = 64


def ever_decides(handler: ProtocolHandler, name: str) -> bool:
    """Return whether the agent may decide in some round: verifiers, and a simulator of one.

    Who decides may depend on the episode's seed; the first 64 are tried.
    """
    if name in handler.verifier_names:
        return True
    rounds = torch.arange(handler.max_message_rounds).unsqueeze(1)
    seeds = torch.arange(_SEEDS_TRIED).expand(len(rounds), -1)
    rounds = rounds.expand_as(seeds)
    mask = handler.get_can_decide_mask_from_rounds_and_seed(rounds, seeds)
    return bool(mask[..., handler.agent_index(name)].any())


class Channels:
    """Some channels of a protocol, in order; their indices are copied to each device once."""

    def __init__(self, index: Tensor) -> None:
        self._copies = {index.device: index}
        self._index = index

    def __len__(self) -> int:
        return len(self._index)

    def take_from(self, tensor: Tensor, dim: int) -> Tensor:
        """Take these channels of a dimension of a tensor."""
        device = tensor.device
        if device not in self._copies:
            self._copies[device] = self._index.to(device)
        return tensor.index_select(dim, self._copies[device])


@dataclass(frozen=True)
class Role:
    """One agent's place in the protocol: its index in the agent dimension, and its actions' layout.

    Channels it sees [V] and may ever write to [K] are None where all are.
    """

    index: int
    layout: FactorLayout
    sees: Channels | None
    writes: Channels | None


def read_role(
    handler: ProtocolHandler, name: str, *, message_size: int, d_linear: int | None
) -> Role:
    """Read an agent's role off the protocol."""
    index = list(handler.agent_names).index(name)
    sees = handler.channel_visibility_mask[index].nonzero().flatten()
    writes = handler.can_be_active_mask[:, index].any(0).nonzero().flatten()
    num_channels = len(handler.message_channel_names)
    layout = FactorLayout(
        channels=tuple(writes.tolist()),
        message_size=message_size,
        decides=ever_decides(handler, name),
        linear=d_linear is not None,
    )
    return Role(
        index,
        layout,
        None if len(sees) == num_channels else Channels(sees),
        None if len(writes) == num_channels else Channels(writes),
    )
