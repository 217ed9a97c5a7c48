"""Body of an agent that sees two graphs: GIN, pooling, a transformer.

Symmetries: relabelling a graph's nodes only permutes the node representations; with pair-invariant
pooling, swapping the graphs only swaps them. Absent nodes have no influence. Agents with
``tie_exchanges`` read the marks of an exchange's rounds (a verifier's question and the answers) as
one column. Shape letters: b rows, n nodes of the larger graph, F input features, d features.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn import functional as F

from ratchet.agents.networks.layers import Initializer, batch_norm
from ratchet.agents.parts import AgentBody, AgentInput, Perception, Prepared, Representation
from ratchet.scenarios.graph_isomorphism.graph_networks import (
    GinStack,
    NeighbourSums,
    TransformerShape,
    TransformerStack,
    attention_mask,
)

if TYPE_CHECKING:
    from ratchet.protocols.handler import ProtocolHandler
    from ratchet.scenarios.graph_isomorphism.parameters import GraphIsomorphismAgentParameters

NUM_GRAPHS = 2


def exchange_lengths(handler: ProtocolHandler) -> tuple[int, ...]:
    """Return the number of rounds of each exchange, in the order of play; their sum is R.

    An exchange starts in each round in which a verifier may act, and ends before its next turn, so
    that it contains a question and the answers to it:

    - ``nip``: rounds (0, 1), (2, 3) …; if the prover starts 0, (1, 2), (3, 4) …: its first message
      is a separate exchange.
    - ``debate`` and ``mnip``: the same if provers answer simultaneously; if in turn (0, 1, 2), (3,
      4, 5) …, and if they start (0, 1), (2, 3, 4) …. Channels remain separate: each contains the
      question and that prover's answer.
    - ``adp`` and ``merlin_arthur``: 0, 1. There are no questions, and no rounds are tied.

    A last exchange may lack its answer. The zero-knowledge version uses its base protocol.
    """
    verifiers = [handler.agent_index(name) for name in handler.verifier_names]
    begins = handler.can_be_active_mask[:, verifiers].any(-1).any(-1)  # [R]
    starts = sorted({0, *begins.nonzero().flatten().tolist()})
    ends = [*starts[1:], len(begins)]
    return tuple(end - start for start, end in zip(starts, ends, strict=True))


def tie_rounds(history: Tensor, lengths: Sequence[int]) -> Tensor:
    """Reduce the rounds of each exchange to one column: f32 [b, R, …] → [b, exchanges, …].

    A symbol is marked if any round has named it. The maximum is independent of the order, so a
    question and the answer to it result in equal marks.
    """
    return torch.stack([part.amax(1) for part in torch.split(history, list(lengths), 1)], 1)


class GraphPerception(Perception):
    """Adjacency with self-loops, attention mask, and mask of nodes that may be named."""

    def prepare(self, data: TensorDictBase) -> Prepared:
        """Prepare graph pairs.

        Given ``adjacency`` [b, 2, n, n] of zeros and ones and ``node_mask`` bool [b, 2, n], return
        ``adjacency`` f32 [b, 2, n, n] with self-loops of the nodes that exist (the sum over a node
        and its neighbours is one matrix product), ``node_mask``, ``node_weight`` the same in f32,
        ``attention_mask`` f32 [b, T, T].
        """
        mask = data.get("node_mask")
        weight = mask.to(torch.float32)
        return {
            "adjacency": data.get("adjacency") + torch.diag_embed(weight),
            "node_mask": mask,
            "node_weight": weight,
            "attention_mask": attention_mask(mask),
        }

    def num_symbols(self, data: Prepared) -> int:
        """Return 2n: a symbol for each node of both graphs."""
        return data["node_mask"][0].numel()

    def allowed_symbols(self, is_prover: bool, data: Prepared, message: Tensor) -> Tensor:
        """Allow existing nodes; a prover answers in the graph that the latest message doesn't name.

        The rule applies to each channel and position separately. If the latest message names no
        node there, or nodes of both graphs (several simultaneous agents), both graphs are allowed.
        """
        present: Tensor = data["node_mask"].flatten(1)[:, None, None]
        if not is_prover:
            return present
        n = message.shape[-1] // NUM_GRAPHS
        named = message.reshape(*message.shape[:-1], NUM_GRAPHS, n).bool().any(-1)  # [b, K, P, 2]
        closed = named & ~named.flip(-1)
        per_node = closed.repeat_interleave(n, dim=-1)
        return present & ~per_node


class GraphIsomorphismBody(AgentBody):
    """GIN over the messages on both graphs, pooling to two tokens, a transformer.

    ``num_features`` is F: rounds × visible channels × positions. ``d_linear_history`` are the
    features of the linear messages (rounds × channels × space), None without; they make one more
    token. ``exchanges`` are the lengths of exchanges whose rounds share a column
    (:mod:`ratchet.scenarios.graph_isomorphism.body`), None where each round has its own.
    ``first_features`` are the only features of a node without messages, so they must not be zero.
    """

    def __init__(
        self,
        parameters: GraphIsomorphismAgentParameters,
        num_features: int,
        d_representation: int,
        init: Initializer,
        d_linear_history: int | None = None,
        read: Collection[str] = ("pooled", "symbols"),
        exchanges: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        self.exchanges = exchanges
        if exchanges is not None:
            num_features = num_features // sum(exchanges) * len(exchanges)
        d_gnn, d_model = parameters.d_gnn, parameters.d_transformer
        self.copies = 2 if parameters.use_dual_gnn else 1
        self.digits = parameters.gnn_output_digits
        self.noise_sigma = parameters.noise_sigma
        self.pair_invariant = parameters.use_pair_invariant_pooling
        self.encoder = init.linear(num_features, d_gnn, bias=False)
        self.first_features = init.vector(d_gnn)
        self.gnn = GinStack(
            parameters.num_gnn_layers,
            d_gnn,
            parameters.d_gin_mlp,
            activation_name=parameters.activation_function,
            init=init,
        )
        d_nodes = d_gnn * self.copies
        self.pooled_norm = (
            nn.BatchNorm1d(d_nodes, track_running_stats=False, device=init.device)
            if parameters.use_batch_norm
            else None
        )
        self.node_in = init.linear(d_nodes, d_model, bias=False)
        self.pooled_in = init.linear(d_nodes, d_model, bias=False)
        # Flags mark the kind of a token; the linear layers next to them need no bias.
        self.pooled_flags = init.vector(NUM_GRAPHS, d_model)
        self.node_flag = init.vector(d_model)
        self.linear_in = (
            None if d_linear_history is None else init.linear(d_linear_history, d_model)
        )
        self.transformer = _build_transformer(parameters, init)
        self.out_norm = nn.LayerNorm(d_model, device=init.device)
        num_pooled = NUM_GRAPHS + (self.linear_in is not None)
        self.pooled_out = self.node_out = None
        if "pooled" in read:
            self.pooled_out = init.linear(num_pooled * d_model, d_representation)
        if "symbols" in read:
            self.node_out = init.linear(d_model, d_representation)

    def lr_parts(self, name: str) -> dict[str, list[Parameter]]:
        """Divide the parameters into the GNN's and the rest."""
        gnn = [*self.encoder.parameters(), self.first_features, *self.gnn.parameters()]
        known = {id(parameter) for parameter in gnn}
        return {"gnn": gnn, name: [p for p in self.parameters() if id(p) not in known]}

    def forward(self, inputs: AgentInput) -> Representation:
        """Represent b conversations over b graph pairs."""
        nodes = self._run_gnn(inputs)  # [2b, n, D]
        weight = inputs.data["node_weight"]
        pooled = self._pool(nodes, weight, inputs)  # [b, 2, D]
        b, _, n = weight.shape
        tokens = [
            F.linear(pooled, self.pooled_in.weight) + self.pooled_flags,
            F.linear(nodes.view(b, NUM_GRAPHS * n, -1), self.node_in.weight, self.node_flag),
        ]
        mask = inputs.data["attention_mask"]
        num_pooled = NUM_GRAPHS
        if self.linear_in is not None and inputs.linear_history is not None:
            heard = self.linear_in(inputs.linear_history.flatten(1))
            tokens.insert(0, heard.unsqueeze(1))
            # All tokens attend to the prepended token, and it attends like pooled tokens.
            mask = F.pad(mask, (1, 0, 1, 0), value=1.0)
            mask[:, 1:, 0] = mask[:, 1:, 1]
            num_pooled += 1
        x = self.transformer(torch.cat(tokens, dim=1), mask)
        norm = self.out_norm
        x = F.layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)
        pooled_tokens, node_tokens = torch.split(x, [num_pooled, NUM_GRAPHS * n], dim=1)
        return Representation(
            pooled=None if self.pooled_out is None else self.pooled_out(pooled_tokens.flatten(1)),
            symbols=None if self.node_out is None else self.node_out(node_tokens),
            symbol_weight=weight.flatten(1),
        )

    def invariant(self, data: Prepared) -> Tensor | None:
        """Run the GNN on zero features: f32 [b, 2, n, d], or None without a dual GNN."""
        if self.copies == 1:
            return None
        adjacency = data["adjacency"]
        bare = NeighbourSums.of(None, adjacency, bare_copy=True, share=False)
        features = bare.sums * self.first_features
        run: Tensor = self.gnn(features, bare.index, adjacency)
        return run.view(*data["node_weight"].shape, -1)

    def precompute(self, inputs: AgentInput) -> NeighbourSums:
        """Return the sums of each node in the first layer of the GNN."""
        return self._neighbour_sums(inputs, share=True)

    def _neighbour_sums(self, inputs: AgentInput, *, share: bool) -> NeighbourSums:
        history, adjacency = inputs.history, inputs.data["adjacency"]
        b, _, n, _ = adjacency.shape
        if self.exchanges is not None:
            history = tie_rounds(history, self.exchanges)
        messages = history.reshape(b, -1, NUM_GRAPHS, n).permute(0, 2, 3, 1)
        has_bare_copy = self.copies == 2 and inputs.invariant is None
        return NeighbourSums.of(messages, adjacency, bare_copy=has_bare_copy, share=share)

    def _run_gnn(self, inputs: AgentInput) -> Tensor:
        """Return node features [2b, n, copies · d]; the dual's come last."""
        neighbour_sums = inputs.precomputed
        if not isinstance(neighbour_sums, NeighbourSums):
            neighbour_sums = self._neighbour_sums(inputs, share=False)
        encoder = torch.cat([self.encoder.weight, self.first_features.unsqueeze(1)], dim=1)
        nodes: Tensor = self.gnn(
            F.linear(neighbour_sums.sums, encoder), neighbour_sums.index, inputs.data["adjacency"]
        )
        if inputs.invariant is not None:
            nodes = torch.cat([nodes, inputs.invariant.flatten(0, 1)], dim=-1)
        if self.digits is not None:
            rounded = torch.round(nodes.detach(), decimals=self.digits)
            nodes = nodes + (rounded - nodes.detach())  # gradients pass straight through
        return nodes

    def _pool(self, nodes: Tensor, weight: Tensor, inputs: AgentInput) -> Tensor:
        """Sum over the nodes that exist, and make the pair's two tokens [b, 2, D]."""
        b, _, n = weight.shape
        pooled = (nodes * weight.view(b * NUM_GRAPHS, n, 1)).sum(1)
        if self.pooled_norm is not None:
            acts = inputs.acts
            acts = None if acts is None else acts.unsqueeze(1).expand(-1, NUM_GRAPHS).flatten()
            pooled = batch_norm(self.pooled_norm, pooled, acts)
        pooled = pooled.view(b, NUM_GRAPHS, -1)
        if self.noise_sigma and self.training:
            # The same for both graphs, so that equal graphs stay equal.
            noise = torch.empty_like(pooled[:, :1]).normal_(
                0, self.noise_sigma, generator=inputs.generator
            )
            pooled = pooled + noise
        if not self.pair_invariant:
            return pooled
        first, second = pooled.unbind(1)
        return torch.stack([(first + second) * 0.5, (first - second).abs() * 0.5], dim=1)


def _build_transformer(
    parameters: GraphIsomorphismAgentParameters, init: Initializer
) -> TransformerStack:
    return TransformerStack(
        TransformerShape(
            parameters.d_transformer,
            parameters.d_transformer_mlp,
            parameters.num_heads,
            parameters.num_transformer_layers,
        ),
        activation_name=parameters.activation_function,
        dropout=parameters.transformer_dropout,
        init=init,
    )
