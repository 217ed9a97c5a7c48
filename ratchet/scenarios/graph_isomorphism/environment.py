"""The environment of the graph-isomorphism scenario: messages are nodes of either graph."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, ClassVar

from ratchet.scenarios.environment import Environment

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from ratchet.rollouts.transcript_content import Transcript


class GraphIsomorphismEnvironment(Environment):
    """Agents talk about two graphs by naming nodes.

    Symbols 0 … n-1 are the nodes of the first graph, n … 2n-1 those of the second, with n the
    largest size. Which nodes are absent is in ``node_mask``, and heads mask them.
    """

    data_keys: ClassVar[tuple[str, ...]] = ("adjacency", "node_mask")

    @property
    def num_symbols(self) -> int:
        """2n."""
        return 2 * int(self.dataset["adjacency"].shape[-1])

    def transcripts(self, rollouts: TensorDictBase) -> list[Transcript]:
        """Write down whole episodes of rollouts ``[E, T]``, with pictures of their graphs."""
        module = import_module("ratchet.scenarios.graph_isomorphism.transcripts")
        written: list[Transcript] = module.graph_transcripts(
            rollouts, self.dataset, self.protocol_handler
        )
        return written
