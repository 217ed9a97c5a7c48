"""The environment of the binary-erasure-channel game: provers' lies may not arrive."""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar

import torch
from tensordict import TensorDictBase
from torch import Tensor

from ratchet.scenarios.environment import Environment

NUM_SYMBOLS = 2


class ErasureEnvironment(Environment):
    """Agents send symbols 0 and 1 about a bit.

    A prover's symbol 0 always arrives, as does a 1 about a bit that is 1. A 1 about a bit that is
    0 is erased in the episodes that the dataset says (``lie_erased``), in all rounds alike: then
    nothing is in the history, although something was said. Other agents' symbols arrive, and so do
    linear messages.
    """

    data_keys: ClassVar[tuple[str, ...]] = ("bit", "observation")

    @property
    def num_symbols(self) -> int:
        """2."""
        return NUM_SYMBOLS

    def _transmit(self, said: Tensor, td: TensorDictBase) -> Tensor:
        """Erase lies: bool [E, A, C, P, S] to the same."""
        erases = self._erases_lies[td["datapoint_id"]]
        erased = erases.unsqueeze(-1) & self._is_prover  # [E, A]
        arrived = said.clone()
        arrived[..., 1] &= ~erased[..., None, None]
        return arrived

    @cached_property
    def _erases_lies(self) -> Tensor:
        """Bool [N]: whether the channel erases a 1."""
        return self.dataset["lie_erased"] & (self.dataset["bit"] == 0)

    @cached_property
    def _is_prover(self) -> Tensor:
        """Bool [A]."""
        handler = self.protocol_handler
        provers = set(handler.prover_names)
        return torch.tensor([name in provers for name in handler.agent_names], device=self.device)
