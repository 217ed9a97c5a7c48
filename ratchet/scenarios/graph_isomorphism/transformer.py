"""A small transformer over tokens of a pair of graphs.

Layers normalise first (Xiong et al. 2020). Tokens: two pooled ones, then the nodes of both graphs.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ratchet.agents.layers import Initializer, activation
from ratchet.scenarios.graph_isomorphism.attention import masked_attention


class TransformerLayer(nn.Module):
    """Self-attention and a two-layer MLP, each over normalised input and added to it.

    Parameters
    ----------
    d_model, d_mlp, num_heads
        Sizes; ``d_model`` is a multiple of ``num_heads``.
    activation_name
        Of the MLP.
    dropout
        Probability, in training mode; drawn from torch's global generator.
    init
        Where weights come from.
    """

    def __init__(
        self,
        d_model: int,
        d_mlp: int,
        num_heads: int,
        *,
        activation_name: str,
        dropout: float,
        init: Initializer,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.d_model = d_model
        self.dropout = dropout
        self.attention_norm = nn.LayerNorm(d_model, device=init.device)
        self.query_key_value = init.linear(d_model, 3 * d_model)
        self.attention_out = init.linear(d_model, d_model)
        self.mlp_norm = nn.LayerNorm(d_model, device=init.device)
        self.mlp_in = init.linear(d_model, d_mlp)
        self.mlp_out = init.linear(d_mlp, d_model)
        self._activation = activation(activation_name)

    def forward(self, tokens: Tensor, bias: Tensor) -> Tensor:
        """Transform tokens.

        Parameters
        ----------
        tokens
            f32 [b, T, d].
        bias
            Added to the attention scores, f32 [b, T, T]: 0 or minus infinity.
        """
        normed = _layer_norm(self.attention_norm, tokens)
        packed = F.linear(normed, self.query_key_value.weight, self.query_key_value.bias)
        mixed = masked_attention(packed, bias, self.num_heads)
        out = F.linear(mixed, self.attention_out.weight, self.attention_out.bias)
        tokens = tokens + self._drop(out)
        normed = _layer_norm(self.mlp_norm, tokens)
        hidden = self._activation(F.linear(normed, self.mlp_in.weight, self.mlp_in.bias))
        return tokens + self._drop(F.linear(hidden, self.mlp_out.weight, self.mlp_out.bias))

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training) if self.dropout else x


def _layer_norm(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    return F.layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)


def attention_bias(node_mask: Tensor) -> Tensor:
    """Say who attends to whom.

    Pooled tokens attend to everything that exists. A node attends to the pooled tokens and the
    other graph's nodes, not to itself nor its own graph: the GNN has seen to those.

    Parameters
    ----------
    node_mask
        Which nodes exist, bool [b, 2, n].

    Returns
    -------
    Tensor
        f32 [b, T, T] (query, key) with T = 2 + 2n: 0 where attended, minus infinity elsewhere.
        No row is without keys.
    """
    b, _, n = node_mask.shape
    side = torch.arange(2 * n + 2, device=node_mask.device).sub(2).div(n, rounding_mode="floor")
    pooled = side < 0
    structure = pooled.unsqueeze(1) | pooled | (side.unsqueeze(1) != side)
    keys = torch.cat([node_mask.new_ones(b, 2), node_mask.flatten(1)], dim=1)
    allowed = structure & keys.unsqueeze(1)
    return torch.zeros((), device=node_mask.device).where(allowed, -math.inf)
